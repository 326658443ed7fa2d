// Large collectives without slots: which way they take, and ranks that lend each other the pages of their own buffers
// (pipes.hpp).
//
// The rounds are those of slots: every rank lends a burst, posts it, and takes what it needs of the others'. A last
// round says that all were read, so that nobody changes or frees what another still reads. An all-reduce is a
// reduce-scatter and an all-gather; bursts are summed while they are in the cache.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "rounds.hpp"

namespace ridge {

namespace {

constexpr size_t kLarge = 128 << 10;  // bytes in all from which one copy can be worth its two calls of the kernel
constexpr uint64_t kWord = 0x7269646765736864ULL;
constexpr int kLooksAtTheDead = 100;
constexpr auto kBetweenLooks = std::chrono::milliseconds(10);

int64_t nanoseconds() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

size_t cut(size_t size, size_t begin, size_t chunk) { return begin >= size ? 0 : std::min(chunk, size - begin); }

}  // namespace

// The way that this collective takes: rank 0 says, in a round of its own, and every rank where the others find its data.
Way Rounds::way(size_t bytes, const std::function<const char*(int)>& data_for) {
  way_ = kSlots;
  if (bytes < kLarge || !may_skip_slots()) return way_;
  began_ = nanoseconds();
  timed_ = true;
  const int ranks = shared_.ranks(), me = shared_.rank();
  char* slot = open();
  if (me == 0) {
    learn();
    *slot = static_cast<char>(ways_.choose(static_cast<Kind>(head_.kind), bytes));
  }
  for (int peer = 0; peer < ranks; ++peer)
    shared_.sizes(me, round_ + 1)[peer] = reinterpret_cast<uintptr_t>(data_for(peer));
  ++choices_;
  post();
  way_ = static_cast<Way>(*read(0));
  theirs_.resize(ranks);
  for (int peer = 0; way_ == kRead && peer < ranks; ++peer) {
    read(peer);
    theirs_[peer] = shared_.sizes(peer, round_)[me];
  }
  return way_;
}

// How long the collective took that rank 0 chose a way for last, where everyone has told.
void Rounds::learn() {
  int64_t began = 0, ended = 0;
  for (int peer = 0; peer < shared_.ranks(); ++peer) {
    const RankState& state = shared_.state(peer);
    if (choices_ == 0 || state.timed.load(std::memory_order_acquire) != choices_) return;
    began = std::max(began, state.began.load(std::memory_order_relaxed));
    ended = std::max(ended, state.ended.load(std::memory_order_relaxed));
  }
  ways_.learn(static_cast<double>(ended - began) * 1e-9);
}

void Rounds::end() {
  if (way_ != kSlots) finish();
  if (timed_) {
    RankState& own = shared_.state(shared_.rank());
    own.began.store(began_, std::memory_order_relaxed);
    own.ended.store(nanoseconds(), std::memory_order_relaxed);
    own.timed.store(choices_, std::memory_order_release);
  }
  timed_ = false;
  way_ = kSlots;
}

// Whether every rank can reach every other's data: tried once, in the first collective that would gain by it.
bool Rounds::may_skip_slots() {
  if (shared_.ranks() == 1) return false;
  if (access_ == Access::kUnknown) {
    const char* wish = std::getenv("RIDGE_SHM_DIRECT");
    const bool wished = agreed(wish == nullptr || std::strcmp(wish, "0") != 0);
    const bool lends = wished && may_lend(), reads = wished && may_read();
    if (lends) ways_.allow(kLent);
    if (reads) ways_.allow(kRead);
    access_ = lends || reads ? Access::kGranted : Access::kRefused;
  }
  return access_ == Access::kGranted;
}

bool Rounds::may_lend() {
  const int me = shared_.rank();
  bool good = pipes_.make();
  open();
  for (int peer = 0; peer < shared_.ranks(); ++peer)
    shared_.sizes(me, round_ + 1)[peer] = good && peer != me ? pipes_.descriptor(peer) + 1 : 0;
  post();
  for (int peer = 0; peer < shared_.ranks(); ++peer) {
    if (peer == me) continue;
    read(peer);
    const uint64_t given = shared_.sizes(peer, round_)[me];
    good = given != 0 && pipes_.open(peer, shared_.pid(peer), static_cast<int>(given - 1)) && good;
  }
  good = agreed(good);
  const uint64_t mine = kWord + static_cast<uint64_t>(me);
  for (int peer = 0; good && peer < shared_.ranks(); ++peer)
    if (peer != me) good = pipes_.lend(peer, reinterpret_cast<const char*>(&mine), sizeof mine);
  if (agreed(good))
    for (int peer = 0; peer < shared_.ranks(); ++peer) {
      uint64_t found = 0;
      if (peer == me) continue;
      good = pipes_.take(peer, reinterpret_cast<char*>(&found), sizeof found) && found == kWord + peer && good;
    }
  return agreed(good);
}

// A round that says yes where every rank does.
bool Rounds::agreed(bool yes) {
  *open() = yes ? 1 : 0;
  post();
  for (int peer = 0; peer < shared_.ranks(); ++peer) yes = *read(peer) != 0 && yes;
  return yes;
}

void Rounds::lend(int peer, const char* data, size_t size) {
  if (!pipes_.lend(peer, data, size)) lost(peer);
}

void Rounds::take(int peer, char* to, size_t size) {
  read(peer);
  if (!pipes_.take(peer, to, size)) lost(peer);
}

// A process that dies gives its memory up before anyone can see that it is dead.
void Rounds::lost(int peer) {
  for (int turn = 0; turn < kLooksAtTheDead; ++turn) {
    shared_.check(peer, op_);
    std::this_thread::sleep_for(kBetweenLooks);
  }
  shared_.fail("the kernel moves no pages between " + shared_.name(shared_.rank()) + " and " + shared_.name(peer) + " in " +
               op_.name + "; RIDGE_SHM_DIRECT=0 copies through shared memory instead");
}

void Rounds::gather_lent(const std::vector<Bytes>& parts, Bytes own, size_t largest, bool streamed) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  const size_t burst = pipes_.burst();
  const bool in_place = parts[me].data == own.data;
  for (size_t at = 0; at < largest; at += burst) {
    open();
    for (int step = 1; step < ranks; ++step) lend((me + step) % ranks, own.data + at, cut(own.size, at, burst));
    post();
    if (!in_place) copy(parts[me].data + at, own.data + at, cut(own.size, at, burst), streamed);
    for (int step = 1; step < ranks; ++step) {
      const int peer = (me + step) % ranks;
      take(peer, parts[peer].data + at, cut(parts[peer].size, at, burst));
    }
  }
}

