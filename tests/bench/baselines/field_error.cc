// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/field_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/status_macros.h"

namespace intrawarp::baselines {
namespace {

// The rows of one plane of floats, `floats` each, packed.
absl::StatusOr<std::vector<float>> DownloadRows(const ExecContext& ctx, const float* plane, int64_t floats,
                                                int64_t rows, int64_t row_stride) {
  std::vector<float> packed(rows * floats);
  for (int64_t r = 0; r < rows; ++r) {
    INTRAWARP_RETURN_IF_ERROR(
        ctx.device().Copy(&packed[r * floats], plane + r * row_stride * floats, floats * sizeof(float), ctx.stream()));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return packed;
}

void Accumulate(const float* values, int64_t step, const double* expected, int64_t count, FieldError* error) {
  for (int64_t i = 0; i < count; ++i) {
    double difference = std::abs(values[i * step] - expected[3 * i]);
    if (!(difference >= 0)) difference = std::numeric_limits<double>::infinity();
    error->mean += difference;
    error->max = std::max(error->max, difference);
  }
}

}  // namespace

int64_t ComparedRowStride(Int3 size) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  return (voxels >> 20) | 1;
}

absl::StatusOr<FieldError> CompareRows(const ExecContext& ctx, const float* field, FieldLayout layout, Int3 size,
                                       int64_t row_stride, const std::vector<double>& reference) {
  const int64_t rows = (int64_t{size.y} * size.z + row_stride - 1) / row_stride, voxels = rows * size.x;
  const bool planar = layout.voxel == 1;
  std::vector<float> packed;
  FieldError error;
  for (int c = 0; c < 3; ++c) {
    if (c == 0 || planar) {
      INTRAWARP_ASSIGN_OR_RETURN(packed, DownloadRows(ctx, field + (planar ? c * layout.component : 0),
                                                      size.x * layout.voxel, rows, row_stride));
    }
    Accumulate(&packed[planar ? 0 : c * layout.component], layout.voxel, &reference[c], voxels, &error);
  }
  error.mean /= 3.0 * voxels;
  return error;
}

}  // namespace intrawarp::baselines
