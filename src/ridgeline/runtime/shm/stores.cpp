#include "stores.hpp"

#include <chrono>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ridge {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kLeast = 2048;      // bytes from which it matters
constexpr size_t kMostStreamed = 160 << 10;  // bytes: more are found in time by the core itself
constexpr size_t kSmall = 96 << 10;  // bytes: lines of so few are still with whoever read them
constexpr double kFarNs[] = {6, 12};  // a line of 64 bytes, of small and of large puts; near ones take 1 to 5
constexpr uint32_t kLooks = 64;      // puts between looks at ordinary stores
constexpr int kSure = 2;             // looks: one may have lost its core

int64_t nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

namespace {

#if defined(__AVX2__)
void store_line(char* to, const char* from, bool past_cache) {
  for (int half = 0; half < 2; ++half) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + half);
    if (past_cache) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + half, some);
    else _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + half, some);
  }
}
#endif

// Lines of `streams` equal parts in turns: whole lines of it are copied, and how many bytes they are is told.
template <size_t streams, bool past_cache>
size_t copy_lines(char* to, const char* from, size_t size) {
#if defined(__AVX2__)
  const size_t lines = size / streams / kLine;
  const size_t part = (streams > 1 ? (lines - 1) | 1 : lines) * kLine;  // odd: streams in sets of their own in the cache
  for (size_t at = 0; at < part; at += kLine)
    for (size_t stream = 0; stream < streams; ++stream)
      store_line(to + stream * part + at, from + stream * part + at, past_cache);
  if (past_cache) _mm_sfence();
  return part * streams;
#else
  (void)to, (void)from, (void)size;
  return 0;
#endif
}

template <size_t streams>
void copied(char* to, const char* from, size_t size, bool past_cache) {
  if (size == 0 || to == from) return;
  size_t done = 0;
  if (past_cache && size >= kLeast) {
    done = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, done);
    done += copy_lines<streams, true>(to + done, from + done, size - done);
  } else if (streams > 1 && size >= kLeast) {
    done = copy_lines<streams, false>(to, from, size);
  }
  std::memcpy(to + done, from + done, size - done);
}

}  // namespace

void copy(char* to, const char* from, size_t size, bool past_cache) { copied<1>(to, from, size, past_cache); }

void get(char* to, const char* from, size_t size, bool past_cache) {
  if (size <= kMostStreamed) copied<4>(to, from, size, past_cache);
  else copied<1>(to, from, size, past_cache);
}

void Stores::put_twice(char* to, char* also, const char* from, size_t size) {
#if defined(__AVX2__)
  const State& state = states_[size > kSmall];
  if (size >= kLeast && state.slow >= kSure && state.puts != 0 && reinterpret_cast<uintptr_t>(to) % kLine == 0) {
    --states_[size > kSmall].puts;
    const size_t whole = size / kLine * kLine;
    for (size_t at = 0; at < whole; at += kLine) {
      store_line(to + at, from + at, true);
      store_line(also + at, from + at, false);
    }
    _mm_sfence();
    std::memcpy(to + whole, from + whole, size - whole);
    std::memcpy(also + whole, from + whole, size - whole);
    return;
  }
#endif
  put(to, from, size);
  copy(also, from, size, false);
}

void Stores::put(char* to, const char* from, size_t size) {
  if (size < kLeast) {
    if (size != 0) std::memcpy(to, from, size);
    return;
  }
  State& state = states_[size > kSmall];
  if (state.slow >= kSure && state.puts != 0) {
    --state.puts;
    return copy(to, from, size, true);
  }
  const int64_t began = nanoseconds();
  std::memcpy(to, from, size);
  const double spent = static_cast<double>(nanoseconds() - began);
  state.slow = spent * kLine > kFarNs[size > kSmall] * static_cast<double>(size) ? state.slow + 1 : 0;
  state.puts = kLooks;
}

}  // namespace ridge
