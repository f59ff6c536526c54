// SPDX-License-Identifier: Apache-2.0
// Transforms of stationary velocity fields: T(x) = A(exp(v)(x)), T^-1(y) = exp(-v)(A^-1(y)) (Arsigny et al. 2006).
// v is 3 float32 per voxel of a grid, LPS mm, x fastest, linear between voxels. All of this is stream-ordered.
#ifndef INTRAWARP_ENGINE_TRANSFORM_VELOCITY_H_
#define INTRAWARP_ENGINE_TRANSFORM_VELOCITY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// `velocity` holds 3 finite float32 per voxel of `domain` and lies with the transform from now on, beside exp(v) and
// exp(-v), which are made here by ExponentiateVectorField (vector_field.h). Beyond 2^12 voxels of the fastest component
// the exponential is not accurate any more. RESOURCE_EXHAUSTED without memory for the two. Workspace:
// VelocityTransformWorkspaceBytes.
absl::StatusOr<Transform> MakeVelocityTransform(const ExecContext& ctx, const AffineMap& affine, Buffer velocity,
                                                const Geometry& domain);
int64_t VelocityTransformWorkspaceBytes(Int3 size);
// Device memory that the transform holds.
int64_t VelocityTransformBytes(Int3 size);

// u in LPS mm of x + u(x) = exp(factor v)(x) at the voxels of `displacement`'s grid, where `velocity` is v in voxels of
// that grid. Workspace: VelocityDisplacementWorkspaceBytes.
absl::Status VelocityDisplacement(const ExecContext& ctx, const float* velocity, double factor, FieldView displacement);
int64_t VelocityDisplacementWorkspaceBytes(Int3 size);

// v of a transform that has one at the voxels [first, first + count) of `grid` in memory order, 3 float32 each, LPS mm;
// 0 outside its domain. INVALID_ARGUMENT "range: ...".
absl::Status EvaluateVelocity(const ExecContext& ctx, const Transform& transform, const Geometry& grid, int64_t first,
                              int64_t count, float* out);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_VELOCITY_H_
