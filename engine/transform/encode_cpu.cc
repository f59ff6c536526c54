// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "engine/device/parallel.h"
#include "engine/transform/encode_kernels.h"

namespace intrawarp::cpu {
namespace {

constexpr int64_t kPiece = int64_t{1} << 16;

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
        static_cast<_Float16*>(out)[i] = static_cast<_Float16>(values[i]);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
