// SPDX-License-Identifier: Apache-2.0
// The coefficients with which cubic B-splines interpolate an image (Unser 1993): a recursive filter along each axis,
// its pole sqrt(3) - 2, the image mirrored about its outermost voxels.
#ifndef INTRAWARP_ENGINE_IMAGE_BSPLINE_FILTER_H_
#define INTRAWARP_ENGINE_IMAGE_BSPLINE_FILTER_H_

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// SampleCubic (sample.h) of the coefficients at a voxel's centre is the image there, to a few roundings. Axes of one
// voxel are left alone. A voxel that is not finite spoils its whole image. `coefficients` lies on the image's grid
// (INVALID_ARGUMENT otherwise), in memory of its own. Needs no workspace. Stream-ordered.
absl::Status PrefilterCubic(const ExecContext& ctx, ConstVolumeView image, VolumeView coefficients);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_BSPLINE_FILTER_H_
