#include "stores.hpp"

#include <chrono>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ridge {

namespace {

constexpr size_t kLeast = 2048;      // bytes from which it matters
constexpr double kFarNs = 6;         // a line of 64 bytes; near ones take 1 to 2, from the memory 3 to 5
constexpr uint32_t kLooks = 64;      // puts between looks at ordinary stores
constexpr int kSure = 2;             // looks: one may have lost its core

int64_t nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void copy(char* to, const char* from, size_t size, bool past_cache) {
#if defined(__AVX2__)
  if (past_cache && size >= 1024) {
    size_t ahead = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
    std::memcpy(to, from, ahead);
    to += ahead, from += ahead, size -= ahead;
    size_t lines = size / 128;
    for (size_t line = 0; line < lines; ++line, to += 128, from += 128)
      for (int i = 0; i < 4; ++i)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i,
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i));
    _mm_sfence();
    size -= lines * 128;
  }
#else
  (void)past_cache;
#endif
  if (size != 0 && to != from) std::memcpy(to, from, size);
}

void Stores::put(char* to, const char* from, size_t size) {
  if (size < kLeast) {
    if (size != 0) std::memcpy(to, from, size);
    return;
  }
  if (slow_ >= kSure && puts_ != 0) {
    --puts_;
    return copy(to, from, size, true);
  }
  const int64_t began = nanoseconds();
  std::memcpy(to, from, size);
  const double spent = static_cast<double>(nanoseconds() - began);
  slow_ = spent * 64 > kFarNs * static_cast<double>(size) ? slow_ + 1 : 0;
  puts_ = kLooks;
}

}  // namespace ridge
