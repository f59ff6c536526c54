// SPDX-License-Identifier: Apache-2.0
// Metrics that need a neighbourhood, as operators on stored images: from the fixed image f and the warped moving image
// m on the same grid to the metric's value and its derivative in every m(i), the residual. FFD (ffd_objective.h defines
// the metrics) carries the residual on into its control points, log-demons into its force.
//
// m(i) is NaN where voxel i is no sample (no source, or masked); f is finite. Residuals there are 0. Everything lies in
// device memory; stream-ordered; fixed order of summation. `skip` as in FfdEvaluator. INVALID_ARGUMENT for a size that
// is no image's, and for parameters out of range, by name.
#ifndef INTRAWARP_ENGINE_METRIC_RESIDUAL_H_
#define INTRAWARP_ENGINE_METRIC_RESIDUAL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/metric/ffd_objective.h"

namespace intrawarp {

// The window is ceil(3 sigma) voxels to either side; wider ones than that of kMaxLnccSigma are refused.
inline constexpr double kMaxLnccSigma = 16.0 / 3;

// 1 - mean squared local correlation; NaN without a sample. `residual` may be null: the value alone. Workspace:
// LnccWorkspaceBytes.
struct LnccTask {
  const float* fixed = nullptr;
  const float* warped = nullptr;
  Int3 size;
  double sigma = 2.5;
  // Local variances not above these count as flat; and those that float32 does not resolve, some 1e-6 of the mean
  // squared difference of the window from its surroundings' mean.
  double fixed_floor = 0, moving_floor = 0;
};
absl::Status LnccResidual(const ExecContext& ctx, const LnccTask& task, const int* skip, float* residual,
                          FfdValue* value);
int64_t LnccWorkspaceBytes(Int3 size);

// Normalised gradient fields; distances in mm by `spacing`. NaN without a sample, or where all samples together have no
// fixed gradient (W is 0); `samples` are those whose neighbours are samples, too. `residual` may be null. Workspace:
// NgfWorkspaceBytes.
struct NgfTask {
  const float* fixed = nullptr;
  const float* warped = nullptr;
  Int3 size;
  Vec3d spacing;
  double fixed_edge = 0, moving_edge = 0;
};
absl::Status NgfResidual(const ExecContext& ctx, const NgfTask& task, const int* skip, float* residual,
                         FfdValue* value);
int64_t NgfWorkspaceBytes(Int3 size);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_RESIDUAL_H_
