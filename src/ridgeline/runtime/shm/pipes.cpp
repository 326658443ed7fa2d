#include "pipes.hpp"

#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/uio.h>
#include <unistd.h>

#include "segment.hpp"

namespace ridge {

namespace {

constexpr size_t kMostPages = 256;    // of a pipe: what a user who is not root may ask for
constexpr size_t kLeastPages = 32;
constexpr size_t kAllPages = 8192;    // of a group: half of what such a user gets in all

void shut(int& file) {
  if (file >= 0) close(file);
  file = -1;
}

}  // namespace

Pipes::Pipes(int rank, int ranks) : rank_(rank), ends_(ranks) {
  const size_t pairs = static_cast<size_t>(ranks) * (ranks - 1);
  for (slots_ = kMostPages; slots_ >= kLeastPages && slots_ * pairs > kAllPages;) slots_ /= 2;
  if (slots_ < kLeastPages) slots_ = 0;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  burst_ = slots_ == 0 ? 0 : (slots_ / kDepth - 1) * page;  // one page more where it begins inside of one
}

Pipes::~Pipes() {
  for (Ends& one : ends_) shut(one.write), shut(one.given), shut(one.read);
}

bool Pipes::make() {
  if (slots_ == 0) return false;
  const int bytes = static_cast<int>(slots_ * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  for (size_t peer = 0; peer < ends_.size(); ++peer) {
    int both[2];
    if (peer == static_cast<size_t>(rank_)) continue;
    if (pipe2(both, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    ends_[peer].given = both[0];
    ends_[peer].write = both[1];
    if (fcntl(both[1], F_SETPIPE_SZ, bytes) < bytes) return false;
  }
  return true;
}

int Pipes::descriptor(int peer) const { return ends_[peer].given; }

bool Pipes::open(int peer, int pid, int descriptor) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  ends_[peer].read = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  return ends_[peer].read >= 0;
}

bool Pipes::lend(int peer, const char* data, size_t size) const {
  for (size_t done = 0; done < size;) {
    const iovec pages{const_cast<char*>(data + done), size - done};
    const ssize_t some = vmsplice(ends_[peer].write, &pages, 1, SPLICE_F_NONBLOCK);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) return false;
    done += static_cast<size_t>(some);
  }
  return true;
}

bool Pipes::take(int peer, char* to, size_t size) const {
  for (size_t done = 0; done < size;) {
    const ssize_t some = read(ends_[peer].read, to + done, size - done);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) return false;
    done += static_cast<size_t>(some);
  }
  return true;
}

}  // namespace ridge
