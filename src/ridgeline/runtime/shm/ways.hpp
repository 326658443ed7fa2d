// Which way a large collective takes, learnt from how long each took: through slots, by lending pages, or by reading
// the other ranks' memory.
//
// Where two cores share a cache, slots are the faster; where a line that one core wrote is far from the other, one copy
// is. Which it is changes with the machine, its hypervisor's mood and the size. Rank 0 decides for all; a collective
// takes from when the last rank began to when the last one ended, so that nobody's lateness counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "segment.hpp"

namespace ridge {

enum Way : char { kSlots = 0, kLent, kRead, kWays };

class Ways {
 public:
  void allow(Way way) { allowed_[way] = true; }
  Way choose(Kind kind, size_t bytes);
  void learn(double seconds);  // of the collective chosen last

 private:
  static constexpr int kSizes = 48;
  struct Known {
    std::array<double, kWays> seconds{};  // of each way: 0 is unknown
    uint32_t calls = 0;
    uint32_t next_trial = 0;
    uint32_t trials = 0;
    uint32_t more_looks = 0;  // at this way, before anything else
    Way way = kSlots;         // chosen last
  };
  Way fastest(const Known& known) const;
  Way to_look_at(Known& known, Way best) const;

  std::array<bool, kWays> allowed_{true, false, false};
  std::array<std::array<Known, kSizes>, kKinds> known_{};
  Known* last_ = nullptr;
};

}  // namespace ridge