void Rounds::broadcast_lent(Bytes vector, int root) {
  const size_t burst = pipes_.burst();
  for (size_t at = 0; at < vector.size; at += burst) {
    const size_t size = cut(vector.size, at, burst);
    open();
    for (int peer = 0; shared_.rank() == root && peer < shared_.ranks(); ++peer)
      if (peer != root) lend(peer, vector.data + at, size);
    post();
    if (shared_.rank() != root) take(root, vector.data + at, size);
  }
}

// Part d of all ranks, summed in order of rank by rank d.
void Rounds::scatter_lent(const std::vector<Bytes>& parts, Bytes own, size_t largest, const Reduction& how) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  const size_t burst = pipes_.burst() / kLine * kLine;
  blocks_.resize(burst * ranks);
  std::vector<const char*> sources(ranks);
  for (size_t at = 0; at < largest; at += burst) {
    open();
    for (int step = 1; step < ranks; ++step) {
      const int peer = (me + step) % ranks;
      lend(peer, parts[peer].data + at, cut(parts[peer].size, at, burst));
    }
    post();
    const size_t size = cut(own.size, at, burst);
    for (int peer = 0; peer < ranks; ++peer) {
      sources[peer] = peer == me ? parts[me].data + at : blocks_.data() + peer * burst;
      if (peer != me) take(peer, blocks_.data() + peer * burst, size);
    }
    how.reduce(own.data + at, sources.data(), ranks, size / how.element, how.scale);
  }
}

// What a rank lent of part d is read before rank d posts its sums of it, so that they may be written there.
void Rounds::sum_lent(Bytes vector, const Reduction& how) {
  const size_t ranks = shared_.ranks(), me = shared_.rank();
  const size_t part = (vector.size / ranks / kLine + 1) * kLine;
  std::vector<Bytes> parts(ranks);
  for (size_t rank = 0; rank < ranks; ++rank)
    parts[rank] = {vector.data + std::min(vector.size, rank * part), cut(vector.size, rank * part, part)};
  scatter_lent(parts, parts[me], parts[0].size, how);
  gather_lent(parts, parts[me], parts[0].size, false);
}

}  // namespace ridge
