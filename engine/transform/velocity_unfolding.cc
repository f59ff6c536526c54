// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/velocity_unfolding.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/transform/vector_field.h"
#include "engine/transform/velocity.h"
#include "engine/transform/velocity_unfolding_kernels.h"

namespace intrawarp {
namespace {

constexpr int kSmoothingRounds = 10;
// More than any finite float32 takes to become harmless.
constexpr int kMostRounds = kSmoothingRounds + 160;
// Passes of the binomial mean in the first round, and in any.
constexpr int kFirstPasses = 4, kMostPasses = 256;
// Points of paths per voxel of the grid; where there are more, the velocity is smoothed as a whole.
constexpr int kMostPathPoints = 32;
// An exponential of kMaxSquarings has as many.
constexpr int kMostSteps = 1 << kMaxSquarings;

int64_t Voxels(Int3 size) { return int64_t{size.x} * size.y * size.z; }
size_t FieldBytes(Int3 size) { return 3 * sizeof(float) * Voxels(size); }

// The cells of exp(v) and exp(-v) that fold, in device memory.
struct Folds {
  uint8_t* forward = nullptr;
  uint8_t* backward = nullptr;
  int64_t cells = 0;
};

absl::StatusOr<int64_t> FindFolds(const ExecContext& ctx, ConstFieldView displacement, uint8_t* folds) {
  ArenaScope scope(ctx.arena());
  FoldCheck task;
  task.displacement = displacement.data;
  task.size = displacement.geometry.size;
  task.to_index = PhysicalToIndex(displacement.geometry).Cast<float>();
  task.folds = folds;
  INTRAWARP_ASSIGN_OR_RETURN(task.folded, ctx.arena().Allocate<unsigned long long>(1));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MarkFolds, task));
  unsigned long long folded = 0;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&folded, task.folded, sizeof(folded), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return static_cast<int64_t>(folded);
}

absl::StatusOr<Folds> FindFolds(const ExecContext& ctx, const Transform& transform) {
  Folds folds;
  const int64_t voxels = transform.velocity().geometry.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(folds.forward, ctx.arena().Allocate<uint8_t>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(folds.backward, ctx.arena().Allocate<uint8_t>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t forward, FindFolds(ctx, transform.displacement(), folds.forward));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t backward, FindFolds(ctx, transform.backward(), folds.backward));
  folds.cells = forward + backward;
  return folds;
}

// The number of steps that makes each of them a voxel at most.
absl::StatusOr<int> PathSteps(const ExecContext& ctx, ConstFieldView velocity) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(float* const on_device, ctx.arena().Allocate<float>(1));
  INTRAWARP_RETURN_IF_ERROR(LargestComponent(ctx, velocity.data, velocity.geometry.size, on_device));
  float largest = 0;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&largest, on_device, sizeof(largest), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  const Vec3d& spacing = velocity.geometry.spacing;
  const double voxels = std::sqrt(3.0) * largest / std::min({spacing.x, spacing.y, spacing.z});
  return static_cast<int>(std::clamp(std::ceil(voxels), 1.0, double{kMostSteps}));
}

// The voxels on the paths of cells that fold, and those up to `reach` beside them. Memory stays taken from the arena.
absl::StatusOr<const uint8_t*> MarkAlongPaths(const ExecContext& ctx, ConstFieldView velocity, const Folds& folds,
                                              int steps, int reach) {
  const Int3 size = velocity.geometry.size;
  uint8_t *marks = nullptr, *wider = nullptr;
  INTRAWARP_ASSIGN_OR_RETURN(marks, ctx.arena().Allocate<uint8_t>(Voxels(size)));
  INTRAWARP_ASSIGN_OR_RETURN(wider, ctx.arena().Allocate<uint8_t>(Voxels(size)));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(marks, 0, Voxels(size), ctx.stream()));
  FoldPaths paths;
  paths.velocity = velocity.data;
  paths.size = size;
  paths.to_index = PhysicalToIndex(velocity.geometry).Cast<float>();
  paths.steps = steps;
  paths.marks = marks;
  paths.folds = folds.forward;
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MarkPaths, paths));
  paths.folds = folds.backward;
  paths.sign = -1;
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MarkPaths, paths));
  for (int i = 0; i < reach; ++i) {
    INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, Dilate, marks, size, wider));
    std::swap(marks, wider);
  }
  return marks;
}

