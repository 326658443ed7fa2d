#include "group.hpp"

namespace ridge {

void Queue::run_first(std::unique_lock<std::mutex>& lock) {
  std::shared_ptr<Task> task = tasks_.front();
  tasks_.pop_front();
  running_ = true;
  lock.unlock();
  try {
    task->run();
  } catch (const std::exception& wrong) {
    task->error = wrong.what();
  }
  task->done.store(true);
  if (task->finished) task->finished();
  task->run = task->finished = nullptr;  // they hold what holds the task
  lock.lock();
  running_ = false;
  changed_.notify_all();
}

void Queue::run_now(const std::shared_ptr<Task>& task) {
  std::unique_lock<std::mutex> lock(mutex_);
  tasks_.push_back(task);
  if (tasks_.size() == 1 && !running_) run_first(lock);
}

void Queue::add(const std::shared_ptr<Task>& task) {
  std::lock_guard<std::mutex> lock(mutex_);
  tasks_.push_back(task);
  if (!thread_.joinable()) thread_ = std::thread([this] { in_background(); });
  begun_.notify_one();
}

bool Queue::wait(const std::shared_ptr<Task>& task, Clock::time_point until) {
  if (task->done.load()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!task->done.load()) {
    if (!running_ && !tasks_.empty()) {
      run_first(lock);
    } else if (until == Clock::time_point::max()) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, until) == std::cv_status::timeout && !task->done.load()) {
      return false;
    }
  }
  return true;
}

void Queue::in_background() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (!running_ && !tasks_.empty()) {
      run_first(lock);
    } else if (running_) {
      changed_.wait(lock);
    } else if (closing_) {
      return;
    } else {
      begun_.wait(lock);
    }
  }
}

void Queue::close() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    closing_ = true;
    while (!tasks_.empty() || running_) {
      if (!running_) run_first(lock);
      else changed_.wait(lock);
    }
  }
  begun_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Group::close() {
  queue.close();
  messages.close();
  segment.leave();
}

void Group::abort() {
  try {
    segment.fail(segment.name(segment.rank()) + " aborted the group");
  } catch (const Failure&) {  // told to all by now
  }
}

}  // namespace ridge
