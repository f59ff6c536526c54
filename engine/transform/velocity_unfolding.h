// SPDX-License-Identifier: Apache-2.0
// Transforms of a stationary velocity whose sampled exponentials do not fold.
//
// The flow of a velocity is a diffeomorphism, but a transform holds samples of it and interpolates between them. Where
// the flow carries the corners of one voxel cell many voxels apart in different directions, the trilinear map between
// the samples folds although the flow does not, however short the steps are that it is integrated in. The remedy is a
// velocity that varies less along the path of that cell.
#ifndef INTRAWARP_ENGINE_TRANSFORM_VELOCITY_UNFOLDING_H_
#define INTRAWARP_ENGINE_TRANSFORM_VELOCITY_UNFOLDING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// The derivative of x + u(x), u trilinear, at a point of a cell is a mean of the 64 matrices whose columns are one of
// the cell's four edges along each axis, and its determinant is the same mean of theirs: the determinant is linear in
// each column. A cell counts as unfolded where all 64 determinants are at least kLeastCellDeterminant. The map is then
// a local diffeomorphism on the whole cell. Central differences, and one-sided ones at the faces, are means of the same
// kind over the cells around a voxel, so that determinants made of them are no smaller.
inline constexpr float kLeastCellDeterminant = 1e-3f;

// The number of cells of x + u(x) that fold in this sense; an axis of one voxel is one cell long. NaN folds. Waits for
// the stream. Workspace: CountFoldedCellsWorkspaceBytes.
absl::StatusOr<int64_t> CountFoldedCells(const ExecContext& ctx, ConstFieldView displacement);
size_t CountFoldedCellsWorkspaceBytes(Int3 size);

struct UnfoldedTransform {
  Transform transform{AffineMap::Identity()};
  // How often the velocity was changed; 0: never.
  int rounds = 0;
};

// MakeVelocityTransform (velocity.h) of `velocity`, changed until neither exp(v) nor exp(-v) has a cell that folds.
// Every round smooths v along the paths of the cells that fold (everywhere when those are many), over a region that
// grows by a voxel and with a variance that doubles from round to round. A velocity that still folds after 10 rounds is
// halved until it does not; this ends, as exp(0) is the identity. A velocity whose exponentials do not fold is kept to
// the bit. Bit-identical from run to run. Waits for the stream. FAILED_PRECONDITION for a velocity that is not finite;
// RESOURCE_EXHAUSTED without memory for the fields. Workspace: UnfoldedTransformWorkspaceBytes.
absl::StatusOr<UnfoldedTransform> MakeUnfoldedTransform(const ExecContext& ctx, const AffineMap& affine,
                                                        Buffer velocity, const Geometry& domain,
                                                        const Progress* progress = nullptr);
int64_t UnfoldedTransformWorkspaceBytes(Int3 size);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_VELOCITY_UNFOLDING_H_
