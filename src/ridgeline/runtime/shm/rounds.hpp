// Collectives as rounds over a Segment: every rank writes its slot, posts it, and reads what it needs of the others'.
//
// An all-reduce is a reduce-scatter and an all-gather of one chunk after the other; a round carries the contributions to
// a chunk and the sums of the chunk before it, so that a chunk costs one wait. Chunks are small enough for slots to stay
// in the cache: memory is read once and written once. Where a vector is small, or the ranks are two, every rank sums all
// of it: one copy and one wait less, for the same bytes between cores. Large ones skip the slots
// where that is faster (lent.cpp, direct.cpp).
#pragma once

#include <functional>

#include "pipes.hpp"
#include "reduce.hpp"
#include "segment.hpp"
#include "stores.hpp"
#include "ways.hpp"

namespace ridge {

struct Bytes {
  char* data = nullptr;
  size_t size = 0;
};

struct Reduction {
  Reduce reduce = nullptr;
  size_t element = 1;  // bytes
  double scale = 1;
  uint32_t flavour = 0;
};

constexpr size_t kStreaming = 16 << 20;  // outputs from here on do not fit the cache: they are written past it

class Rounds {
 public:
  explicit Rounds(Segment& segment) : shared_(segment), pipes_(segment.rank(), segment.ranks()) {}

  // Each takes part in one collective; parts have one entry for each rank.
  void all_reduce(Bytes vector, const Reduction& how, Operation op);
  void reduce(Bytes vector, int root, const Reduction& how, Operation op);
  void reduce_scatter(const std::vector<Bytes>& parts, Bytes own, const Reduction& how, Operation op);
  void all_gather(const std::vector<Bytes>& parts, Bytes own, Operation op);
  void broadcast(Bytes vector, int root, Operation op);
  void gather(const std::vector<Bytes>& parts, Bytes own, int root, Operation op);
  void scatter(const std::vector<Bytes>& parts, Bytes own, int root, Operation op);
  void all_to_all(const std::vector<Bytes>& targets, const std::vector<Bytes>& sources, Operation op);
  void barrier(Operation op);

 private:
  void begin(Kind kind, int root, uint32_t flavour, uint64_t bytes, Operation op);
  char* free_slot();  // this rank's payload of the next round, once everyone has read what was in it
  char* open();       // the same, begun
  void post();
  const char* read(int peer);  // the peer's payload of the round posted last
  void sum_whole(Bytes vector, const Reduction& how);
  void sum_by_parts(Bytes vector, int root, const Reduction& how);
  void check_sizes(int source, uint64_t expected);

  // Where ranks reach each other's data without slots, of which `data_for` says where a peer finds it.
  Way way(size_t bytes, const std::function<const char*(int)>& data_for);
  bool may_skip_slots();
  bool may_lend();
  bool may_read();
  void learn();
  void end();
  bool agreed(bool yes);
  void lend(int peer, const char* data, size_t size);
  void take(int peer, char* to, size_t size);
  [[noreturn]] void lost(int peer);
  void gather_lent(const std::vector<Bytes>& parts, Bytes own, size_t largest, bool streamed);
  void scatter_lent(const std::vector<Bytes>& parts, Bytes own, size_t largest, const Reduction& how);
  void broadcast_lent(Bytes vector, int root);
  void sum_lent(Bytes vector, const Reduction& how);
  void read_from(int peer, char* to, size_t at, size_t size);
  void gather_read(const std::vector<Bytes>& parts, Bytes own, bool streamed);
  void scatter_read(const std::vector<Bytes>& parts, Bytes own, const Reduction& how, size_t at);
  void broadcast_read(Bytes vector, int root);
  void sum_read(Bytes vector, const Reduction& how);
  void finish();  // a last round: everyone has read what it needs of others' data

  enum class Access { kUnknown, kGranted, kRefused };
  Access access_ = Access::kUnknown;
  std::vector<char> blocks_;
  Ways ways_;            // rank 0's
  Way way_ = kSlots;     // of this collective
  std::vector<uint64_t> theirs_;  // where the peers' data is that this rank reads or writes, in their memory
  bool timed_ = false;   // this collective's time is to be told
  uint64_t choices_ = 0;  // collectives that rank 0 chose a way for
  int64_t began_ = 0;

  Segment& shared_;
  Pipes pipes_;
  Stores stores_;
  Operation op_;
  SlotHead head_{};
  uint32_t round_ = 0;
};

}  // namespace ridge
