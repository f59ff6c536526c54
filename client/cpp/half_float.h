// SPDX-License-Identifier: Apache-2.0
// IEEE 754 binary16 as float, without branches, so that compilers make vectors of a loop over it. (Where the
// processor's own conversion may not be assumed, _Float16 is a call for every number.)
#ifndef INTRAWARP_CLIENT_CPP_HALF_FLOAT_H_
#define INTRAWARP_CLIENT_CPP_HALF_FLOAT_H_

#include <bit>
#include <cstdint>

namespace intrawarp::client {

// Exact; a NaN stays a NaN, with its payload.
inline float FloatOfHalf(uint16_t half) {
  constexpr uint32_t kMantissaBits = 23 - 10;   // that a float has more
  constexpr uint32_t kBias = (127 - 15) << 23;  // that a float's exponent has more
  constexpr uint32_t kHalfExponent = 0x7c00 << kMantissaBits;
  const uint32_t magnitude = (half & 0x7fffu) << kMantissaBits;
  const uint32_t exponent = magnitude & kHalfExponent;
  // Infinity and NaN have the largest exponent in both formats.
  const uint32_t normal = magnitude + kBias + (exponent == kHalfExponent ? kBias : 0);
  // A subnormal number is m 2^-24 and has no leading 1: the float (1 + m / 2^10) 2^-14 less 2^-14.
  const uint32_t smallest = kBias + (1u << 23);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + smallest) - std::bit_cast<float>(smallest));
  const uint32_t sign = (half & 0x8000u) << 16;
  return std::bit_cast<float>(sign | (exponent == 0 ? subnormal : normal));
}

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_HALF_FLOAT_H_
