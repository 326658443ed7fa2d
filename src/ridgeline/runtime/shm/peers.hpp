// One copy between two processes without a pipe: a rank reads and writes another's memory (process_vm_readv).
//
// It needs the right to attach to the other process, which is tried before it is relied on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridge {

// False where the kernel refuses: no right, or nobody and nothing there any more.
bool read_peer(int pid, char* to, uint64_t from, size_t size);
bool write_peer(int pid, uint64_t to, const char* from, size_t size);

}  // namespace ridge
