// SPDX-License-Identifier: Apache-2.0
// The metrics that need a neighbourhood (MetricTraits), as the FFD objective evaluates them on a stored warped image.
// Internal.
#ifndef INTRAWARP_ENGINE_METRIC_VOXEL_GRADIENT_H_
#define INTRAWARP_ENGINE_METRIC_VOXEL_GRADIENT_H_

#include <cstdint>

#include "engine/metric/ffd_objective.h"

namespace intrawarp {

// The warped moving image and the weights of its voxels, as LnccTask and NgfTask have them.
struct WarpedImage {
  const float* voxels = nullptr;
  const float* weights = nullptr;
};

// EvaluateLncc or EvaluateNgf, by the objective's metric and with its parameters. Workspace:
// VoxelGradientWorkspaceBytes.
absl::Status EvaluateVoxelGradient(const ExecContext& ctx, const FfdObjective& objective, const WarpedImage& warped,
                                   const int* skip, float* voxel_gradient, MetricValue* value);
// 0 for a metric that needs no neighbourhood.
int64_t VoxelGradientWorkspaceBytes(MetricKind metric, Int3 size);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_VOXEL_GRADIENT_H_
