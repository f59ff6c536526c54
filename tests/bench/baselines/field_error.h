// SPDX-License-Identifier: Apache-2.0
// How far a float32 field of three components in device memory is from a float64 reference.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_FIELD_ERROR_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_FIELD_ERROR_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"

namespace intrawarp::baselines {

// Component c of voxel v is data[v * voxel + c * component].
struct FieldLayout {
  int64_t voxel, component;
};
inline FieldLayout InterleavedLayout(int components) { return {components, 1}; }
inline FieldLayout PlanarLayout(Int3 size) { return {1, int64_t{size.x} * size.y * size.z}; }

// A NaN counts as infinite.
struct FieldError {
  double mean = 0, max = 0;
};

// Rows of voxels that are compared: every stride-th, an odd number, so that about 2^20 voxels are; all of them in
// volumes of up to 2^20.
int64_t ComparedRowStride(Int3 size);

// Over the components of the voxels in every `row_stride`-th row; `reference` holds those rows, x y z interleaved.
absl::StatusOr<FieldError> CompareRows(const ExecContext& ctx, const float* field, FieldLayout layout, Int3 size,
                                       int64_t row_stride, const std::vector<double>& reference);

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_FIELD_ERROR_H_
