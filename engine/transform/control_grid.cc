// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/control_grid.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/transform/control_grid_kernels.h"

namespace intrawarp {
namespace {

// Two grids have one direction when no voxel of the image is off by more, in node distances.
constexpr double kAlignmentTolerance = 1e-4;
// Rows of control points are worth contracting together while voxels lie no further apart than this, in node distances.
// Beyond, few voxels use any of them, and a block of rows would need room for a whole grid of them.
constexpr double kLongestStep = 4;
constexpr const char* kAxisName[3] = {"x", "y", "z"};

absl::Status ValidateControlGrid(const char* name, const Geometry& grid) {
  for (int a = 0; a < 3; ++a) {
    if (grid.size[a] == 1 || grid.size[a] >= 4) continue;
    return FieldError(absl::StatusCode::kInvalidArgument, name,
                      absl::StrCat(grid.size[a], " control points along ", kAxisName[a], ", must be 1 or at least 4"));
  }
  return absl::OkStatus();
}

absl::Status ValidateMask(ConstMaskView mask, const Geometry& image) {
  if (mask.data == nullptr || SameGrid(mask.geometry, image)) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "mask",
                    absl::StrCat("its grid (", SizeString(mask.geometry), ") is not the grid of its image (",
                                 SizeString(image), ")"));
}

struct AlignedAxes {
  AxisMap x, y, z;
};

// Absent where the image has another direction than the grid.
std::optional<AlignedAxes> Align(const Geometry& grid, const Geometry& image) {
  const AffineMap map = Compose(PhysicalToIndex(grid), IndexToPhysical(image));
  AxisMap axes[3];
  for (int a = 0; a < 3; ++a) {
    double off = 0;
    for (int b = 0; b < 3; ++b) off += a == b ? 0 : std::abs(map.m[a][b]) * (image.size[b] - 1);
    if (!(off <= kAlignmentTolerance) || !(map.m[a][a] > 0)) return std::nullopt;
    axes[a] = {map.m[a][3], map.m[a][a], image.size[a], grid.size[a]};
  }
  return AlignedAxes{axes[0], axes[1], axes[2]};
}

bool HasShortSteps(const AxisMap& x, const AxisMap& y, const AxisMap& z) {
  return std::max({x.step, y.step, z.step}) <= kLongestStep;
}

// Tiles that cover `extent`, forgiving rounding.
int Tiles(double extent, double spacing) { return std::max(1, static_cast<int>(std::ceil(extent / spacing - 1e-6))); }

// Node 1 of each axis on the lower corner of the image's domain; the only one of an axis on its voxel.
Geometry WithNodes(const Geometry& image, Vec3d spacing, Int3 nodes) {
  Geometry grid = image;
  grid.size = nodes;
  grid.spacing = spacing;
  Vec3d index;
  for (int a = 0; a < 3; ++a) index[a] = nodes[a] == 1 ? 0.0 : -0.5 - spacing[a] / image.spacing[a];
  grid.origin = IndexToPhysical(image)(index);
  return grid;
}

int64_t Product(int64_t a, int64_t b, int64_t c) { return a * b * c; }

}  // namespace

std::optional<AlignedEvaluation> MakeAlignedEvaluation(ConstFieldView grid, const AffineMap& affine,
                                                       const Geometry& image, const VoxelRun& run) {
  const std::optional<AlignedAxes> axes = Align(grid.geometry, image);
  if (!axes) return std::nullopt;
  const AffineMap rest = Compose(MinusIdentity(affine), IndexToPhysical(image));
  return AlignedEvaluation{run, grid.data, axes->x, axes->y, axes->z, !IsIdentity(affine), rest, affine.Cast<float>()};
}

