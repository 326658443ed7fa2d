#include "segment.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ridge {

namespace {

constexpr uint64_t kMagic = 0x52696467655368ULL + 3;  // changes with the layout
constexpr int kSliceMs = 50;                          // between looks at who still lives
constexpr int kMostSpins = 4000;  // about 100 us
constexpr int kLeastSpins = 16;
constexpr int kSpinsApart = 1000;  // at least, for a peer that was on another core: sleeping and waking costs as much
constexpr int kYields = 2;  // where ranks share cores: elsewhere others do, and who yields to them comes last
constexpr size_t kPage = 4096;
constexpr const char* kStopped = "stopped by a signal";

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

long futex(std::atomic<uint32_t>* word, int what, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), what, value, limit, nullptr, 0);
}

void sleep_on(Counter& counter, uint32_t seen) {
  timespec slice{kSliceMs / 1000, (kSliceMs % 1000) * 1000000L};
  counter.sleepers.fetch_add(1);
  if (counter.value.load() == seen) futex(&counter.value, FUTEX_WAIT, seen, &slice);
  counter.sleepers.fetch_sub(1);
}

void set(Counter& counter, uint32_t value) {
  counter.value.store(value);
  if (counter.sleepers.load() != 0) futex(&counter.value, FUTEX_WAKE, INT_MAX, nullptr);
}

// Cores that any of the ranks may run on: each may be bound to one of its own.
int usable_cores(const std::vector<Peer>& peers) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const Peer& peer : peers) {
    cpu_set_t own;
    if (sched_getaffinity(peer.pid, sizeof own, &own) == 0) CPU_OR(&all, &all, &own);
  }
  return CPU_COUNT(&all);
}

}  // namespace

struct Header {
  uint64_t magic;
  uint64_t ranks;
  uint64_t slot_bytes;
  uint64_t ring_bytes;
  alignas(kLine) Counter attached;
  std::atomic<uint32_t> failed;  // 1 while the first to fail writes what, 2 from then on
  char what[1024];
};

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

const char* kind_name(uint32_t kind) {
  static const char* const names[] = {"nothing",   "all_reduce", "reduce",  "reduce_scatter", "all_gather",
                                      "broadcast", "gather",     "scatter", "all_to_all",     "barrier"};
  return kind < kKinds ? names[kind] : "something else";
}

namespace {

struct Layout {
  size_t states, slots, rings, slot_stride, ring_stride, length;
};

Layout layout(size_t ranks, size_t slot_bytes, size_t ring_bytes) {
  Layout found{};
  found.states = rounded(sizeof(Header), kPage);
  found.slots = rounded(found.states + ranks * sizeof(RankState), kPage);
  found.slot_stride = rounded(sizeof(SlotHead) + rounded(8 * ranks, kLine) + slot_bytes, kPage);
  found.rings = found.slots + ranks * kDepth * found.slot_stride;
  found.ring_stride = rounded(sizeof(Ring) + ring_bytes, kPage);
  found.length = found.rings + ranks * ranks * found.ring_stride;
  return found;
}

std::string said(const char* what) { return std::string("ridge_shm: ") + what + ": " + std::strerror(errno); }

}  // namespace

std::string Segment::make(int ranks, size_t slot_bytes, size_t ring_bytes, int& file) {
  file = static_cast<int>(syscall(SYS_memfd_create, "ridge_shm", 1U));  // no name in any directory, closed on exec
  if (file < 0) throw Failure(said("the kernel gives no shared memory (memfd_create)"));
  Layout at = layout(ranks, slot_bytes, ring_bytes);
  if (ftruncate(file, static_cast<off_t>(at.length)) != 0) throw Failure(said("shared memory cannot grow"));
  void* base = mmap(nullptr, at.rings, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) throw Failure(said("shared memory cannot be mapped"));
  auto* header = new (base) Header{};
  for (int rank = 0; rank < ranks; ++rank) new (static_cast<char*>(base) + at.states + rank * sizeof(RankState)) RankState;
  header->ranks = ranks;
  header->slot_bytes = slot_bytes;
  header->ring_bytes = ring_bytes;
  header->magic = kMagic;
  munmap(base, at.rings);
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
}

