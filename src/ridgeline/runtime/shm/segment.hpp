// Memory that the ranks of one host share: counters to wait for each other by, slots for rounds, rings for messages.
//
// Every rank posts round after round. Its counter at k says: my slot of round k is written, and I have read all I need
// of rounds before k. A slot is used again after kDepth rounds, when every rank's counter says that it was read.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace ridge {

constexpr uint32_t kDepth = 4;  // slots of a rank
constexpr size_t kLine = 64;

using Clock = std::chrono::steady_clock;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Who takes part: learnt from every rank before memory is shared.
struct Peer {
  int pid = 0;
  int global_rank = 0;
};

// What a rank does, so that whoever waits for it can tell.
struct Operation {
  const char* name = "";
  uint64_t number = 0;  // of this kind in this group
  Clock::time_point deadline;
  double seconds = 0;  // the time-out that set the deadline
  bool collective = true;
};

struct alignas(kLine) Counter {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};
  std::atomic<int32_t> core{-1};  // that whoever sets it was on
};

struct alignas(kLine) RankState {
  Counter posted;    // rounds
  Counter doorbell;  // a message moved that this rank sends or receives
  std::atomic<uint32_t> left{0};
  std::atomic<uint64_t> operation{0};  // of the last collective begun: number << 8 | kind
  // How many collectives were timed, and the last one's nanoseconds on a clock that all processes share.
  alignas(kLine) std::atomic<uint64_t> timed{0};
  std::atomic<int64_t> began{0};
  std::atomic<int64_t> ended{0};
};

struct alignas(kLine) SlotHead {
  uint32_t kind;
  int32_t root;
  uint32_t flavour;  // dtype and reduce op
  uint32_t unused;
  uint64_t number;
  uint64_t bytes;
};

struct Ring {
  alignas(kLine) std::atomic<uint64_t> written{0};
  alignas(kLine) std::atomic<uint64_t> read{0};
};

struct Header;

class Segment {
 public:
  // Rank 0 makes the memory and the others open it through rank 0's open file; `wait_for_all` ends when all have.
  static std::string make(int ranks, size_t slot_bytes, size_t ring_bytes, int& file);
  Segment(int rank, std::vector<Peer> peers, int file);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  void wait_for_all(const Operation& op);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t ring_bytes() const { return ring_bytes_; }
  RankState& state(int rank) const { return states_[rank]; }
  SlotHead& head(int rank, uint32_t round) const;
  uint64_t* sizes(int rank, uint32_t round) const;  // one for each rank
  char* payload(int rank, uint32_t round) const;
  Ring& ring(int source, int target) const;
  char* ring_data(int source, int target) const;

  // Wait until `peer` has posted `round`; whoever died, left, or is late is named.
  void await(int peer, uint32_t round, const Operation& op);
  void post(uint32_t round);
  // Sleep until the doorbell moved from `seen`, or a slice of time went by.
  void sleep_on_doorbell(uint32_t seen);
  void ring_doorbell(int rank);
  // Refuse to go on where a peer died, the group failed or the time is up.
  void check(int peer, const Operation& op);
  void leave();
  [[noreturn]] void fail(const std::string& what);
  int pid(int rank) const { return peers_[rank].pid; }
  std::string name(int rank) const;
  bool alone_on_cores() const { return most_spins_ > 1000; }

 private:
  bool reached(int peer, uint32_t round) const;
  void wait_slowly(int peer, uint32_t round, const Operation& op);
  std::string process_state(int peer) const;
  bool dead(int peer) const;

  int rank_;
  int ranks_;
  size_t slot_bytes_ = 0;
  size_t ring_bytes_ = 0;
  size_t slot_stride_ = 0;
  size_t ring_stride_ = 0;
  size_t length_ = 0;
  int most_spins_ = 0;
  int spins_ = 0;  // before sleeping: fewer after spinning was in vain
  char* base_ = nullptr;
  Header* header_ = nullptr;
  RankState* states_ = nullptr;
  char* slots_ = nullptr;
  char* rings_ = nullptr;
  std::vector<Peer> peers_;
  std::vector<int> pidfds_;
  std::vector<uint32_t> seen_;  // counters as last read: most waits end here
};

void pause_core();

// Names of collectives by kind, as SlotHead and RankState store them.
enum Kind : uint32_t {
  kAllReduce = 1, kReduce, kReduceScatter, kAllGather, kBroadcast, kGather, kScatter, kAllToAll, kBarrier, kKinds
};
const char* kind_name(uint32_t kind);

}  // namespace ridge
