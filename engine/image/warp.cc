// SPDX-License-Identifier: Apache-2.0
#include "engine/image/warp.h"

#include "engine/base/status_macros.h"
#include "engine/image/bspline_filter.h"
#include "engine/image/warp_kernels.h"

namespace intrawarp {
namespace {

absl::Status Warp(const ExecContext& ctx, WarpTask task, ConstVolumeView moving, Interpolation interpolation) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ConstVolumeView samples, PrepareForSampling(ctx, moving, interpolation));
  task.moving = samples.data;
  return INTRAWARP_DISPATCH(ctx, Warp, task, interpolation);
}

}  // namespace

size_t CubicWarpWorkspaceBytes(const Geometry& moving) { return Arena::Rounded(moving.voxels() * sizeof(float)); }

absl::StatusOr<ConstVolumeView> PrepareForSampling(const ExecContext& ctx, ConstVolumeView moving,
                                                   Interpolation interpolation) {
  if (interpolation != Interpolation::kCubic) return moving;
  INTRAWARP_ASSIGN_OR_RETURN(float* coefficients, ctx.arena().Allocate<float>(moving.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(PrefilterCubic(ctx, moving, {coefficients, moving.geometry}));
  return ConstVolumeView{coefficients, moving.geometry};
}

absl::Status WarpAffine(const ExecContext& ctx, ConstVolumeView moving, const AffineMap& transform,
                        Interpolation interpolation, float fill, VolumeView out) {
  const AffineMap index_map =
      Compose(PhysicalToIndex(moving.geometry), Compose(transform, IndexToPhysical(out.geometry)));
  const WarpTask task{moving.data, moving.geometry.size, index_map, nullptr, {}, fill, out.data, out.geometry.size};
  return Warp(ctx, task, moving, interpolation);
}

absl::Status WarpField(const ExecContext& ctx, ConstVolumeView moving, ConstFieldView displacement,
                       Interpolation interpolation, float fill, VolumeView out) {
  if (!SameGrid(displacement.geometry, out.geometry)) {
    return absl::InvalidArgumentError("out: not on the displacement's grid");
  }
  const AffineMap to_moving = PhysicalToIndex(moving.geometry);
  const WarpTask task{moving.data,       moving.geometry.size,    Compose(to_moving, IndexToPhysical(out.geometry)),
                      displacement.data, to_moving.Cast<float>(), fill,
                      out.data,          out.geometry.size};
  return Warp(ctx, task, moving, interpolation);
}

}  // namespace intrawarp
