// Large collectives without slots or pipes: ranks read each other's memory, and a broadcast's root writes theirs (peers.hpp).
//
// One round tells where the data is, a last one that all have read it. Nothing else is waited for but the sums of an
// all-reduce.
#include <algorithm>

#include "peers.hpp"
#include "rounds.hpp"

namespace ridge {

namespace {

constexpr size_t kBlocks = 512 << 10;  // bytes read before they are summed, of all ranks together: they stay in the cache
constexpr size_t kLeastBlock = 64 << 10;
constexpr size_t kPageBytes = 4096;
constexpr uint64_t kWord = 0x7269646765736872ULL;

size_t cut(size_t size, size_t begin, size_t most) { return begin >= size ? 0 : std::min(most, size - begin); }

}  // namespace

// Whether every rank may read and write every other's memory.
bool Rounds::may_read() {
  const int ranks = shared_.ranks(), me = shared_.rank();
  std::vector<uint64_t> words(ranks, kWord + static_cast<uint64_t>(me));
  open();
  for (int peer = 0; peer < ranks; ++peer)
    shared_.sizes(me, round_ + 1)[peer] = reinterpret_cast<uintptr_t>(words.data() + peer);
  post();
  bool good = true;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == me) continue;
    read(peer);
    const uint64_t place = shared_.sizes(peer, round_)[me];
    uint64_t word = 0;
    good = good && read_peer(shared_.pid(peer), reinterpret_cast<char*>(&word), place, sizeof word) &&
           word == kWord + static_cast<uint64_t>(peer) &&
           write_peer(shared_.pid(peer), place, reinterpret_cast<const char*>(&kWord), sizeof kWord);
  }
  good = agreed(good);
  for (int peer = 0; good && peer < ranks; ++peer) good = peer == me || words[peer] == kWord;
  return agreed(good);
}

void Rounds::read_from(int peer, char* to, size_t at, size_t size) {
  if (!read_peer(shared_.pid(peer), to, theirs_[peer] + at, size)) lost(peer);
}

void Rounds::gather_read(const std::vector<Bytes>& parts, Bytes own, bool streamed) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  for (int step = 1; step < ranks; ++step) {
    const int peer = (me + step) % ranks;
    read_from(peer, parts[peer].data, 0, parts[peer].size);
  }
  if (parts[me].data != own.data) copy(parts[me].data, own.data, own.size, streamed);
}

// The root writes the last part of everyone's vector while they read the rest: all cores copy.
void Rounds::broadcast_read(Bytes vector, int root) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  const size_t written = vector.size / ranks / kPageBytes * kPageBytes, head = vector.size - written;
  if (me != root) return read_from(root, vector.data, 0, head);
  for (int step = 1; step < ranks; ++step) {
    const int peer = (me + step) % ranks;
    if (!write_peer(shared_.pid(peer), theirs_[peer] + head, vector.data + head, written)) lost(peer);
  }
}

// This rank's part of all ranks' data, `at` bytes from where they said, summed in order of rank.
void Rounds::scatter_read(const std::vector<Bytes>& parts, Bytes own, const Reduction& how, size_t from) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  const size_t block = std::max(kBlocks / ranks, kLeastBlock) / kLine * kLine;
  blocks_.resize(block * ranks);
  std::vector<const char*> sources(ranks);
  for (size_t at = 0; at < own.size; at += block) {
    const size_t size = cut(own.size, at, block);
    for (int peer = 0; peer < ranks; ++peer) {
      sources[peer] = peer == me ? parts[me].data + at : blocks_.data() + peer * block;
      if (peer != me) read_from(peer, blocks_.data() + peer * block, from + at, size);
    }
    how.reduce(own.data + at, sources.data(), ranks, size / how.element, how.scale);
  }
}

// Part d is read of all ranks by rank d alone, so that its sums may be written there at once.
void Rounds::sum_read(Bytes vector, const Reduction& how) {
  const size_t ranks = shared_.ranks(), me = shared_.rank();
  const size_t part = (vector.size / ranks / kLine + 1) * kLine;
  std::vector<Bytes> parts(ranks);
  for (size_t rank = 0; rank < ranks; ++rank)
    parts[rank] = {vector.data + std::min(vector.size, rank * part), cut(vector.size, rank * part, part)};
  scatter_read(parts, parts[me], how, me * part);
  finish();
  for (size_t step = 1; step < ranks; ++step) {
    const size_t peer = (me + step) % ranks;
    read_from(static_cast<int>(peer), parts[peer].data, peer * part, parts[peer].size);
  }
}

}  // namespace ridge
