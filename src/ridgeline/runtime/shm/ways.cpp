#include "ways.hpp"

#include <algorithm>
#include <bit>

namespace ridge {

namespace {

constexpr uint32_t kSecondLook = 4;  // calls after the first of each way, and then between the second looks
constexpr uint32_t kTrials = 32;     // calls between further looks at another way, times how much slower it was
constexpr double kMostSlower = 4;
constexpr double kUp = 1.1;          // times what was known, of a longer time: a core may have been taken away

}  // namespace

// The fastest of those that are known, or one that is not.
Way Ways::fastest(const Known& known) const {
  int best = kSlots;
  for (int way = kWays - 1; way >= 0; --way)
    if (allowed_[way] && (!allowed_[best] || known.seconds[way] < known.seconds[best])) best = way;
  return static_cast<Way>(best);
}

Way Ways::next_to_try(Known& known, Way best) const {
  for (int turn = 0; turn < kWays; ++turn) {
    const auto way = static_cast<Way>(known.trials++ % kWays);
    if (allowed_[way] && way != best) return way;
  }
  return best;
}

Way Ways::choose(Kind kind, size_t bytes) {
  Known& known = known_[kind][std::min<int>(std::bit_width(bytes), kSizes - 1)];
  const uint32_t firsts = static_cast<uint32_t>(std::count(allowed_.begin(), allowed_.end(), true));
  way_ = fastest(known);
  if (known.calls < firsts) {
    known.next_trial = firsts + kSecondLook;
  } else if (known.calls >= known.next_trial) {
    const Way other = next_to_try(known, way_);
    const double slower = known.seconds[other] / std::max(known.seconds[way_], 1e-9);
    const bool again = known.trials <= kWays;
    known.next_trial = known.calls + (again ? kSecondLook : static_cast<uint32_t>(kTrials * std::min(slower, kMostSlower)));
    way_ = other;
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