Segment::Segment(int rank, std::vector<Peer> peers, int file)
    : rank_(rank), ranks_(static_cast<int>(peers.size())), peers_(std::move(peers)), seen_(peers_.size(), 0) {
  Header first{};
  if (pread(file, &first, 32, 0) != 32 || first.magic != kMagic || first.ranks != static_cast<uint64_t>(ranks_))
    throw Failure("ridge_shm: rank 0's memory has another layout; do all ranks run the same ridgeline?");
  Layout at = layout(first.ranks, first.slot_bytes, first.ring_bytes);
  void* base = mmap(nullptr, at.length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) throw Failure(said("shared memory cannot be mapped"));
  base_ = static_cast<char*>(base);
  header_ = reinterpret_cast<Header*>(base_);
  states_ = reinterpret_cast<RankState*>(base_ + at.states);
  slots_ = base_ + at.slots;
  rings_ = base_ + at.rings;
  slot_bytes_ = first.slot_bytes;
  ring_bytes_ = first.ring_bytes;
  slot_stride_ = at.slot_stride;
  ring_stride_ = at.ring_stride;
  length_ = at.length;
  most_spins_ = ranks_ <= usable_cores(peers_) ? kMostSpins : kLeastSpins;
  spins_ = most_spins_;
  std::memset(slots_ + rank_ * kDepth * slot_stride_, 0, kDepth * slot_stride_);  // page faults now, not in a round
  for (const Peer& peer : peers_)
    pidfds_.push_back(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0U)));  // -1: only the time-out tells
  header_->attached.value.fetch_add(1);
  futex(&header_->attached.value, FUTEX_WAKE, INT_MAX, nullptr);
}

void Segment::leave() { states_[rank_].left.store(1); }

Segment::~Segment() {
  for (int fd : pidfds_)
    if (fd >= 0) close(fd);
  munmap(base_, length_);
}

void Segment::wait_for_all(const Operation& op) {
  for (;;) {
    uint32_t there = header_->attached.value.load();
    if (there >= static_cast<uint32_t>(ranks_)) return;
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != rank_) check(peer, op);
    sleep_on(header_->attached, there);
  }
}

SlotHead& Segment::head(int rank, uint32_t round) const {
  return *reinterpret_cast<SlotHead*>(slots_ + (rank * kDepth + round % kDepth) * slot_stride_);
}

uint64_t* Segment::sizes(int rank, uint32_t round) const {
  return reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&head(rank, round)) + sizeof(SlotHead));
}

char* Segment::payload(int rank, uint32_t round) const {
  return reinterpret_cast<char*>(sizes(rank, round)) + rounded(8 * static_cast<size_t>(ranks_), kLine);
}

Ring& Segment::ring(int source, int target) const {
  return *reinterpret_cast<Ring*>(rings_ + (static_cast<size_t>(source) * ranks_ + target) * ring_stride_);
}

char* Segment::ring_data(int source, int target) const {
  return reinterpret_cast<char*>(&ring(source, target)) + sizeof(Ring);
}

bool Segment::reached(int peer, uint32_t round) const {
  return static_cast<int32_t>(seen_[peer] - round) >= 0;
}

void Segment::await(int peer, uint32_t round, const Operation& op) {
  if (reached(peer, round)) return;
  Counter& counter = states_[peer].posted;
  const bool together = counter.core.load(std::memory_order_relaxed) == sched_getcpu();
  const int spins = together ? kLeastSpins : std::max(spins_, std::min(kSpinsApart, most_spins_));
  for (int spin = 0; spin < spins; ++spin) {
    seen_[peer] = counter.value.load(std::memory_order_acquire);
    if (reached(peer, round)) {
      spins_ = std::min(most_spins_, spins_ + 64);
      return;
    }
    pause_core();
  }
  spins_ = std::max(kLeastSpins, spins_ / 2);  // the peer does not run now: it may need this very core
  wait_slowly(peer, round, op);
}

