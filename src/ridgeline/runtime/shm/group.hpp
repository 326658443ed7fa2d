// One group of ranks: its shared memory, its collectives in order, and its messages.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "messages.hpp"
#include "rounds.hpp"

namespace ridge {

struct Task {
  std::function<void()> run;
  std::function<void()> finished;  // called once, outside every lock
  std::string error;
  std::atomic<bool> done{false};
};

// Collectives run one after the other: by whoever waits for one, else by a thread of the group.
class Queue {
 public:
  ~Queue() { close(); }
  void run_now(const std::shared_ptr<Task>& task);
  void add(const std::shared_ptr<Task>& task);
  bool wait(const std::shared_ptr<Task>& task, Clock::time_point until);
  void close();

 private:
  void run_first(std::unique_lock<std::mutex>& lock);
  void in_background();

  std::mutex mutex_;
  std::condition_variable changed_;  // for those who wait
  std::condition_variable begun_;    // for the thread
  std::deque<std::shared_ptr<Task>> tasks_;
  bool running_ = false;
  bool closing_ = false;
  std::thread thread_;
};

struct Group {
  Group(int rank, std::vector<Peer> peers, int file)
      : segment(rank, std::move(peers), file), rounds(segment), messages(segment) {}
  ~Group() { close(); }
  void close();  // what was begun is finished first
  void abort();  // everyone who waits is told

  Segment segment;
  Rounds rounds;
  Messages messages;
  Queue queue;
};

}  // namespace ridge
