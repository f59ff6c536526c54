// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/transform.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/transform/control_grid.h"
#include "engine/transform/displacement.h"
#include "engine/transform/transform_kernels.h"

namespace intrawarp {
namespace {

struct Displacement {
  DisplacementSource source;
  Geometry grid;
};

// u of a transform that is not affine.
Displacement DisplacementOf(const Transform& transform) {
  const bool spline = transform.has_control_grid();
  const ConstFieldView u = spline ? transform.control_grid() : transform.displacement();
  return {{u.data, u.geometry.size, spline}, u.geometry};
}

absl::Status ValidateInvertible(const AffineMap& affine) {
  const double determinant = Determinant(affine);
  if (std::isfinite(determinant) && determinant != 0 && std::isfinite(1 / determinant)) return absl::OkStatus();
  return FieldError(absl::StatusCode::kFailedPrecondition, "matrix", "singular, it has no inverse");
}

}  // namespace

AffineMap MinusIdentity(const AffineMap& affine) {
  AffineMap a = affine;
  for (int r = 0; r < 3; ++r) a.m[r][r] -= 1;
  return a;
}

bool IsIdentity(const AffineMap& affine) {
  const AffineMap difference = MinusIdentity(affine);
  for (const auto& row : difference.m)
    for (double value : row)
      if (value != 0) return false;
  return true;
}

ForwardMap MakeForwardMap(const Transform& transform, const AffineMap& inner, const AffineMap& outer) {
  ForwardMap map;
  const AffineMap last = Compose(outer, transform.affine());
  map.affine = Compose(last, inner);
  if (transform.is_affine()) return map;
  const Displacement u = DisplacementOf(transform);
  map.displacement = u.source;
  map.to_domain = Compose(PhysicalToIndex(u.grid), inner);
  map.linear = last;
  return map;
}

ForwardMap MakeBackwardMap(const Transform& transform, const AffineMap& inner, const AffineMap& outer) {
  const ConstFieldView u = transform.backward();
  const AffineMap from = Compose(Inverse(transform.affine()), inner);
  ForwardMap map;
  map.affine = Compose(outer, from);
  map.displacement = {u.data, u.geometry.size, false};
  map.to_domain = Compose(PhysicalToIndex(u.geometry), from);
  map.linear = outer;
  return map;
}

InverseMap MakeInverseMap(const Transform& transform, const AffineMap& inner, const AffineMap& outer) {
  const Displacement u = DisplacementOf(transform);
  InverseMap map;
  map.displacement = u.source;
  map.to_index = PhysicalToIndex(u.grid);
  map.to_domain = Compose(map.to_index, Compose(Inverse(transform.affine()), inner));
  map.from_domain = Compose(outer, IndexToPhysical(u.grid));
  return map;
}

absl::Status EvaluateField(const ExecContext& ctx, const Transform& transform, const Geometry& grid, int64_t first,
                           int64_t count, float* out) {
  if (first < 0 || count < 0 || first > grid.voxels() || count > grid.voxels() - first) {
    return FieldError(absl::StatusCode::kInvalidArgument, "range",
                      absl::StrCat(count, " voxels from ", first, " are not part of ", SizeString(grid)));
  }
  if (count == 0) return absl::OkStatus();
  if (transform.has_control_grid()) {
    return EvaluateControlGrid(ctx, transform.control_grid(), transform.affine(), grid, first, count, out);
  }
  const AffineMap to_physical = IndexToPhysical(grid);
  const AffineMap field = Compose(MinusIdentity(transform.affine()), to_physical);
  if (!transform.has_displacement()) {
    return INTRAWARP_DISPATCH(ctx, EvaluateAffineField, field, grid.size, first, count, out);
  }
  const ConstFieldView u = transform.displacement();
  if (u.geometry == grid && IsIdentity(transform.affine())) {
    return ctx.device().Copy(out, u.data + 3 * first, 3 * sizeof(float) * count, ctx.stream());
  }
  ForwardMap map = MakeForwardMap(transform, to_physical, AffineMap::Identity());
  map.affine = field;
  return INTRAWARP_DISPATCH(ctx, EvaluateField, map, grid.size, first, count, out);
}

absl::Status WarpVolume(const ExecContext& ctx, const Transform& transform, bool inverse, ConstVolumeView moving,
                        Interpolation interpolation, float fill, VolumeView out) {
  if (inverse) INTRAWARP_RETURN_IF_ERROR(ValidateInvertible(transform.affine()));
  if (transform.is_affine()) {
    return WarpAffine(ctx, moving, inverse ? Inverse(transform.affine()) : transform.affine(), interpolation, fill,
                      out);
  }
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ConstVolumeView samples, PrepareForSampling(ctx, moving, interpolation));
  const AffineMap inner = IndexToPhysical(out.geometry), outer = PhysicalToIndex(moving.geometry);
  if (inverse && !transform.has_velocity()) {
    return INTRAWARP_DISPATCH(ctx, WarpThrough, MakeInverseMap(transform, inner, outer), samples, interpolation, fill,
                              out);
  }
  const ForwardMap map = inverse ? MakeBackwardMap(transform, inner, outer) : MakeForwardMap(transform, inner, outer);
  return INTRAWARP_DISPATCH(ctx, WarpThrough, map, samples, interpolation, fill, out);
}

absl::Status MapPoints(const ExecContext& ctx, const Transform& transform, bool inverse, absl::Span<double> points) {
  if (points.size() % 3 != 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "points",
                      absl::StrCat(points.size(), " numbers, must be x y z of each"));
  }
  if (inverse) INTRAWARP_RETURN_IF_ERROR(ValidateInvertible(transform.affine()));
  if (points.empty()) return absl::OkStatus();
  const AffineMap identity = AffineMap::Identity();
  if (transform.is_affine()) {
    ForwardMap map;
    map.affine = inverse ? Inverse(transform.affine()) : transform.affine();
    return cpu::MapThrough(ctx, map, points);
  }
  if (inverse && !transform.has_velocity()) {
    return INTRAWARP_DISPATCH(ctx, MapThrough, MakeInverseMap(transform, identity, identity), points);
  }
  const ForwardMap map =
      inverse ? MakeBackwardMap(transform, identity, identity) : MakeForwardMap(transform, identity, identity);
  return INTRAWARP_DISPATCH(ctx, MapThrough, map, points);
}

size_t MapPointsWorkspaceBytes(const Transform& transform, int64_t points) {
  return transform.is_affine() ? 0 : Arena::Rounded(3 * sizeof(double) * points);
}

}  // namespace intrawarp
