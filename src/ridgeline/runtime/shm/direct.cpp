// Large collectives without slots: ranks tell each other addresses and copy from one another's memory (process_vm_readv,
// process_vm_writev).
//
// One copy instead of two. A round tells the addresses, a last one says that all were read, so that nobody changes or
// frees what another still reads. An all-reduce is a reduce-scatter of blocks that stay in the cache, and an all-gather.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "rounds.hpp"

namespace ridge {

namespace {

constexpr size_t kGathered = 128 << 10;  // bytes in all from which one copy is worth two waits
constexpr size_t kReduced = 2 << 20;     // the same of vectors that are summed
constexpr size_t kPast = 1 << 20;        // an own part from here on is written past the cache
constexpr size_t kBlocks = 512 << 10;    // bytes of all ranks that are summed at a time
constexpr uint64_t kWord = 0x7269646765736864ULL;

uint64_t address(const void* at) { return reinterpret_cast<uint64_t>(at); }

}  // namespace

bool Rounds::gathers_directly(size_t bytes) { return bytes >= kGathered && may_read(); }

bool Rounds::reduces_directly(size_t bytes) { return bytes >= kReduced && may_read(); }

// Whether every rank can read every other's memory: tried once, in the first collective that would gain by it.
bool Rounds::may_read() {
  if (shared_.ranks() == 1) return false;
  if (access_ != Access::kUnknown) return access_ == Access::kGranted;
  const char* wish = std::getenv("RIDGE_SHM_DIRECT");
  bool good = wish == nullptr || std::strcmp(wish, "0") != 0;
  const uint64_t mine = kWord + static_cast<uint64_t>(shared_.rank());
  const std::vector<uint64_t> told = tell(address(&mine));
  for (int peer = 0; peer < shared_.ranks(); ++peer) {
    uint64_t found = 0;
    good = good && (peer == shared_.rank() || (shared_.copied(peer, &found, told[peer], sizeof found) &&
                                               found == kWord + static_cast<uint64_t>(peer)));
  }
  for (uint64_t other : tell(good ? 1 : 0)) good = good && other != 0;
  access_ = good ? Access::kGranted : Access::kRefused;
  return good;
}

// A round that hands one number to everybody; those of all ranks.
std::vector<uint64_t> Rounds::tell(uint64_t number) {
  announce(number);
  return heard();
}

void Rounds::announce(uint64_t number) {
  std::memcpy(open(), &number, sizeof number);
  post();
}

std::vector<uint64_t> Rounds::heard() {
  std::vector<uint64_t> told(shared_.ranks());
  for (int peer = 0; peer < shared_.ranks(); ++peer) std::memcpy(&told[peer], read(peer), sizeof told[peer]);
  return told;
}

void Rounds::take(int peer, char* to, uint64_t from, size_t size) {
  if (!shared_.copied(peer, to, from, size)) lost(peer);
}

void Rounds::lost(int peer) {
  shared_.check(peer, op_);
  shared_.fail("the memory of " + shared_.name(peer) + " cannot be reached any more in " + op_.name +
               "; RIDGE_SHM_DIRECT=0 copies through shared memory instead");
}

void Rounds::gather_directly(const std::vector<Bytes>& parts, Bytes own) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  announce(address(own.data));
  copy(parts[me].data, own.data, own.size, own.size >= kPast);  // while the others come
  const std::vector<uint64_t> from = heard();
  for (int step = 1; step < ranks; ++step) {
    const int peer = (me + step) % ranks;
    take(peer, parts[peer].data, from[peer], parts[peer].size);
  }
  tell(0);
}

// The root writes the first of as many parts as there are ranks to everybody, who read the others: all are busy alike.
void Rounds::broadcast_directly(Bytes vector, int root) {
  const std::vector<uint64_t> at = tell(address(vector.data));
  const size_t given = vector.size / shared_.ranks() / kLine * kLine;
  if (shared_.rank() != root) take(root, vector.data + given, at[root] + given, vector.size - given);
  for (int peer = 0; shared_.rank() == root && peer < shared_.ranks(); ++peer)
    if (peer != root && !shared_.handed(peer, at[peer], vector.data, given)) lost(peer);
  tell(0);
}

void Rounds::sum_directly(Bytes vector, const Reduction& how) {
  const size_t ranks = shared_.ranks(), me = shared_.rank();
  const size_t part = (vector.size / ranks / kLine + 1) * kLine;
  const size_t block = std::max<size_t>(kBlocks / ranks / kLine * kLine, 16 << 10);
  auto begin = [&](size_t rank) { return std::min(vector.size, rank * part); };
  auto size = [&](size_t rank) { return begin(rank + 1) - begin(rank); };
  const std::vector<uint64_t> from = tell(address(vector.data));
  blocks_.resize(block * ranks);
  std::vector<const char*> sources(ranks);
  for (size_t at = 0; at < size(me); at += block) {
    const size_t some = std::min(block, size(me) - at);
    char* own = vector.data + begin(me) + at;
    for (size_t peer = 0; peer < ranks; ++peer) {
      sources[peer] = peer == me ? own : blocks_.data() + peer * block;
      if (peer != me) take(static_cast<int>(peer), blocks_.data() + peer * block, from[peer] + begin(me) + at, some);
    }
    how.reduce(own, sources.data(), static_cast<int>(ranks), some / how.element, how.scale);
  }
  tell(0);  // every part is summed, and nobody reads what was there before
  for (size_t step = 1; step < ranks; ++step) {
    const size_t peer = (me + step) % ranks;
    take(static_cast<int>(peer), vector.data + begin(peer), from[peer] + begin(peer), size(peer));
  }
  tell(0);
}

}  // namespace ridge
