#include "reduce.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace ridge {

namespace {

constexpr size_t kBlock = 1024;  // elements summed before they are rounded: the sums stay in the first cache

// A format is how an element is stored, what it is summed as, and the way between.
template <class T, class Sum = T>
struct Plain {
  using Stored = T;
  using Acc = Sum;
  static Acc load(Stored x) { return static_cast<Acc>(x); }
  static Stored store(Acc x) { return static_cast<Stored>(x); }
};

struct BF16 {
  using Stored = uint16_t;
  using Acc = float;
  static float load(uint16_t x) {
    uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  static uint16_t store(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint32_t even = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    return static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? 0x7FC0U : even);  // NaN stays NaN
  }
};

float half_to_float(uint16_t x) {
#if defined(__F16C__)
  return _cvtsh_ss(x);
#else
  uint32_t sign = (x & 0x8000U) << 16, exponent = (x >> 10) & 31U, mantissa = x & 1023U;
  float value;
  if (exponent == 31) {
    uint32_t bits = sign | 0x7F800000U | mantissa << 13;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  value = exponent ? std::ldexp(static_cast<float>(mantissa + 1024U), static_cast<int>(exponent) - 25)
                   : std::ldexp(static_cast<float>(mantissa), -24);
  return sign ? -value : value;
#endif
}

// Round to nearest, ties to even, into a small float: bits of exponent and mantissa, its bias and its largest value.
template <int kMantissa, int kBias, uint32_t kLargest>
uint32_t narrowed(float x, bool& over) {
  float size = std::fabs(x);
  if (size == 0) return 0;
  int exponent = 0;
  std::frexp(size, &exponent);
  int step = std::max(exponent - 1, 1 - kBias) - kMantissa;
  float units = std::nearbyint(std::ldexp(size, -step));
  uint32_t count = static_cast<uint32_t>(units);
  uint32_t place = static_cast<uint32_t>(step + kMantissa + kBias - 1);  // exponent field less one
  uint32_t bits = (place << kMantissa) + count;
  over = bits > kLargest;
  return bits;
}

uint16_t float_to_half(float x) {
#if defined(__F16C__)
  return _cvtss_sh(x, 0);
#else
  uint16_t sign = std::signbit(x) ? 0x8000U : 0U;
  if (std::isnan(x)) return sign | 0x7E00U;
  if (std::fabs(x) >= 65520.0F) return sign | 0x7C00U;
  bool over = false;
  return sign | static_cast<uint16_t>(narrowed<10, 15, 0x7BFF>(x, over));
#endif
}

struct F16 {
  using Stored = uint16_t;
  using Acc = float;
  static float load(uint16_t x) { return half_to_float(x); }
  static uint16_t store(float x) { return float_to_half(x); }
};

// Eight-bit floats as torch has them: FN and FNUZ know no infinity; FNUZ has one NaN, 0x80, and no negative zero.
template <int kMantissa, int kBias, uint32_t kLargest, bool kInfinite, bool kUnsignedZero>
struct F8 {
  using Stored = uint8_t;
  using Acc = float;
  static constexpr uint32_t kNan = kUnsignedZero ? 0x80U : 0x7FU;
  static float load(uint8_t x) {
    uint32_t bits = x & 127U;
    bool nan = kUnsignedZero ? x == 0x80 : (kInfinite ? bits > kLargest + 1 : bits > kLargest);
    if (nan) return std::numeric_limits<float>::quiet_NaN();
    uint32_t exponent = bits >> kMantissa, mantissa = bits & ((1U << kMantissa) - 1U);
    float value = exponent ? std::ldexp(static_cast<float>(mantissa + (1U << kMantissa)),
                                        static_cast<int>(exponent) - kBias - kMantissa)
                           : std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissa);
    if (kInfinite && bits == kLargest + 1) value = std::numeric_limits<float>::infinity();
    return (x & 128U) ? -value : value;
  }
  static uint8_t store(float x) {
    uint32_t sign = std::signbit(x) ? 128U : 0U;
    if (std::isnan(x)) return static_cast<uint8_t>(kUnsignedZero ? kNan : (sign | kNan));
    bool over = std::isinf(x);
    uint32_t bits = over ? 0U : narrowed<kMantissa, kBias, kLargest>(x, over);
    if (over) return static_cast<uint8_t>(kInfinite ? (sign | (kLargest + 1U)) : (kUnsignedZero ? kNan : (sign | kNan)));
    if (kUnsignedZero && bits == 0) sign = 0;
    return static_cast<uint8_t>(sign | bits);
  }
};
using E4M3FN = F8<3, 7, 0x7E, false, false>;
using E5M2 = F8<2, 15, 0x7B, true, false>;
using E4M3FNUZ = F8<3, 8, 0x7F, false, true>;
using E5M2FNUZ = F8<2, 16, 0x7F, false, true>;

struct Truth {
  using Stored = uint8_t;
  using Acc = uint8_t;
  static uint8_t load(uint8_t x) { return x != 0; }
  static uint8_t store(uint8_t x) { return x != 0; }
};

template <class T>
constexpr bool is_complex = false;
template <class T>
constexpr bool is_complex<std::complex<T>> = true;

template <Op op, class A>
inline A joined(A a, A b) {
  if constexpr (op == Op::kSum || op == Op::kAvg || op == Op::kPremulSum) return static_cast<A>(a + b);
  if constexpr (op == Op::kProduct) return static_cast<A>(a * b);
  if constexpr (op == Op::kMin || op == Op::kMax) {
    if constexpr (std::is_floating_point_v<A>)
      if (a != a) return a;  // a NaN wins, as torch.minimum has it
    if constexpr (op == Op::kMin) return b < a || b != b ? b : a;
    else return a < b || b != b ? b : a;
  }
  if constexpr (op == Op::kBand) return static_cast<A>(a & b);
  if constexpr (op == Op::kBor) return static_cast<A>(a | b);
  if constexpr (op == Op::kBxor) return static_cast<A>(a ^ b);
}

template <Op op, class A>
inline A scaled(A value, double scale) {
  if constexpr (op == Op::kAvg || op == Op::kPremulSum) {
    if constexpr (is_complex<A>) return value * static_cast<typename A::value_type>(scale);
    else return static_cast<A>(value * static_cast<A>(scale));
  }
  return value;
}

// An average of integers is the sum divided and cut off, as torch.div(rounding_mode="trunc") has it.
template <class A>
inline A averaged(A sum, double scale) {
  if constexpr (std::is_integral_v<A>) return static_cast<A>(sum / static_cast<A>(std::llround(1.0 / scale)));
  else if constexpr (is_complex<A>) return sum / static_cast<typename A::value_type>(std::round(1.0 / scale));
  else return sum / static_cast<A>(std::round(1.0 / scale));
}

template <class F, Op op>
void reduce(char* out, const char* const* sources, int count, size_t elements, double scale) {
  using S = typename F::Stored;
  using A = typename F::Acc;
  A sums[kBlock];
  for (size_t begin = 0; begin < elements; begin += kBlock) {
    size_t size = std::min(kBlock, elements - begin);
    const S* first = reinterpret_cast<const S*>(sources[0]) + begin;
    constexpr bool before = op == Op::kPremulSum;
    S* target = reinterpret_cast<S*>(out) + begin;
    if (count == 2 && !before) {
      const S* second = reinterpret_cast<const S*>(sources[1]) + begin;
      for (size_t i = 0; i < size; ++i) {
        A sum = joined<op, A>(F::load(first[i]), F::load(second[i]));
        if constexpr (op == Op::kAvg) sum = averaged<A>(sum, scale);
        target[i] = F::store(sum);
      }
      continue;
    }
    for (size_t i = 0; i < size; ++i) sums[i] = before ? scaled<op, A>(F::load(first[i]), scale) : F::load(first[i]);
    for (int source = 1; source < count; ++source) {
      const S* next = reinterpret_cast<const S*>(sources[source]) + begin;
      for (size_t i = 0; i < size; ++i) {
        A value = before ? scaled<op, A>(F::load(next[i]), scale) : F::load(next[i]);
        sums[i] = joined<op, A>(sums[i], value);
      }
    }
    for (size_t i = 0; i < size; ++i) {
      A sum = sums[i];
      if constexpr (op == Op::kAvg) sum = averaged<A>(sum, scale);
      target[i] = F::store(sum);
    }
  }
}

template <class F>
Reduce arithmetic(Op op) {
  switch (op) {
    case Op::kSum: return reduce<F, Op::kSum>;
    case Op::kAvg: return reduce<F, Op::kAvg>;
    case Op::kProduct: return reduce<F, Op::kProduct>;
    default: break;
  }
  if constexpr (std::is_floating_point_v<typename F::Acc> || is_complex<typename F::Acc>)
    if (op == Op::kPremulSum) return reduce<F, Op::kPremulSum>;
  if constexpr (!is_complex<typename F::Acc>) {
    if (op == Op::kMin) return reduce<F, Op::kMin>;
    if (op == Op::kMax) return reduce<F, Op::kMax>;
  }
  return nullptr;
}

template <class F>
Reduce whole(Op op) {
  switch (op) {
    case Op::kBand: return reduce<F, Op::kBand>;
    case Op::kBor: return reduce<F, Op::kBor>;
    case Op::kBxor: return reduce<F, Op::kBxor>;
    default: return arithmetic<F>(op);
  }
}

// Sums and maxima of truth values are "any", products and minima "all".
Reduce truth(Op op) {
  switch (op) {
    case Op::kSum: case Op::kMax: case Op::kBor: return reduce<Truth, Op::kBor>;
    case Op::kProduct: case Op::kMin: case Op::kBand: return reduce<Truth, Op::kBand>;
    case Op::kBxor: return reduce<Truth, Op::kBxor>;
    default: return nullptr;
  }
}

}  // namespace

