#include "peers.hpp"

#include <cerrno>
#include <sys/uio.h>

namespace ridge {

namespace {

template <class Move>
bool moved(int pid, char* own, uint64_t theirs, size_t size, Move move) {
  for (size_t done = 0; done < size;) {
    const iovec here{own + done, size - done};
    const iovec there{reinterpret_cast<void*>(theirs + done), size - done};
    const ssize_t some = move(pid, &here, 1UL, &there, 1UL, 0UL);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) return false;
    done += static_cast<size_t>(some);
  }
  return true;
}

}  // namespace

bool read_peer(int pid, char* to, uint64_t from, size_t size) { return moved(pid, to, from, size, process_vm_readv); }

bool write_peer(int pid, uint64_t to, const char* from, size_t size) {
  return moved(pid, const_cast<char*>(from), to, size, process_vm_writev);
}

}  // namespace ridge