absl::StatusOr<Geometry> MakeControlGrid(const Geometry& image, Vec3d spacing) {
  Int3 nodes;
  bool spans = false;
  for (int a = 0; a < 3; ++a) {
    const double extent = image.size[a] * image.spacing[a];
    if (!std::isfinite(spacing[a]))
      return FieldError(absl::StatusCode::kInvalidArgument, "spacing_vox", "must be finite");
    if (image.size[a] == 1) {
      spacing[a] = image.spacing[a];
      nodes[a] = 1;
      continue;
    }
    if (spacing[a] < image.spacing[a] * (1 - 1e-6)) {
      return FieldError(
          absl::StatusCode::kInvalidArgument, "spacing_vox",
          absl::StrCat(spacing[a] / image.spacing[a], " voxels along ", kAxisName[a], ", must be at least 1"));
    }
    spans |= spacing[a] <= extent * (1 + 1e-6);
    nodes[a] = Tiles(extent, spacing[a]) + 3;
  }
  if (!spans)
    return FieldError(absl::StatusCode::kInvalidArgument, "spacing_vox", "coarser than the image on every axis");
  const Geometry grid = WithNodes(image, spacing, nodes);
  if (const absl::Status status = ValidateGeometry(grid); !status.ok()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "spacing_vox",
                      absl::StrCat("control grid of ", SizeString(grid)));
  }
  return grid;
}

Geometry RefinedControlGrid(const Geometry& grid, const Geometry& image) {
  Vec3d spacing = grid.spacing;
  Int3 nodes = grid.size;
  for (int a = 0; a < 3; ++a) {
    if (grid.size[a] == 1) continue;
    spacing[a] /= 2;
    // Never beyond what the coarse grid determines.
    nodes[a] = std::min(Tiles(image.size[a] * image.spacing[a], spacing[a]), 2 * (grid.size[a] - 3)) + 3;
  }
  Geometry fine = grid;
  fine.size = nodes;
  fine.spacing = spacing;
  Vec3d index;
  for (int a = 0; a < 3; ++a) index[a] = grid.size[a] == 1 ? 0.0 : 0.5;
  fine.origin = IndexToPhysical(grid)(index);
  return fine;
}

Geometry ControlGridDomain(const Geometry& grid) {
  Geometry domain = grid;
  Vec3d index;
  for (int a = 0; a < 3; ++a) {
    if (grid.size[a] == 1) continue;
    domain.size[a] = grid.size[a] - 3;
    index[a] = 1.5;
  }
  domain.origin = IndexToPhysical(grid)(index);
  return domain;
}

absl::Status EvaluateControlGrid(const ExecContext& ctx, ConstFieldView grid, const AffineMap& affine,
                                 const Geometry& image, int64_t first, int64_t count, float* out, ConstMaskView mask) {
  INTRAWARP_RETURN_IF_ERROR(ValidateControlGrid("grid", grid.geometry));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask(mask, image));
  if (first < 0 || count < 0 || first > image.voxels() || count > image.voxels() - first) {
    return FieldError(absl::StatusCode::kInvalidArgument, "range",
                      absl::StrCat(count, " voxels from ", first, " are not part of ", SizeString(image)));
  }
  if (count == 0) return absl::OkStatus();
  const VoxelRun run{image.size, first, count, mask.data, out};
  const std::optional<AlignedEvaluation> task = MakeAlignedEvaluation(grid, affine, image, run);
  if (task.has_value() && HasShortSteps(task->x, task->y, task->z)) {
    return INTRAWARP_DISPATCH(ctx, EvaluateAligned, *task);
  }
  const AffineMap to_physical = IndexToPhysical(image);
  ForwardMap map;
  map.affine = Compose(MinusIdentity(affine), to_physical);
  map.displacement = {grid.data, grid.geometry.size, /*spline=*/true};
  map.to_domain = Compose(PhysicalToIndex(grid.geometry), to_physical);
  map.linear = affine;
  return INTRAWARP_DISPATCH(ctx, EvaluateGeneral, map, run);
}

