// Which of two ways a large collective takes, learnt from how long each took: through slots, or by lending pages.
//
// Where two cores share a cache, slots are the faster; where a line that one core wrote is far from the other, lent
// pages are, by up to five times. Which it is changes with the machine, its hypervisor's mood and the size. Rank 0
// decides for all; a collective takes from when the last rank began to when the last one ended, so that nobody's
// lateness counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "segment.hpp"

namespace ridge {

enum Way : char { kSlots = 0, kLent = 1 };

class Ways {
 public:
  Way choose(Kind kind, size_t bytes);
  void learn(double seconds);  // of the collective chosen last

 private:
  static constexpr int kSizes = 48;
  struct Known {
    std::array<double, 2> seconds{};  // of each way: 0 is unknown
    uint32_t calls = 0;
    uint32_t next_trial = 0;
  };
  std::array<std::array<Known, kSizes>, kKinds> known_{};
  Known* last_ = nullptr;
  Way way_ = kLent;
};

}  // namespace ridge