void Segment::wait_slowly(int peer, uint32_t round, const Operation& op) {
  Counter& counter = states_[peer].posted;
  const int yields = alone_on_cores() ? 0 : kYields;
  for (int turn = 0;; ++turn) {
    seen_[peer] = counter.value.load();
    if (reached(peer, round)) return;
    if (turn < yields) {
      sched_yield();
      continue;
    }
    check(peer, op);
    sleep_on(counter, seen_[peer]);
  }
}

void Segment::post(uint32_t round) {
  seen_[rank_] = round;
  states_[rank_].posted.core.store(sched_getcpu(), std::memory_order_relaxed);
  set(states_[rank_].posted, round);
}

void Segment::sleep_on_doorbell(uint32_t seen) { sleep_on(states_[rank_].doorbell, seen); }

void Segment::ring_doorbell(int rank) {
  Counter& bell = states_[rank].doorbell;
  bell.value.fetch_add(1);
  if (bell.sleepers.load() != 0) futex(&bell.value, FUTEX_WAKE, INT_MAX, nullptr);
}

bool Segment::dead(int peer) const {
  if (pidfds_[peer] < 0) return false;
  pollfd look{pidfds_[peer], POLLIN, 0};
  return poll(&look, 1, 0) == 1;
}

std::string Segment::process_state(int peer) const {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", peers_[peer].pid);
  FILE* file = std::fopen(path, "r");
  if (file == nullptr) return "gone";
  char line[512] = {};
  size_t size = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  const char* after = size ? std::strrchr(line, ')') : nullptr;
  switch (after != nullptr && after[1] != 0 ? after[2] : '?') {
    case 'T': case 't': return kStopped;
    case 'Z': case 'X': return "dead";
    case 'R': return "running";
    case 'D': return "waiting for a disk";
    case 'S': return "sleeping";
    default: return "in an unknown state";
  }
}

std::string Segment::name(int rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (peers_[rank].global_rank != rank) text += " (global rank " + std::to_string(peers_[rank].global_rank) + ")";
  return text + ", pid " + std::to_string(peers_[rank].pid);
}

void Segment::check(int peer, const Operation& op) {
  if (header_->failed.load() == 2) throw Failure(std::string(header_->what));
  std::string during = std::string(" in ") + op.name + " #" + std::to_string(op.number);
  RankState& other = states_[peer];
  if (other.left.load() != 0) fail(name(peer) + " has left the group" + during);
  if (dead(peer)) fail(name(peer) + " died" + during);
  if (Clock::now() < op.deadline) return;
  if (op.collective)  // not whom this rank waits for but whom all of them wait for in the end
    for (int other_peer = 0; other_peer < ranks_; ++other_peer)
      if (static_cast<int32_t>(states_[other_peer].posted.value.load() - states_[peer].posted.value.load()) < 0)
        peer = other_peer;
  for (int other_peer = 0; !op.collective && other_peer < ranks_; ++other_peer)  // whom it waits for may wait in turn
    if (process_state(other_peer) == kStopped) peer = other_peer;
  uint64_t last = states_[peer].operation.load();
  char limit[32];
  std::snprintf(limit, sizeof limit, "%.3g s", op.seconds);
  fail(name(peer) + " did not come within " + limit + during + ": the process is " + process_state(peer) +
                 ", the last collective it began is " + kind_name(last & 255) + " #" + std::to_string(last >> 8));
}

void Segment::fail(const std::string& what) {
  std::string text = "ridge_shm: " + what + " (seen by " + name(rank_) + ")";
  uint32_t fresh = 0;
  if (header_->failed.compare_exchange_strong(fresh, 1)) {
    std::strncpy(header_->what, text.c_str(), sizeof header_->what - 1);
    header_->failed.store(2);
  } else {
    for (int turn = 0; turn < 1000 && header_->failed.load() != 2; ++turn) sched_yield();
    if (header_->failed.load() == 2) text = header_->what;
  }
  throw Failure(text);
}

}  // namespace ridge
