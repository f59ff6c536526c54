// SPDX-License-Identifier: Apache-2.0
// The two versions of the operators of warp.h, and what they share. Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_WARP_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_WARP_KERNELS_H_

#include <type_traits>

#include "engine/base/host_device.h"
#include "engine/image/sample.h"
#include "engine/image/warp.h"

namespace intrawarp {

// The moving index of voxel x of a row: start + x * step. The start is computed in float64, so that the index is exact
// to a few float32 roundings of itself however far from the origin the grids lie.
struct IndexRow {
  Vec3f start, step;

  INTRAWARP_HD IndexRow(const AffineMap& fixed_to_moving, int y, int z) {
    const Vec3d s = fixed_to_moving({0.0, static_cast<double>(y), static_cast<double>(z)});
    start = {static_cast<float>(s.x), static_cast<float>(s.y), static_cast<float>(s.z)};
    step = {static_cast<float>(fixed_to_moving.m[0][0]), static_cast<float>(fixed_to_moving.m[1][0]),
            static_cast<float>(fixed_to_moving.m[2][0])};
  }
  INTRAWARP_HD Vec3f operator()(int x) const { return start + static_cast<float>(x) * step; }
};

// `data` holds coefficients for kCubic, voxels otherwise.
template <Interpolation kInterpolation>
INTRAWARP_HD float SampleOr(const float* data, Int3 size, Vec3f index, float fill) {
  if (!IsInside(size, index)) return fill;
  if constexpr (kInterpolation == Interpolation::kNearest) return data[NearestOffset(size, index)];
  if constexpr (kInterpolation == Interpolation::kCubic) return SampleCubic(data, size, index);
  return SampleLinear(data, size, index);
}

// body(std::integral_constant<Interpolation, ...>()) for an interpolation that is known when the program runs.
template <typename Body>
void WithInterpolation(Interpolation interpolation, const Body& body) {
  switch (interpolation) {
    case Interpolation::kLinear:
      return body(std::integral_constant<Interpolation, Interpolation::kLinear>());
    case Interpolation::kNearest:
      return body(std::integral_constant<Interpolation, Interpolation::kNearest>());
    case Interpolation::kCubic:
      return body(std::integral_constant<Interpolation, Interpolation::kCubic>());
  }
}

// Both operators work with index maps instead of physical ones: the moving index of fixed voxel i is
// index_map(i) + displacement_map.Linear(u(i)), with u = 0 when `displacement` is null. `moving` holds coefficients for
// kCubic.
struct WarpTask {
  const float* moving;
  Int3 moving_size;
  AffineMap index_map;
  const float* displacement;
  AffineMapF displacement_map;
  float fill;
  float* out;
  Int3 out_size;
};

namespace cpu {
// A row of task.out_size.x linear samples: `index` is the row's, `displacement` of its first voxel, or null.
void WarpLinear(const WarpTask& task, const IndexRow& index, const float* displacement, float* out);
}  // namespace cpu

INTRAWARP_DECLARE_ON_DEVICES(absl::Status Warp(const ExecContext& ctx, const WarpTask& task,
                                               Interpolation interpolation);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_WARP_KERNELS_H_
