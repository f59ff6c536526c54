// SPDX-License-Identifier: Apache-2.0
#include "engine/image/two_regions.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/image/two_regions_kernels.h"

namespace intrawarp {
namespace {

constexpr int kFloatsBeside = 4;
// Steps between two checkpoints: a few milliseconds.
constexpr int kStepsAtOnceCpu = 1, kStepsAtOnceCuda = 10;

// The mean side over the side of each axis.
Vec3f PerSide(const Geometry& g) {
  double product = 1;
  int axes = 0;
  for (int a = 0; a < 3; ++a) {
    if (g.size[a] == 1) continue;
    product *= g.spacing[a];
    ++axes;
  }
  Vec3f per_side{0, 0, 0};
  for (int a = 0; a < 3; ++a) {
    if (g.size[a] > 1) per_side[a] = static_cast<float>(std::pow(product, 1.0 / axes) / g.spacing[a]);
  }
  return per_side;
}

// The product of both steps is at most 1 over the squared norm of the differences, which is at most 4 |h|^2.
double StepOf(Vec3f h) {
  const double square = double{h.x} * h.x + double{h.y} * h.y + double{h.z} * h.z;
  return square > 0 ? 1 / std::sqrt(4 * square) : 1;
}

// Waits, so that no checkpoint is asked ahead of the device.
absl::Status Step(const ExecContext& ctx, const RegionSplit& task, int steps) {
  for (int i = 0; i < steps; ++i) INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, StepSplit, task));
  return ctx.device().Synchronize(ctx.stream());
}

}  // namespace

absl::StatusOr<Decision> SplitRegions(const ExecContext& ctx, ConstVolumeView cost, double weight, int iterations,
                                      Progress progress, VolumeView share) {
  if (!(std::isfinite(weight) && weight >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("weight: ", weight, " is not a finite number from 0"));
  }
  if (iterations < 1) return absl::InvalidArgumentError(absl::StrCat("iterations: ", iterations, " is below 1"));
  const Geometry& g = cost.geometry;
  if (!(share.geometry == g)) return absl::InvalidArgumentError("share: lies on another grid than the costs");
  ArenaScope scope(ctx.arena());
  RegionSplit task;
  task.cost = cost.data;
  task.share = share.data;
  INTRAWARP_ASSIGN_OR_RETURN(task.ahead, ctx.arena().Allocate<float>(kFloatsBeside * g.voxels()));
  task.dual = task.ahead + g.voxels();
  task.size = g.size;
  task.per_side = PerSide(g);
  task.weight = static_cast<float>(weight);
  task.step = static_cast<float>(StepOf(task.per_side));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, StartSplit, task));
  const int at_once = ctx.is_cuda() ? kStepsAtOnceCuda : kStepsAtOnceCpu;
  for (progress.iteration = 0; progress.iteration < iterations; progress.iteration += at_once) {
    const Decision decision = ctx.Checkpoint(progress);
    if (decision == Decision::kCancel) return absl::CancelledError("cancelled");
    if (decision == Decision::kStop) return decision;
    INTRAWARP_RETURN_IF_ERROR(Step(ctx, task, std::min(at_once, iterations - progress.iteration)));
  }
  return Decision::kContinue;
}

int64_t SplitRegionsWorkspaceBytes(const Geometry& geometry) {
  return Arena::Rounded(kFloatsBeside * geometry.voxels() * sizeof(float));
}

}  // namespace intrawarp
