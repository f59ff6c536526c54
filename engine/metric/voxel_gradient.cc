// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/voxel_gradient.h"

#include "engine/metric/lncc.h"
#include "engine/metric/ngf.h"

namespace intrawarp {
namespace {

LnccTask MakeLnccTask(const FfdObjective& o, const WarpedImage& warped) {
  LnccTask task{o.fixed.data, warped.voxels, o.fixed.geometry.size, o.lncc_sigma};
  task.weights = warped.weights;
  task.fixed_floor = kLnccFlat * o.fixed_stddev * o.fixed_stddev;
  task.moving_floor = kLnccFlat * o.moving_stddev * o.moving_stddev;
  return task;
}

NgfTask MakeNgfTask(const FfdObjective& o, const WarpedImage& warped) {
  const Geometry& fixed = o.fixed.geometry;
  return {o.fixed.data, warped.voxels, fixed.size, fixed.spacing, o.fixed_edge, o.moving_edge, warped.weights};
}

}  // namespace

absl::Status EvaluateVoxelGradient(const ExecContext& ctx, const FfdObjective& objective, const WarpedImage& warped,
                                   const int* skip, float* voxel_gradient, MetricValue* value) {
  if (objective.metric == MetricKind::kLncc) {
    return EvaluateLncc(ctx, MakeLnccTask(objective, warped), skip, voxel_gradient, value);
  }
  return EvaluateNgf(ctx, MakeNgfTask(objective, warped), skip, voxel_gradient, value);
}

int64_t VoxelGradientWorkspaceBytes(MetricKind metric, Int3 size) {
  if (!TraitsOf(metric).needs_neighborhood) return 0;
  return metric == MetricKind::kLncc ? LnccWorkspaceBytes(size) : NgfWorkspaceBytes(size);
}

}  // namespace intrawarp
