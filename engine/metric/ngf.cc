// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/ngf.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/metric/ngf_kernels.h"

namespace intrawarp {

NgfScales MakeNgfScales(const NgfTask& task) {
  NgfScales s;
  for (int a = 0; a < 3; ++a) {
    s.half_inverse[a] = task.size[a] > 1 ? static_cast<float>(0.5 / task.spacing[a]) : 0.0f;
  }
  s.fixed_eta2 = std::max(static_cast<float>(task.fixed_edge * task.fixed_edge), kNgfTiny);
  s.moving_eta2 = std::max(static_cast<float>(task.moving_edge * task.moving_edge), kNgfTiny);
  return s;
}

absl::Status EvaluateNgf(const ExecContext& ctx, const NgfTask& task, const int* skip, float* voxel_gradient,
                         MetricValue* value) {
  INTRAWARP_RETURN_IF_ERROR(ValidateImageSize(task.size));
  for (int a = 0; a < 3; ++a) {
    if (!(task.spacing[a] > 0 && std::isfinite(task.spacing[a]))) {
      return absl::InvalidArgumentError(absl::StrCat("spacing: ", task.spacing[a], " is not a length"));
    }
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateNonNegative("fixed_edge", task.fixed_edge));
  INTRAWARP_RETURN_IF_ERROR(ValidateNonNegative("moving_edge", task.moving_edge));
  return INTRAWARP_DISPATCH(ctx, EvaluateNgf, task, skip, voxel_gradient, value);
}

int64_t NgfWorkspaceBytes(Int3 size) {
#if INTRAWARP_WITH_CUDA
  return std::max(cpu::NgfWorkspaceBytes(size), cuda::NgfWorkspaceBytes(size));
#else
  return cpu::NgfWorkspaceBytes(size);
#endif
}

}  // namespace intrawarp
