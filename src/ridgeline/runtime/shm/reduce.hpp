// Sums and their kin over several ranks' elements: sources in order of rank, so that every rank gets the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridge {

enum class Dtype : uint8_t {
  kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64, kBool, kF16, kBF16, kF32, kF64, kC32, kC64, kC128,
  kE4M3FN, kE5M2, kE4M3FNUZ, kE5M2FNUZ, kE8M0, kNone
};

enum class Op : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum, kNone };

// out may be one of the sources. scale: of kAvg one over the ranks, of kPremulSum the factor.
using Reduce = void (*)(char* out, const char* const* sources, int count, size_t elements, double scale);

// nullptr where the op means nothing for the dtype.
Reduce find_reduce(Dtype dtype, Op op);

}  // namespace ridge
