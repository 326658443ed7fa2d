// Sends and receives: a ring of bytes for each pair of ranks, matched by tag in the order they were posted.
//
// Nobody waits inside: `advance` moves what can move. Whoever waits for a message drives all of them, and a thread of
// the group does while nobody waits, so that ranks that first send and then receive never wait in a circle.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "segment.hpp"
#include "stores.hpp"

namespace ridge {

constexpr int kAnySource = -1;

struct Message {
  bool sends = false;
  int peer = 0;  // kAnySource until a receive is matched
  int tag = 0;
  char* data = nullptr;
  size_t size = 0;
  Operation op;
  std::function<void()> finished;  // called once, outside every lock
  // written by whoever drives
  size_t moved = 0;
  bool begun = false;
  std::string error;
  std::atomic<bool> done{false};
};

class Messages {
 public:
  explicit Messages(Segment& segment);
  ~Messages() { close(); }
  void close();  // what was sent is on its way first
  void add(const std::shared_ptr<Message>& message);
  void wait(const std::shared_ptr<Message>& message, Clock::time_point until);

 private:
  using Pointer = std::shared_ptr<Message>;
  struct Envelope {
    uint64_t size;
    int64_t tag;
  };
  struct Kept {  // came before anyone asked for it
    Envelope envelope;
    std::vector<char> data;
    size_t moved = 0;
  };
  struct Incoming {
    bool open = false;  // its envelope is read
    Envelope envelope{};
    Pointer into;
    std::shared_ptr<Kept> kept;
  };

  bool advance();
  bool advance_send(int target);
  bool advance_receive(int source);
  bool match(int source);
  void take_kept(const Pointer& message);
  void finish(const Pointer& message, std::string error);
  void check_all();
  void call_finished(std::unique_lock<std::mutex>& lock);
  void drive(std::unique_lock<std::mutex>& lock, const std::function<bool()>& enough);
  void in_background();
  bool idle() const;
  size_t into_ring(int target, const char* data, size_t size);
  size_t from_ring(int source, char* data, size_t size);

  Segment& shared_;
  Stores stores_;
  std::mutex mutex_;
  std::condition_variable changed_;  // for those who wait for a message
  std::condition_variable begun_;    // for the thread
  bool driven_ = false;
  int waiting_ = 0;
  bool closing_ = false;
  std::vector<std::deque<Pointer>> sends_;
  std::list<Pointer> receives_;
  std::vector<Incoming> incoming_;
  std::vector<std::list<std::shared_ptr<Kept>>> kept_;
  std::vector<Pointer> finished_;
  std::thread thread_;
};

}  // namespace ridge
