// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/velocity.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/transform/displacement.h"
#include "engine/transform/transform_kernels.h"
#include "engine/transform/vector_field.h"

namespace intrawarp {
namespace {

size_t FieldBytes(Int3 size) { return 3 * sizeof(float) * size.x * size.y * size.z; }

}  // namespace

absl::StatusOr<Transform> MakeVelocityTransform(const ExecContext& ctx, const AffineMap& affine, Buffer velocity,
                                                const Geometry& domain) {
  const Int3 size = domain.size;
  const size_t bytes = FieldBytes(size);
  VelocityFields fields;
  fields.velocity = std::move(velocity);
  INTRAWARP_ASSIGN_OR_RETURN(fields.forward, ctx.device().Allocate(bytes, ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(fields.backward, ctx.device().Allocate(bytes, ctx.stream()));

  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(float* const in_voxels, ctx.arena().Allocate<float>(3 * domain.voxels()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(in_voxels, fields.velocity.as<float>(), bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(MapVectors(ctx, PhysicalToIndex(domain).Cast<float>(), size, in_voxels));
  INTRAWARP_RETURN_IF_ERROR(VelocityDisplacement(ctx, in_voxels, 1, {fields.forward.as<float>(), domain}));
  INTRAWARP_RETURN_IF_ERROR(VelocityDisplacement(ctx, in_voxels, -1, {fields.backward.as<float>(), domain}));
  return Transform(affine, std::move(fields), domain);
}

int64_t VelocityTransformWorkspaceBytes(Int3 size) {
  return Arena::Rounded(FieldBytes(size)) + VelocityDisplacementWorkspaceBytes(size);
}

int64_t VelocityTransformBytes(Int3 size) { return 3 * static_cast<int64_t>(FieldBytes(size)); }

absl::Status VelocityDisplacement(const ExecContext& ctx, const float* velocity, double factor,
                                  FieldView displacement) {
  const Int3 size = displacement.geometry.size;
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(float* const largest, ctx.arena().Allocate<float>(1));
  INTRAWARP_RETURN_IF_ERROR(LargestComponent(ctx, velocity, size, largest));
  INTRAWARP_RETURN_IF_ERROR(ExponentiateVectorField(ctx, velocity, size, static_cast<float>(factor), largest,
                                                    kMaxSquarings, displacement.data));
  return MapVectors(ctx, IndexToPhysical(displacement.geometry).Cast<float>(), size, displacement.data);
}

int64_t VelocityDisplacementWorkspaceBytes(Int3 size) {
  return Arena::Rounded(sizeof(float)) + static_cast<int64_t>(ExponentiateWorkspaceBytes(size));
}

absl::Status EvaluateVelocity(const ExecContext& ctx, const Transform& transform, const Geometry& grid, int64_t first,
                              int64_t count, float* out) {
  if (first < 0 || count < 0 || first > grid.voxels() || count > grid.voxels() - first) {
    return absl::InvalidArgumentError(
        absl::StrCat("range: ", count, " voxels from ", first, " are not part of ", SizeString(grid)));
  }
  if (count == 0) return absl::OkStatus();
  const ConstFieldView v = transform.velocity();
  if (v.geometry == grid) {
    return ctx.device().Copy(out, v.data + 3 * first, 3 * sizeof(float) * count, ctx.stream());
  }
  ForwardMap map;
  map.displacement = {v.data, v.geometry.size, false};
  map.to_domain = Compose(PhysicalToIndex(v.geometry), IndexToPhysical(grid));
  map.linear = AffineMap::Identity();
  return INTRAWARP_DISPATCH(ctx, EvaluateField, map, grid.size, first, count, out);
}

}  // namespace intrawarp
