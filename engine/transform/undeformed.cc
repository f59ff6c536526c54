// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/undeformed.h"

#include <optional>
#include <utility>

#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

absl::StatusOr<Buffer> ZeroVectors(const ExecContext& ctx, const Geometry& grid) {
  const size_t bytes = 3 * sizeof(float) * grid.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(Buffer zeros, ctx.device().Allocate(bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(zeros.as<float>(), 0, bytes, ctx.stream()));
  return zeros;
}

}  // namespace

absl::StatusOr<Transform> Undeformed(const ExecContext& ctx, Transform transform) {
  if (transform.is_affine()) return transform;
  const AffineMap affine = transform.affine();
  const std::optional<Geometry> domain = transform.domain();
  const bool has_velocity = transform.has_velocity();
  std::optional<Geometry> grid;
  if (transform.has_control_grid()) grid = transform.control_grid().geometry;
  transform = Transform(affine);
  if (grid) {
    INTRAWARP_ASSIGN_OR_RETURN(Buffer control_points, ZeroVectors(ctx, *grid));
    return Transform(affine, std::move(control_points), *grid, domain);
  }
  if (has_velocity) {
    VelocityFields fields;
    for (Buffer* field : {&fields.velocity, &fields.forward, &fields.backward}) {
      INTRAWARP_ASSIGN_OR_RETURN(*field, ZeroVectors(ctx, *domain));
    }
    return Transform(affine, std::move(fields), *domain);
  }
  INTRAWARP_ASSIGN_OR_RETURN(Buffer displacement, ZeroVectors(ctx, *domain));
  return Transform(std::move(displacement), *domain);
}

}  // namespace intrawarp
