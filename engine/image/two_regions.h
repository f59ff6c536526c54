// SPDX-License-Identifier: Apache-2.0
// Splits a volume into two regions whose boundary is short: each voxel has a cost of lying in the second region, and
// the boundary costs by its area.
//
//   share = the minimum over all shares from 0 to 1 of
//           sum_i cost_i share_i + weight sum_i |(share_(i + a) - share_i) h_a|,  a = x, y, z
//
// with h_a the mean voxel side (the geometric mean over axes of several voxels) over the side of axis a, and
// differences of 0 at the last voxel of an axis. The problem is convex, and where the share lies above a half is a
// region of least cost (Chan, Esedoglu and Nikolova 2006, "Algorithms for finding global minimizers of image
// segmentation and denoising models"). It is solved by so many primal-dual steps (Chambolle and Pock 2011).
#ifndef INTRAWARP_ENGINE_IMAGE_TWO_REGIONS_H_
#define INTRAWARP_ENGINE_IMAGE_TWO_REGIONS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// `share` lies on the grid of `cost` and is not the same memory; its values are 0 to 1. Costs are finite. A voxel whose
// cost is 0 goes with its neighbours. The function looks at the checkpoint every few steps, with `progress` and the
// number of steps as its iteration, and returns the last decision: after kStop `share` holds the result of the steps so
// far; CANCELLED for kCancel. Waits for the stream. Bit-identical from run to run; CPU and CUDA agree to the rounding
// of their steps. Workspace: SplitRegionsWorkspaceBytes. INVALID_ARGUMENT: a weight that is not finite or negative,
// fewer than one iteration, another grid.
absl::StatusOr<Decision> SplitRegions(const ExecContext& ctx, ConstVolumeView cost, double weight, int iterations,
                                      Progress progress, VolumeView share);
int64_t SplitRegionsWorkspaceBytes(const Geometry& geometry);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_TWO_REGIONS_H_
