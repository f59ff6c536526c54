// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/encode.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/transform/displacement.h"
#include "engine/transform/encode_kernels.h"

namespace intrawarp {
namespace {

constexpr double kLargestFloat16 = 65504;
constexpr double kLargestInt16 = 32767;
// The finest unit whose inverse is still a float32, mm.
constexpr double kFinestUnit = 1e-30;
// The loss of float32 itself on the way into a component, relative to the largest one.
constexpr double kFloat32Rounding = 0x1p-22;

// The largest |(A - I) p| over the domain of `grid`: it is affine, so it is largest at a corner.
double AffineBound(const AffineMap& affine, const Geometry& grid) {
  const AffineMap field = Compose(MinusIdentity(affine), IndexToPhysical(grid));
  double bound = 0;
  for (int corner = 0; corner < 8; ++corner) {
    const Vec3d index{corner & 1 ? grid.size.x - 0.5 : -0.5, corner & 2 ? grid.size.y - 0.5 : -0.5,
                      corner & 4 ? grid.size.z - 0.5 : -0.5};
    const Vec3d d = field(index);
    bound = std::max({bound, std::abs(d.x), std::abs(d.y), std::abs(d.z)});
  }
  return bound;
}

// By how much A's linear part can enlarge the largest component of a vector.
double RowSumNorm(const AffineMap& affine) {
  double norm = 0;
  for (const auto& row : affine.m) norm = std::max(norm, std::abs(row[0]) + std::abs(row[1]) + std::abs(row[2]));
  return norm;
}

absl::StatusOr<double> LargestComponent(const ExecContext& ctx, ConstFieldView field) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(float* largest, ctx.arena().Allocate<float>(1));
  INTRAWARP_RETURN_IF_ERROR(
      INTRAWARP_DISPATCH(ctx, LargestMagnitude, field.data, 3 * field.geometry.voxels(), largest));
  float on_host = 0;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&on_host, largest, sizeof(on_host), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return on_host;
}

}  // namespace

absl::StatusOr<double> DisplacementBound(const ExecContext& ctx, const Transform& transform, const Geometry& grid) {
  const double affine = AffineBound(transform.affine(), grid);
  if (transform.is_affine()) return affine;
  INTRAWARP_ASSIGN_OR_RETURN(
      const double largest,
      LargestComponent(ctx, transform.has_control_grid() ? transform.control_grid() : transform.displacement()));
  return affine + RowSumNorm(transform.affine()) * largest;
}

int64_t DisplacementBoundWorkspaceBytes() { return Arena::Rounded(sizeof(float)); }

absl::StatusOr<ComponentEncoding> MakeComponentEncoding(ComponentType type, double bound) {
  const double rounding = kFloat32Rounding * bound;
  switch (type) {
    case ComponentType::kFloat32:
      return ComponentEncoding{};
    case ComponentType::kFloat16: {
      if (!(bound <= kLargestFloat16)) {
        return FieldError(absl::StatusCode::kFailedPrecondition, "encoding",
                          absl::StrCat("displacements of up to ", bound, " mm do not fit FLOAT16"));
      }
      // Half a unit in the last of 11 digits; below 2^-14 the units stay what they are there.
      const int exponent = std::max(-14, bound > 0 ? std::ilogb(bound) : -14);
      return ComponentEncoding{type, 0, std::ldexp(1.0, exponent - 11) + rounding};
    }
    case ComponentType::kInt16: {
      // The scale is rounded to float32, in which the numbers are divided; a field of zeros has any scale.
      const double finest = std::max(bound / kLargestInt16 * (1 + 0x1p-20), kFinestUnit);
      const float scale = bound == 0 ? 1.0f : static_cast<float>(finest);
      if (!std::isfinite(bound) || !std::isfinite(scale)) {
        return FieldError(absl::StatusCode::kFailedPrecondition, "encoding",
                          absl::StrCat("displacements of up to ", bound, " mm have no INT16 form"));
      }
      return ComponentEncoding{type, scale, 0.5 * scale + rounding};
    }
  }
  return FieldError(absl::StatusCode::kInvalidArgument, "encoding", "unknown");
}

absl::Status EncodeComponents(const ExecContext& ctx, const float* values, int64_t count,
                              const ComponentEncoding& encoding, void* out) {
  if (encoding.type == ComponentType::kFloat32)
    return FieldError(absl::StatusCode::kInvalidArgument, "encoding", "FLOAT32 is none");
  if (count == 0) return absl::OkStatus();
  return INTRAWARP_DISPATCH(ctx, EncodeComponents, values, count, encoding, out);
}

}  // namespace intrawarp
