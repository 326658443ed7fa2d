#include "messages.hpp"

#include <algorithm>
#include <cstring>

namespace ridge {

namespace {

constexpr int kSpins = 2000;
constexpr int kSpinsOversubscribed = 20;
constexpr auto kGrace = std::chrono::microseconds(100);  // the caller mostly comes to wait itself

}  // namespace

Messages::Messages(Segment& segment)
    : shared_(segment), sends_(segment.ranks()), incoming_(segment.ranks()), kept_(segment.ranks()) {}

void Messages::close() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    for (const Pointer& one : receives_) finish(one, "ridge_shm: the group was closed before the message came");
    receives_.clear();
    call_finished(lock);
    if (!driven_) drive(lock, [this] { return idle(); });
    closing_ = true;
  }
  shared_.ring_doorbell(shared_.rank());
  begun_.notify_all();
  if (thread_.joinable()) thread_.join();
}

size_t Messages::into_ring(int target, const char* data, size_t size) {
  Ring& ring = shared_.ring(shared_.rank(), target);
  const size_t room = shared_.ring_bytes();
  const uint64_t written = ring.written.load(std::memory_order_relaxed);
  size = std::min(size, room - static_cast<size_t>(written - ring.read.load(std::memory_order_acquire)));
  if (size == 0) return 0;
  char* to = shared_.ring_data(shared_.rank(), target);
  const size_t at = written % room, first = std::min(size, room - at);
  stores_.put(to + at, data, first);
  stores_.put(to, data + first, size - first);
  ring.written.store(written + size, std::memory_order_release);
  return size;
}

size_t Messages::from_ring(int source, char* data, size_t size) {
  Ring& ring = shared_.ring(source, shared_.rank());
  const size_t room = shared_.ring_bytes();
  const uint64_t read = ring.read.load(std::memory_order_relaxed);
  size = std::min(size, static_cast<size_t>(ring.written.load(std::memory_order_acquire) - read));
  if (size == 0) return 0;
  const char* from = shared_.ring_data(source, shared_.rank());
  const size_t at = read % room, first = std::min(size, room - at);
  get(data, from + at, first, false);
  get(data + first, from, size - first, false);
  ring.read.store(read + size, std::memory_order_release);
  return size;
}

bool Messages::advance_send(int target) {
  bool moved = false;
  const size_t piece = shared_.ring_bytes() / 4;  // so that the other side reads while this one writes
  while (!sends_[target].empty()) {
    Message& message = *sends_[target].front();
    if (!message.begun) {
      Ring& ring = shared_.ring(shared_.rank(), target);
      if (shared_.ring_bytes() - (ring.written.load() - ring.read.load()) < sizeof(Envelope)) break;
      Envelope envelope{message.size, message.tag};
      into_ring(target, reinterpret_cast<const char*>(&envelope), sizeof envelope);
      message.begun = moved = true;
    }
    size_t size = into_ring(target, message.data + message.moved, std::min(piece, message.size - message.moved));
    message.moved += size;
    if (size != 0) {
      moved = true;
      shared_.ring_doorbell(target);
    }
    if (message.moved < message.size) {
      if (size == 0) break;
      continue;
    }
    finish(sends_[target].front(), "");
    sends_[target].pop_front();
  }
  if (moved) shared_.ring_doorbell(target);
  return moved;
}

// Give the message at the head of a ring to the first receive that wants it; one that nobody wants is kept aside only
// while another is asked for from the same rank.
bool Messages::match(int source) {
  Incoming& head = incoming_[source];
  bool asked = false;
  for (const Pointer& one : receives_) {
    if (one->begun || (one->peer != source && one->peer != kAnySource)) continue;
    asked = true;
    if (one->tag != head.envelope.tag) continue;
    one->peer = source;
    one->begun = true;
    head.into = one;
    if (one->size == head.envelope.size) return true;
    std::string error = "ridge_shm: " + shared_.name(source) + " sends " + std::to_string(head.envelope.size) +
                        " bytes with tag " + std::to_string(one->tag) + ", " + shared_.name(shared_.rank()) +
                        " expects " + std::to_string(one->size);
    receives_.remove(head.into);
    finish(head.into, error);
    head.into = nullptr;
    break;
  }
  if (!asked) return false;
  head.kept = std::make_shared<Kept>();
  head.kept->envelope = head.envelope;
  head.kept->data.resize(head.envelope.size);
  kept_[source].push_back(head.kept);
  return true;
}

bool Messages::advance_receive(int source) {
  Incoming& head = incoming_[source];
  Ring& ring = shared_.ring(source, shared_.rank());
  bool moved = false;
  for (;;) {
    if (!head.open) {
      if (ring.written.load(std::memory_order_acquire) - ring.read.load() < sizeof(Envelope)) break;
      from_ring(source, reinterpret_cast<char*>(&head.envelope), sizeof(Envelope));
      head.open = moved = true;
    }
    if (!head.into && !head.kept && !match(source)) break;
    size_t& at = head.into ? head.into->moved : head.kept->moved;
    char* data = head.into ? head.into->data : head.kept->data.data();
    size_t size = from_ring(source, data + at, std::min(head.envelope.size - at, shared_.ring_bytes() / 4));
    at += size;
    if (size != 0) {
      moved = true;
      shared_.ring_doorbell(source);
    }
    if (at < head.envelope.size) {
      if (size == 0) break;
      continue;
    }
    if (head.into) {
      receives_.remove(head.into);
      finish(head.into, "");
    }
    head = Incoming{};
  }
  if (moved) shared_.ring_doorbell(source);
  return moved;
}

