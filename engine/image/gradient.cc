// SPDX-License-Identifier: Apache-2.0
#include "engine/image/gradient.h"

#include "engine/base/status_macros.h"
#include "engine/image/gradient_kernels.h"

namespace intrawarp {

RowPieces GradientInteriorRows(Int3 size) {
  const GradientInterior interior = MakeGradientInterior(size);
  return MakeRowPieces(interior.voxels() > 0 ? interior.count.y * interior.count.z : 0, interior.count.x);
}

AffineMapF HalfPhysicalToIndex(const Geometry& geometry) {
  AffineMap half = PhysicalToIndex(geometry);
  for (auto& row : half.m)
    for (double& entry : row) entry *= 0.5;
  return half.Cast<float>();
}

size_t MeanGradientWorkspaceBytes(const Geometry& geometry) {
  return Arena::Rounded(sizeof(double)) + Arena::Rounded(GradientInteriorRows(geometry.size).pieces * sizeof(double));
}

absl::Status Gradient(const ExecContext& ctx, ConstVolumeView volume, FieldView out) {
  if (!SameGrid(volume.geometry, out.geometry)) return absl::InvalidArgumentError("out: not on the volume's grid");
  return INTRAWARP_DISPATCH(ctx, Gradient, volume, out);
}

absl::Status EnqueueMeanGradients(const ExecContext& ctx, absl::Span<const ConstVolumeView> volumes, double* means) {
  if (volumes.size() > kMaxPyramidLevels) return absl::InternalError("more levels than a pyramid can have");
  return INTRAWARP_DISPATCH(ctx, EnqueueMeanGradients, volumes, means);
}

absl::StatusOr<double> MeanGradientMagnitude(const ExecContext& ctx, ConstVolumeView volume) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(double* device_mean, ctx.arena().Allocate<double>(1));
  INTRAWARP_RETURN_IF_ERROR(EnqueueMeanGradients(ctx, absl::MakeConstSpan(&volume, 1), device_mean));
  double mean = 0;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&mean, device_mean, sizeof(mean), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return mean;
}

}  // namespace intrawarp
