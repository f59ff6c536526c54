// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/jacobian.h"

#include "engine/base/status_macros.h"
#include "engine/quality/jacobian_kernels.h"
#include "engine/transform/control_grid.h"

namespace intrawarp {

absl::StatusOr<JacobianStatistics> MeasureJacobian(const ExecContext& ctx, const Transform& transform,
                                                   const Geometry& fixed) {
  const double determinant = Determinant(transform.affine());
  if (transform.is_affine()) {
    return JacobianStatistics{determinant, determinant, determinant > 0 ? 0.0 : 1.0};
  }
  JacobianInput in;
  in.size = fixed.size;
  in.affine_determinant = determinant;

  ArenaScope scope(ctx.arena());
  if (transform.has_control_grid()) {
    INTRAWARP_ASSIGN_OR_RETURN(float* determinants, ctx.arena().Allocate<float>(fixed.voxels()));
    INTRAWARP_RETURN_IF_ERROR(EvaluateControlGridDeterminant(ctx, transform.control_grid(), {determinants, fixed}));
    in.determinant = determinants;
  } else {
    const ConstFieldView u = transform.displacement();
    in.displacement = u.data;
    in.displacement_size = u.geometry.size;
    in.same_grid = u.geometry == fixed;
    in.to_domain = Compose(PhysicalToIndex(u.geometry), IndexToPhysical(fixed));
    in.to_index = PhysicalToIndex(fixed);
  }
  INTRAWARP_ASSIGN_OR_RETURN(JacobianSums * partial, ctx.arena().Allocate<JacobianSums>(SumPieces(fixed.voxels())));
  INTRAWARP_ASSIGN_OR_RETURN(JacobianSums * on_device, ctx.arena().Allocate<JacobianSums>(1));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, SumJacobian, in, partial, on_device));
  JacobianSums total;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&total, on_device, sizeof(total), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return JacobianStatistics{total.minimum, total.maximum,
                            static_cast<double>(total.nonpositive) / static_cast<double>(fixed.voxels())};
}

size_t JacobianWorkspaceBytes(const Geometry& fixed, bool has_control_grid) {
  return (has_control_grid ? Arena::Rounded(fixed.voxels() * sizeof(float)) : 0) +
         Arena::Rounded(SumPieces(fixed.voxels()) * sizeof(JacobianSums)) + Arena::Rounded(sizeof(JacobianSums));
}

absl::StatusOr<InverseConsistency> MeasureInverseConsistency(const ExecContext& ctx, const Transform& transform) {
  const ConstFieldView forward = transform.displacement();
  InverseInput in;
  in.forward = forward.data;
  in.backward = transform.backward().data;
  in.size = forward.geometry.size;
  in.to_index = PhysicalToIndex(forward.geometry);

  ArenaScope scope(ctx.arena());
  const int64_t pieces = SumPieces(forward.geometry.voxels());
  INTRAWARP_ASSIGN_OR_RETURN(InverseSums * partial, ctx.arena().Allocate<InverseSums>(pieces));
  INTRAWARP_ASSIGN_OR_RETURN(InverseSums * on_device, ctx.arena().Allocate<InverseSums>(1));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, SumInverse, in, partial, on_device));
  InverseSums total;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&total, on_device, sizeof(total), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return InverseConsistency{total.count > 0 ? total.distance / static_cast<double>(total.count) : 0, total.maximum};
}

size_t InverseConsistencyWorkspaceBytes(const Geometry& domain) {
  return Arena::Rounded(SumPieces(domain.voxels()) * sizeof(InverseSums)) + Arena::Rounded(sizeof(InverseSums));
}

}  // namespace intrawarp
