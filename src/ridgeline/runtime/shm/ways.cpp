#include "ways.hpp"

#include <algorithm>
#include <bit>

namespace ridge {

namespace {

constexpr uint32_t kFirstLook = 3;   // calls in a row of each way: the first finds the caches as another way left them
constexpr uint32_t kLook = 2;        // calls in a row of later looks
constexpr size_t kLong = 4 << 20;    // bytes from which one call must do
constexpr uint32_t kSecondLook = 4;  // calls after the first looks, and then between the second ones
constexpr uint32_t kTrials = 32;     // calls between further looks at another way, times how much slower it was
constexpr double kMostSlower = 4;
constexpr double kUp = 1.1;          // times what was known, of a longer time: a core may have been taken away

}  // namespace

Way Ways::fastest(const Known& known) const {
  Way best = kSlots;
  for (Way way : {kLent, kRead})
    if (allowed_[way] && known.seconds[way] < known.seconds[best]) best = way;
  return best;
}

// The way to look at now, or the fastest where it is no time for that.
Way Ways::to_look_at(Known& known, Way best) const {
  for (Way way : {kRead, kLent, kSlots})
    if (allowed_[way] && known.seconds[way] == 0) {
      known.next_trial = known.calls + kFirstLook + kSecondLook;
      return way;
    }
  if (known.calls < known.next_trial) return best;
  Way other = best;
  for (int turn = 0; turn < kWays && other == best; ++turn) {
    const auto next = static_cast<Way>(known.trials++ % kWays);
    if (allowed_[next]) other = next;
  }
  const double slower = known.seconds[other] / std::max(known.seconds[best], 1e-9);
  const bool again = known.trials <= kWays;
  const auto later = again ? kSecondLook : static_cast<uint32_t>(kTrials * std::min(slower, kMostSlower));
  known.next_trial = known.calls + kLook + later;
  return other;
}

Way Ways::choose(Kind kind, size_t bytes) {
  Known& known = known_[kind][std::min<int>(std::bit_width(bytes), kSizes - 1)];
  if (known.more_looks != 0) {
    --known.more_looks;
  } else {
    const Way best = fastest(known);
    known.way = to_look_at(known, best);
    const bool first = known.seconds[known.way] == 0;
    known.more_looks = bytes >= kLong || (known.way == best && !first) ? 0 : (first ? kFirstLook : kLook) - 1;
  }
  ++known.calls;
  last_ = &known;
  return known.way;
}

void Ways::learn(double seconds) {
  double& before = last_->seconds[last_->way];
  before = before == 0 ? seconds : std::min(seconds, before * kUp);
}

}  // namespace ridge
