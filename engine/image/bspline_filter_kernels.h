// SPDX-License-Identifier: Apache-2.0
// The two versions of PrefilterCubic, and the recursion that they share. Internal.
//
// Along a line s of n voxels, mirrored beyond its ends:
//   p[i] = 6 s[i] + z p[i - 1],  c[i] = z (c[i + 1] - p[i]),  z = sqrt(3) - 2.
// Either recursion forgets where it began by a factor of |z| = 0.27 a step: from any start, kFilterWarmUp steps
// earlier, it is exact in float32. At the last voxel the mirror gives c[n - 1] = z / (z^2 - 1) (p[n - 1] + z p[n - 2]).
#ifndef INTRAWARP_ENGINE_IMAGE_BSPLINE_FILTER_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_BSPLINE_FILTER_KERNELS_H_

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

inline constexpr float kFilterPole = -0.26794919243112270647f;
inline constexpr float kFilterGain = 6;
// z / (z^2 - 1).
inline constexpr float kFilterEnd = 0.28867513459481288225f;
// For a line that goes on as it is, c = p z / (z - 1).
inline constexpr float kFilterSteady = 0.21132486540518711775f;
inline constexpr int kFilterWarmUp = 14;

// The voxel that lies at index i of a mirrored line, n > 1.
INTRAWARP_HD inline int MirroredVoxel(int i, int n) {
  if (i >= 0 && i < n) return i;
  const int period = 2 * (n - 1);
  const int r = (i < 0 ? -i : i) % period;
  return r < n ? r : period - r;
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status PrefilterCubic(const ExecContext& ctx, const float* image, Int3 size,
                                                         float* coefficients);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_BSPLINE_FILTER_KERNELS_H_
