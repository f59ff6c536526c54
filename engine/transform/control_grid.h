// SPDX-License-Identifier: Apache-2.0
// Control grids: displacement fields on uniform cubic B-splines (free-form deformation, Rueckert 1999), with ITK's
// meaning of coefficients and of the grid's origin (itk::BSplineTransform).
//
//   u(p) = sum_k c_k B(x - k_x) B(y - k_y) B(z - k_z),   (x, y, z) = PhysicalToIndex(grid)(p)
//
// with B the centred cubic B-spline and c_k three float32 in LPS mm, x y z interleaved: a control grid is a
// ConstFieldView whose geometry is that of the control points. u is defined where its 4 x 4 x 4 neighbours exist,
// 1 <= x <= n_x - 2 (likewise y and z), and is 0 outside. An axis with one control point (z of a 2-D image) has no
// spline along it: u is constant there, and defined for -0.5 <= z <= 0.5.
//
// The number of control points of an axis is 1 or at least 4 (INVALID_ARGUMENT otherwise).
//
// All operators are stream-ordered unless they say otherwise, and sum in an order that depends on sizes alone.
#ifndef INTRAWARP_ENGINE_TRANSFORM_CONTROL_GRID_H_
#define INTRAWARP_ENGINE_TRANSFORM_CONTROL_GRID_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// The grid that covers the domain of `image` with a control point every `spacing` mm along each of its axes, in its
// direction. Node 1 of each axis lies on the lower corner of the image's domain (index -0.5), so that the grids of all
// levels of a pyramid, which share their domain, nest. ceil(extent / spacing) + 3 nodes an axis; 1 along an axis of one
// voxel. INVALID_ARGUMENT "spacing_vox: ..." (the caller asks in voxels) when it is not finite, finer than a voxel of
// `image` on any axis, or coarser than the image on every axis.
absl::StatusOr<Geometry> MakeControlGrid(const Geometry& image, Vec3d spacing);

// The grid with half the spacing and the same lower corner that covers `image`: what RefineControlGrid fills.
Geometry RefinedControlGrid(const Geometry& grid, const Geometry& image);

// The domain of u: a geometry with one voxel a tile (a cell between control points), node 1 at its lower corner.
Geometry ControlGridDomain(const Geometry& grid);

// out = A(p + u(p)) - p at the voxels [first, first + count) of `image` in memory order (so that a field can be made
// and sent piece by piece), 3 float32 each, LPS mm. Where `image` has the grid's direction (any offset, voxels up to
// four node distances apart) the contraction is separable and the operator is bound by its stores; otherwise each voxel
// sums its 64 neighbours.
// Voxels that `mask` (on the image's grid, INVALID_ARGUMENT otherwise) does not select get 0 0 0.
absl::Status EvaluateControlGrid(const ExecContext& ctx, ConstFieldView grid, const AffineMap& affine,
                                 const Geometry& image, int64_t first, int64_t count, float* out,
                                 ConstMaskView mask = {});

// det(I + grad u) at every voxel of `image` (exact: derivatives of the spline), one float32 each.
absl::Status EvaluateControlGridDeterminant(const ExecContext& ctx, ConstFieldView grid, VolumeView determinant);

// The exact transpose of EvaluateControlGrid for A = I: out_k = sum over voxels i of B_k(i) field_i. Takes a voxel
// gradient to the gradient in the control points. `field` has the grid's direction (INVALID_ARGUMENT otherwise).
// Workspace: TransposeControlGridWorkspaceBytes.
absl::Status TransposeControlGrid(const ExecContext& ctx, ConstFieldView field, FieldView grid);
int64_t TransposeControlGridWorkspaceBytes(const Geometry& image, const Geometry& grid);

// The same u on RefinedControlGrid's grid (INVALID_ARGUMENT for another), exactly (Lane and Riesenfeld's subdivision).
absl::Status RefineControlGrid(const ExecContext& ctx, ConstFieldView coarse, FieldView fine);

// u sampled at the control points of `out` and made interpolating there: a start on another grid. Nodes outside the
// domain of u take the value at its nearest point (along the grid's axes). Workspace:
// ResampleControlGridWorkspaceBytes.
absl::Status ResampleControlGrid(const ExecContext& ctx, ConstFieldView grid, FieldView out);
int64_t ResampleControlGridWorkspaceBytes(const Geometry& out);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_CONTROL_GRID_H_