absl::Status EvaluateControlGridDeterminant(const ExecContext& ctx, ConstFieldView grid, VolumeView determinant) {
  INTRAWARP_RETURN_IF_ERROR(ValidateControlGrid("grid", grid.geometry));
  const Geometry& image = determinant.geometry;
  const AffineMap to_index = PhysicalToIndex(grid.geometry);
  const std::optional<AlignedAxes> axes = Align(grid.geometry, image);
  if (axes.has_value() && HasShortSteps(axes->x, axes->y, axes->z)) {
    const AlignedDeterminant task{grid.data, axes->x, axes->y, axes->z, to_index.Cast<float>(), determinant.data};
    return INTRAWARP_DISPATCH(ctx, EvaluateDeterminantAligned, task);
  }
  const GeneralDeterminant task{grid.data, grid.geometry.size, image.size, Compose(to_index, IndexToPhysical(image)),
                                to_index,  determinant.data};
  return INTRAWARP_DISPATCH(ctx, EvaluateDeterminantGeneral, task);
}

absl::Status TransposeControlGrid(const ExecContext& ctx, ConstFieldView field, FieldView grid) {
  INTRAWARP_RETURN_IF_ERROR(ValidateControlGrid("grid", grid.geometry));
  const std::optional<AlignedAxes> axes = Align(grid.geometry, field.geometry);
  if (!axes)
    return FieldError(absl::StatusCode::kInvalidArgument, "field", "its direction is not that of the control grid");
  ArenaScope scope(ctx.arena());
  const Int3 voxels = field.geometry.size, nodes = grid.geometry.size;
  Transposition task{field.data, axes->x, axes->y, axes->z, nullptr, nullptr, grid.data};
  INTRAWARP_ASSIGN_OR_RETURN(task.along_z, ctx.arena().Allocate<float>(3 * Product(voxels.x, voxels.y, nodes.z)));
  INTRAWARP_ASSIGN_OR_RETURN(task.along_y, ctx.arena().Allocate<float>(3 * Product(voxels.x, nodes.y, nodes.z)));
  return INTRAWARP_DISPATCH(ctx, Transpose, task);
}

int64_t TransposeControlGridWorkspaceBytes(const Geometry& image, const Geometry& grid) {
  const auto bytes = [&](int64_t y) {
    return static_cast<int64_t>(Arena::Rounded(3 * sizeof(float) * Product(image.size.x, y, grid.size.z)));
  };
  return bytes(image.size.y) + bytes(grid.size.y);
}

absl::Status RefineControlGrid(const ExecContext& ctx, ConstFieldView coarse, FieldView fine) {
  INTRAWARP_RETURN_IF_ERROR(ValidateControlGrid("coarse", coarse.geometry));
  INTRAWARP_RETURN_IF_ERROR(ValidateControlGrid("fine", fine.geometry));
  const Int3 from = coarse.geometry.size, to = fine.geometry.size;
  const std::optional<AlignedAxes> axes = Align(coarse.geometry, fine.geometry);
  const auto halves = [](const AxisMap& axis) {
    if (axis.nodes == 1) return axis.voxels == 1 && std::abs(axis.origin) <= 1e-3;
    return std::abs(axis.step - 0.5) * axis.voxels <= 1e-3 && std::abs(axis.origin - 0.5) <= 1e-3 &&
           axis.voxels <= 2 * axis.nodes - 3;
  };
  if (!axes || !halves(axes->x) || !halves(axes->y) || !halves(axes->z)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "fine", "not the refined grid of `coarse`");
  }
  const Refinement task{coarse.data, from, fine.data, to};
  return INTRAWARP_DISPATCH(ctx, Refine, task);
}

absl::Status ResampleControlGrid(const ExecContext& ctx, ConstFieldView grid, FieldView out) {
  INTRAWARP_RETURN_IF_ERROR(ValidateControlGrid("grid", grid.geometry));
  INTRAWARP_RETURN_IF_ERROR(ValidateControlGrid("out", out.geometry));
  const Resampling task{grid.data, grid.geometry.size,
                        Compose(PhysicalToIndex(grid.geometry), IndexToPhysical(out.geometry)), out.data,
                        out.geometry.size};
  return INTRAWARP_DISPATCH(ctx, Resample, task);
}

int64_t ResampleControlGridWorkspaceBytes(const Geometry&) { return 0; }

}  // namespace intrawarp
