// How bytes are copied to where another core, or nobody, looks next.
//
// A line that another core read last must be taken from it before it is written: where the two cores share no cache
// that costs 20 to 30 ns a line, and stores past the cache a tenth of it. Where they share one, ordinary stores are
// the better: the reader finds them in it. Which it is changes under a hypervisor, so a rank measures its own stores.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridge {

// `past_cache`: to where nobody looks soon.
void copy(char* to, const char* from, size_t size, bool past_cache);

// Out of memory that another rank wrote: up to some size four streams at once, because such lines come from afar and a
// core asks for more of them where they are in several pages.
void get(char* to, const char* from, size_t size, bool past_cache);

class Stores {
 public:
  // Into memory that other ranks read.
  void put(char* to, const char* from, size_t size);
  // The same, and to a place of this rank's too.
  void put_twice(char* to, char* also, const char* from, size_t size);

 private:
  struct State {
    int slow = 0;       // looks in a row at which ordinary stores were slow
    uint32_t puts = 0;  // until the next look
  };
  State states_[2];  // of small puts and of large ones
};

}  // namespace ridge