// A receive posted after its message came.
void Messages::take_kept(const Pointer& message) {
  for (int source = 0; source < shared_.ranks(); ++source) {
    if (message->peer != source && message->peer != kAnySource) continue;
    for (auto one = kept_[source].begin(); one != kept_[source].end(); ++one) {
      if ((*one)->envelope.tag != message->tag) continue;
      std::shared_ptr<Kept> found = *one;
      kept_[source].erase(one);
      message->peer = source;
      message->begun = true;
      std::string error;
      if (found->envelope.size != message->size)
        error = "ridge_shm: " + shared_.name(source) + " sent " + std::to_string(found->envelope.size) +
                " bytes with tag " + std::to_string(message->tag) + ", " + shared_.name(shared_.rank()) + " expects " +
                std::to_string(message->size);
      else if (found->moved < found->envelope.size) {  // still on its way: the rest goes where it belongs
        std::memcpy(message->data, found->data.data(), found->moved);
        message->moved = found->moved;
        incoming_[source].kept = nullptr;
        incoming_[source].into = message;
        return;
      } else {
        std::memcpy(message->data, found->data.data(), message->size);
      }
      receives_.remove(message);
      finish(message, error);
      return;
    }
  }
}

void Messages::finish(const Pointer& message, std::string error) {
  message->error = std::move(error);
  finished_.push_back(message);
}

void Messages::call_finished(std::unique_lock<std::mutex>& lock) {
  if (finished_.empty()) return;
  std::vector<Pointer> ready;
  ready.swap(finished_);
  for (const Pointer& one : ready) one->done.store(true);
  lock.unlock();
  for (const Pointer& one : ready) {
    if (one->finished) one->finished();
    one->finished = nullptr;  // it holds what holds the message
  }
  lock.lock();
  changed_.notify_all();
}

bool Messages::advance() {
  bool moved = false;
  for (int peer = 0; peer < shared_.ranks(); ++peer) moved |= advance_send(peer);
  if (!receives_.empty())
    for (int peer = 0; peer < shared_.ranks(); ++peer) moved |= advance_receive(peer);
  return moved || !finished_.empty();
}

bool Messages::idle() const {
  return receives_.empty() && std::all_of(sends_.begin(), sends_.end(), [](const auto& one) { return one.empty(); });
}

// Fail whatever waits for a rank that is gone or late; a receive from anyone only by the time-out.
void Messages::check_all() {
  std::vector<Pointer> every(receives_.begin(), receives_.end());
  for (const auto& queue : sends_) every.insert(every.end(), queue.begin(), queue.end());
  for (const Pointer& one : every) {
    try {
      int other = (shared_.rank() + 1) % shared_.ranks();
      if (one->peer != kAnySource) shared_.check(one->peer, one->op);
      else if (Clock::now() >= one->op.deadline) shared_.check(other, one->op);
    } catch (const Failure& failure) {
      receives_.remove(one);
      for (auto& queue : sends_) queue.erase(std::remove(queue.begin(), queue.end(), one), queue.end());
      for (Incoming& head : incoming_)
        if (head.into == one) head.into = nullptr;
      finish(one, failure.what());
    }
  }
}

void Messages::drive(std::unique_lock<std::mutex>& lock, const std::function<bool()>& enough) {
  driven_ = true;
  const int spins = shared_.alone_on_cores() ? kSpins : kSpinsOversubscribed;
  std::atomic<uint32_t>& bell = shared_.state(shared_.rank()).doorbell.value;
  while (!enough()) {
    uint32_t seen = bell.load();
    bool moved = advance();
    call_finished(lock);
    if (moved || enough()) continue;
    lock.unlock();
    for (int spin = 0; spin < spins && bell.load(std::memory_order_relaxed) == seen; ++spin) pause_core();
    auto before = Clock::now();
    if (bell.load() == seen) shared_.sleep_on_doorbell(seen);
    lock.lock();
    if (Clock::now() - before > std::chrono::milliseconds(40)) check_all();
  }
  driven_ = false;
  changed_.notify_all();
}

void Messages::add(const Pointer& message) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (message->sends) {
    sends_[message->peer].push_back(message);
  } else {
    receives_.push_back(message);
    take_kept(message);
  }
  if (driven_) {
    shared_.ring_doorbell(shared_.rank());
    call_finished(lock);
    return;
  }
  driven_ = true;
  advance();
  driven_ = false;
  call_finished(lock);
  if (idle()) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { in_background(); });
  begun_.notify_all();
}

void Messages::wait(const Pointer& message, Clock::time_point until) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto enough = [&] { return message->done.load() || Clock::now() >= until; };
  while (!enough()) {
    if (!driven_) {
      drive(lock, enough);
      break;
    }
    ++waiting_;
    shared_.ring_doorbell(shared_.rank());  // the thread lets go of the wheel
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    --waiting_;
  }
}

void Messages::in_background() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closing_) {
    if (idle() || driven_ || waiting_ > 0) {
      begun_.wait_for(lock, std::chrono::milliseconds(idle() ? 500 : 5));
      continue;
    }
    begun_.wait_for(lock, kGrace);
    if (!driven_ && waiting_ == 0 && !closing_) drive(lock, [this] { return closing_ || waiting_ > 0 || idle(); });
  }
}

}  // namespace ridge
