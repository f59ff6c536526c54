// SPDX-License-Identifier: Apache-2.0
// Resampling a moving image on a fixed grid. The transform maps fixed points to moving points.
#ifndef INTRAWARP_ENGINE_IMAGE_WARP_H_
#define INTRAWARP_ENGINE_IMAGE_WARP_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// kCubic is the cubic B-spline that interpolates the voxels (bspline_filter.h); between the outermost voxel centres and
// the domain's edge it is constant, as the others are.
enum class Interpolation { kLinear, kNearest, kCubic };

// Workspace of the operators below for kCubic, which need none otherwise: the moving image's coefficients.
size_t CubicWarpWorkspaceBytes(const Geometry& moving);

// out(p) = moving(transform(p)) for an affine map in LPS mm; `fill` where transform(p) is outside moving's domain.
// Stream-ordered.
absl::Status WarpAffine(const ExecContext& ctx, ConstVolumeView moving, const AffineMap& transform,
                        Interpolation interpolation, float fill, VolumeView out);

// out(p) = moving(p + displacement(p)); out lies on the displacement's grid (INVALID_ARGUMENT otherwise). A
// displacement that is not finite has no source and gives `fill`. Stream-ordered.
absl::Status WarpField(const ExecContext& ctx, ConstVolumeView moving, ConstFieldView displacement,
                       Interpolation interpolation, float fill, VolumeView out);

// What kCubic samples in the place of the moving image: its coefficients, taken from the context's arena, where they
// stay until the caller's ArenaScope ends. Other interpolations get the moving image itself.
absl::StatusOr<ConstVolumeView> PrepareForSampling(const ExecContext& ctx, ConstVolumeView moving,
                                                   Interpolation interpolation);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_WARP_H_
