// SPDX-License-Identifier: Apache-2.0
// The two versions of the operators of gradient.h, and the difference that they share. Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_GRADIENT_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_GRADIENT_KERNELS_H_

#include <cmath>

#include "absl/types/span.h"
#include "engine/base/host_device.h"
#include "engine/image/gradient.h"
#include "engine/image/rows.h"

namespace intrawarp {

// No pyramid has more levels: a level halves at least one axis, and an axis can be halved 11 times.
inline constexpr int kMaxPyramidLevels = 34;

// The derivative per index unit along one axis at index i of n: central, one-sided at the faces, 0 when n is 1. `at` is
// the voxel, `stride` the distance to its neighbours.
INTRAWARP_HD inline float AxisDifference(const float* at, size_t stride, int i, int n) {
  if (n == 1) return 0.0f;
  if (i == 0) return at[stride] - at[0];
  if (i == n - 1) return at[0] - *(at - stride);
  return 0.5f * (at[stride] - *(at - stride));
}

// The part of a volume over which its gradient's magnitude is averaged: the voxels that have two neighbours on every
// axis longer than one voxel.
struct GradientInterior {
  Int3 begin, count;
  // Offset of the next voxel along each axis; 0 along an axis of one voxel.
  size_t stride[3];

  INTRAWARP_HD int64_t voxels() const { return int64_t{count.x} * count.y * count.z; }
  INTRAWARP_HD size_t RowOffset(Int3 size, int row) const {
    const int y = begin.y + row % count.y, z = begin.z + row / count.y;
    return (static_cast<size_t>(z) * size.y + y) * size.x + begin.x;
  }
};
INTRAWARP_HD inline GradientInterior MakeGradientInterior(Int3 size) {
  GradientInterior interior;
  size_t stride = 1;
  for (int a = 0; a < 3; ++a) {
    interior.begin[a] = size[a] > 1 ? 1 : 0;
    interior.count[a] = size[a] > 1 ? size[a] - 2 : 1;
    interior.stride[a] = size[a] > 1 ? stride : 0;
    stride *= size[a];
  }
  return interior;
}
// Its rows, none when it is empty.
RowPieces GradientInteriorRows(Int3 size);

// The magnitude of the central-difference gradient at a voxel of the interior; to_physical carries an index gradient to
// LPS and includes the half of the central differences.
INTRAWARP_HD inline float InteriorMagnitude(const float* at, const size_t (&stride)[3], const AffineMapF& to_physical) {
  const Vec3f d{at[stride[0]] - *(at - stride[0]), at[stride[1]] - *(at - stride[1]),
                at[stride[2]] - *(at - stride[2])};
  const Vec3f g = to_physical.LinearTransposed(d);
  return sqrtf(Dot(g, g));
}
AffineMapF HalfPhysicalToIndex(const Geometry& geometry);

// Writes the mean gradient magnitude of each volume, kMaxPyramidLevels at most, to means[i] in device memory. Takes the
// sum of MeanGradientWorkspaceBytes at most. Stream-ordered.
absl::Status EnqueueMeanGradients(const ExecContext& ctx, absl::Span<const ConstVolumeView> volumes, double* means);

INTRAWARP_DECLARE_ON_DEVICES(absl::Status Gradient(const ExecContext& ctx, ConstVolumeView volume, FieldView out);
                             absl::Status EnqueueMeanGradients(const ExecContext& ctx,
                                                               absl::Span<const ConstVolumeView> volumes,
                                                               double* means);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_GRADIENT_KERNELS_H_
