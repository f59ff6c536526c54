// SPDX-License-Identifier: Apache-2.0
// The CPU and CUDA versions of the operators in transform.h; arguments have been validated. Internal to this room.
#ifndef INTRAWARP_ENGINE_TRANSFORM_TRANSFORM_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_TRANSFORM_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/image/sample.h"
#include "engine/image/warp_kernels.h"
#include "engine/transform/displacement.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// EvaluateAffineField: out = field(voxel). EvaluateField: out = map(voxel). For the voxels [first, first + count) of a
// grid of `size`, count > 0.
INTRAWARP_DECLARE_ON_DEVICES(
    absl::Status EvaluateAffineField(const ExecContext& ctx, const AffineMap& field, Int3 size, int64_t first,
                                     int64_t count, float* out);
    absl::Status EvaluateField(const ExecContext& ctx, const ForwardMap& map, Int3 size, int64_t first, int64_t count,
                               float* out);
    absl::Status WarpThrough(const ExecContext& ctx, const ForwardMap& map, ConstVolumeView moving,
                             Interpolation interpolation, float fill, VolumeView out);
    absl::Status WarpThrough(const ExecContext& ctx, const InverseMap& map, ConstVolumeView moving,
                             Interpolation interpolation, float fill, VolumeView out);
    absl::Status MapThrough(const ExecContext& ctx, const ForwardMap& map, absl::Span<double> points);
    absl::Status MapThrough(const ExecContext& ctx, const InverseMap& map, absl::Span<double> points);)

// The warped value of a voxel: moving (its coefficients for kCubic) at the mapped index, or fill.
template <Interpolation kInterpolation, typename Map>
INTRAWARP_HD inline float WarpVoxel(const Map& map, Int3 voxel, const float* moving, Int3 moving_size, float fill) {
  Vec3d mapped;
  if (!map(ToVec3d(voxel), &mapped)) return fill;
  return SampleOr<kInterpolation>(moving, moving_size, ToVec3f(mapped), fill);
}

// Maps one point in place; NaN NaN NaN where the map has no value.
template <typename Map>
INTRAWARP_HD inline void MapPoint(const Map& map, double* point) {
  Vec3d mapped;
  if (!map({point[0], point[1], point[2]}, &mapped)) mapped = {NAN, NAN, NAN};
  point[0] = mapped.x;
  point[1] = mapped.y;
  point[2] = mapped.z;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_TRANSFORM_KERNELS_H_