absl::Status SmoothAlongPaths(const ExecContext& ctx, FieldView velocity, const Folds& folds, int steps, int reach,
                              int passes) {
  ArenaScope scope(ctx.arena());
  const Int3 size = velocity.geometry.size;
  INTRAWARP_ASSIGN_OR_RETURN(float* const other, ctx.arena().Allocate<float>(3 * Voxels(size)));
  INTRAWARP_ASSIGN_OR_RETURN(const uint8_t* const marks,
                             MarkAlongPaths(ctx, {velocity.data, velocity.geometry}, folds, steps, reach));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(other, velocity.data, FieldBytes(size), ctx.stream()));
  for (int pass = 0; pass < passes; pass += 2) {
    INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, SmoothMarked, velocity.data, marks, size, other));
    INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, SmoothMarked, other, marks, size, velocity.data));
  }
  return absl::OkStatus();
}

// Changes `velocity` (mm, in the arena) for a round.
absl::Status Change(const ExecContext& ctx, FieldView velocity, const Folds& folds, int round) {
  const Int3 size = velocity.geometry.size;
  if (round >= kSmoothingRounds) return INTRAWARP_DISPATCH(ctx, Halve, 3 * Voxels(size), velocity.data);
  const int passes = std::min(kFirstPasses << round, kMostPasses);
  INTRAWARP_ASSIGN_OR_RETURN(const int steps, PathSteps(ctx, {velocity.data, velocity.geometry}));
  if (8 * folds.cells * steps <= kMostPathPoints * Voxels(size)) {
    return SmoothAlongPaths(ctx, velocity, folds, steps, 1 + round, passes);
  }
  // The same variance as that of the passes.
  const double sigma = std::sqrt(0.5 * passes);
  return SmoothVectorField(ctx, velocity.data, size, {sigma, sigma, sigma}, velocity.data);
}

// The velocity of `transform` as it is after a round. Gives the transform's fields back before it allocates.
absl::StatusOr<Buffer> ChangedVelocity(const ExecContext& ctx, Transform& transform, const Folds& folds, int round) {
  const Geometry domain = transform.velocity().geometry;
  ArenaScope scope(ctx.arena());
  FieldView changed{nullptr, domain};
  INTRAWARP_ASSIGN_OR_RETURN(changed.data, ctx.arena().Allocate<float>(3 * domain.voxels()));
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Copy(changed.data, transform.velocity().data, FieldBytes(domain.size), ctx.stream()));
  transform = Transform(transform.affine());
  INTRAWARP_RETURN_IF_ERROR(Change(ctx, changed, folds, round));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer velocity, ctx.device().Allocate(FieldBytes(domain.size), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Copy(velocity.as<float>(), changed.data, FieldBytes(domain.size), ctx.stream()));
  return velocity;
}

}  // namespace

absl::StatusOr<int64_t> CountFoldedCells(const ExecContext& ctx, ConstFieldView displacement) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(uint8_t* const folds, ctx.arena().Allocate<uint8_t>(displacement.geometry.voxels()));
  return FindFolds(ctx, displacement, folds);
}

size_t CountFoldedCellsWorkspaceBytes(Int3 size) {
  return Arena::Rounded(Voxels(size)) + Arena::Rounded(sizeof(unsigned long long));
}

absl::StatusOr<UnfoldedTransform> MakeUnfoldedTransform(const ExecContext& ctx, const AffineMap& affine,
                                                        Buffer velocity, const Geometry& domain,
                                                        const Progress* progress) {
  UnfoldedTransform result;
  for (;; ++result.rounds) {
    INTRAWARP_ASSIGN_OR_RETURN(result.transform, MakeVelocityTransform(ctx, affine, std::move(velocity), domain));
    ArenaScope scope(ctx.arena());
    INTRAWARP_ASSIGN_OR_RETURN(const Folds folds, FindFolds(ctx, result.transform));
    if (folds.cells == 0) return result;
    if (progress != nullptr && ctx.Checkpoint(*progress) == Decision::kCancel) return absl::CancelledError("cancelled");
    if (result.rounds == kMostRounds) return absl::FailedPreconditionError("velocity: not finite");
    INTRAWARP_ASSIGN_OR_RETURN(velocity, ChangedVelocity(ctx, result.transform, folds, result.rounds));
  }
}

int64_t UnfoldedTransformWorkspaceBytes(Int3 size) {
  const int64_t bytes = Arena::Rounded(Voxels(size)), scalar = Arena::Rounded(sizeof(unsigned long long));
  const int64_t field = Arena::Rounded(FieldBytes(size));
  const int64_t smoothing = std::max(static_cast<int64_t>(SmoothVectorFieldWorkspaceBytes(size)), field + 2 * bytes);
  return std::max(VelocityTransformWorkspaceBytes(size), 2 * bytes + field + smoothing + scalar);
}

}  // namespace intrawarp
