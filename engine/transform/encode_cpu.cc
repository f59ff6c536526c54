// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/transform/encode_kernels.h"

namespace intrawarp::cpu {
namespace {

constexpr int64_t kPiece = int64_t{1} << 16;

// IEEE 754 binary16, rounded to nearest, ties to even; a NaN stays one. In integers and without branches: _Float16 is a
// call for every number where the processor's own conversion may not be assumed, and clang 14 has none for x86-64.
inline uint16_t HalfOf(float value) {
  constexpr uint32_t kMantissaBits = 23 - 10;   // that a float has more
  constexpr uint32_t kBias = (127 - 15) << 23;  // that a float's exponent has more
  constexpr uint32_t kInfinity = 0xff << 23;
  constexpr uint32_t kTooLarge = (127 + 16) << 23;  // 2^16: the largest exponent of a half is 15
  constexpr uint32_t kNormal = (127 - 14) << 23;    // 2^-14: the smallest half with a leading 1
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Half a unit less one, and one more for an odd mantissa; the carry goes into the exponent, up to infinity.
  const uint32_t rounding = (1u << (kMantissaBits - 1)) - 1 + ((magnitude >> kMantissaBits) & 1);
  const uint32_t normal = (magnitude - kBias + rounding) >> kMantissaBits;
  // A float between 0.5 and 1 has units of 2^-24, as a subnormal half has: the sum is rounded to them.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t nan = 0x7e00u | ((magnitude >> kMantissaBits) & 0x3ffu);
  const uint32_t special = magnitude > kInfinity ? nan : 0x7c00u;
  const uint32_t finite = magnitude < kNormal ? subnormal : normal;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | (magnitude >= kTooLarge ? special : finite));
}

}  // namespace

absl::Status LargestMagnitude(const ExecContext&, const float* values, int64_t count, float* largest) {
  *largest = OrderedReduce<float>((count + kPiece - 1) / kPiece, 0.0f,
                                  [&](int64_t piece) {
                                    float most = 0;
                                    const int64_t end = std::min(count, (piece + 1) * kPiece);
                                    for (int64_t i = piece * kPiece; i < end; ++i)
                                      most = std::max(most, std::abs(values[i]));
                                    return most;
                                  },
                                  [](float& total, float part) { total = std::max(total, part); });
  return absl::OkStatus();
}

absl::Status EncodeComponents(const ExecContext&, const float* values, int64_t count, const ComponentEncoding& encoding,
                              void* out) {
  const float units_per_mm = static_cast<float>(1 / encoding.scale);
  ParallelFor((count + kPiece - 1) / kPiece, [&](int64_t piece) {
    const int64_t end = std::min(count, (piece + 1) * kPiece);
    for (int64_t i = piece * kPiece; i < end; ++i) {
      if (encoding.type == ComponentType::kInt16) {
        static_cast<int16_t*>(out)[i] = ToInt16(values[i], units_per_mm);
      } else {
        static_cast<uint16_t*>(out)[i] = HalfOf(values[i]);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
