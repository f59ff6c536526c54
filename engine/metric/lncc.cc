// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/lncc.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/metric/lncc_kernels.h"

namespace intrawarp {

LnccWindow MakeLnccWindow(double sigma) {
  LnccWindow window;
  sigma = LnccBoxSigma(sigma);
  window.radius = static_cast<int>(std::ceil(3 * sigma));
  double weights[kMaxLnccRadius + 1], sum = 0;
  for (int k = 0; k <= window.radius; ++k) {
    weights[k] = std::exp(-0.5 * (k / sigma) * (k / sigma));
    sum += k == 0 ? weights[k] : 2 * weights[k];
  }
  for (int k = 0; k <= window.radius; ++k) window.weights[k] = static_cast<float>(weights[k] / sum);
  return window;
}

absl::Status EvaluateLncc(const ExecContext& ctx, const LnccTask& task, const int* skip, float* voxel_gradient,
                          MetricValue* value) {
  INTRAWARP_RETURN_IF_ERROR(ValidateImageSize(task.size));
  if (!(task.sigma >= kLeastLnccSigma && task.sigma <= kMaxLnccSigma)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sigma: ", task.sigma, " is not in [", kLeastLnccSigma, ", ", kMaxLnccSigma, "] voxels"));
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateNonNegative("fixed_floor", task.fixed_floor));
  INTRAWARP_RETURN_IF_ERROR(ValidateNonNegative("moving_floor", task.moving_floor));
  return INTRAWARP_DISPATCH(ctx, EvaluateLncc, task, skip, voxel_gradient, value);
}

int64_t LnccWorkspaceBytes(Int3 size) {
#if INTRAWARP_WITH_CUDA
  return std::max(cpu::LnccWorkspaceBytes(size), cuda::LnccWorkspaceBytes(size));
#else
  return cpu::LnccWorkspaceBytes(size);
#endif
}

}  // namespace intrawarp