Reduce find_reduce(Dtype dtype, Op op) {
  switch (dtype) {
    case Dtype::kU8: return whole<Plain<uint8_t>>(op);
    case Dtype::kI8: return whole<Plain<int8_t>>(op);
    case Dtype::kU16: return whole<Plain<uint16_t>>(op);
    case Dtype::kI16: return whole<Plain<int16_t>>(op);
    case Dtype::kU32: return whole<Plain<uint32_t>>(op);
    case Dtype::kI32: return whole<Plain<int32_t>>(op);
    case Dtype::kU64: return whole<Plain<uint64_t>>(op);
    case Dtype::kI64: return whole<Plain<int64_t>>(op);
    case Dtype::kBool: return truth(op);
    case Dtype::kF16: return arithmetic<F16>(op);
    case Dtype::kBF16: return arithmetic<BF16>(op);
    case Dtype::kF32: return arithmetic<Plain<float>>(op);
    case Dtype::kF64: return arithmetic<Plain<double>>(op);
    case Dtype::kC64: return arithmetic<Plain<std::complex<float>>>(op);
    case Dtype::kC128: return arithmetic<Plain<std::complex<double>>>(op);
    case Dtype::kE4M3FN: return arithmetic<E4M3FN>(op);
    case Dtype::kE5M2: return arithmetic<E5M2>(op);
    case Dtype::kE4M3FNUZ: return arithmetic<E4M3FNUZ>(op);
    case Dtype::kE5M2FNUZ: return arithmetic<E5M2FNUZ>(op);
    default: return nullptr;
  }
}

}  // namespace ridge
