#include "ways.hpp"

#include <algorithm>
#include <bit>

namespace ridge {

namespace {

constexpr uint32_t kFirst = 4;      // calls that take turns
constexpr uint32_t kSecondLook = 8;  // calls after these
constexpr uint32_t kTrials = 32;    // calls between further looks at the other way, times how much slower it was
constexpr double kMostSlower = 4;
constexpr double kUp = 1.1;         // times what was known, of a longer time: a core may have been taken away

}  // namespace

Way Ways::choose(Kind kind, size_t bytes) {
  Known& known = known_[kind][std::min<int>(std::bit_width(bytes), kSizes - 1)];
  const auto& [slots, lent] = known.seconds;
  way_ = lent <= slots ? kLent : kSlots;
  if (known.calls < kFirst) {
    way_ = known.calls % 2 == 0 ? kLent : kSlots;
    known.next_trial = kFirst + kSecondLook;
  } else if (known.calls >= known.next_trial) {
    const double slower = std::max(lent, slots) / std::max(std::min(lent, slots), 1e-9);
    known.next_trial = known.calls + static_cast<uint32_t>(kTrials * std::min(slower, kMostSlower));
    way_ = way_ == kLent ? kSlots : kLent;
  }
  ++known.calls;
  last_ = &known;
  return way_;
}

void Ways::learn(double seconds) {
  double& before = last_->seconds[way_];
  before = before == 0 ? seconds : std::min(seconds, before * kUp);
}

}  // namespace ridge
