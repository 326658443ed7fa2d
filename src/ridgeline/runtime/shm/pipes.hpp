// One copy between two processes: a rank lends the pages of its data to a pipe (vmsplice), the other reads them into
// place.
//
// The pages are those of the lender's own buffer, so that it must not change before everyone has read. Copying out of
// a pipe takes no look into another process's page tables, which is most of what process_vm_readv costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ridge {

class Pipes {
 public:
  Pipes(int rank, int ranks);
  ~Pipes();
  Pipes(const Pipes&) = delete;
  Pipes& operator=(const Pipes&) = delete;

  // What may lie in the pipe to a peer at once is kDepth bursts; a round lends one at most.
  size_t burst() const { return burst_; }
  bool make();                      // a pipe to every peer; false where the kernel gives none that is large enough
  int descriptor(int peer) const;   // of the end that this peer is to open, in this process
  bool open(int peer, int pid, int descriptor);
  // False where the kernel refuses, or what was promised is not there. Neither waits.
  bool lend(int peer, const char* data, size_t size) const;
  bool take(int peer, char* to, size_t size) const;

 private:
  struct Ends {
    int write = -1;
    int given = -1;  // what the peer opens; kept, so that a pipe has a reader when the peer has died
    int read = -1;   // of the peer's pipe to this rank
  };

  int rank_;
  size_t slots_ = 0;  // pages of a pipe
  size_t burst_ = 0;
  std::vector<Ends> ends_;
};

}  // namespace ridge
