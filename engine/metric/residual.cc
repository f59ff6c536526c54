// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/residual.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/metric/residual_kernels.h"

namespace intrawarp {
namespace {

absl::Status ValidateSize(Int3 size) {
  for (int a = 0; a < 3; ++a) {
    if (size[a] < 1 || size[a] > kMaxAxis) {
      return absl::InvalidArgumentError(absl::StrCat("size: ", size[a], " is not in [1, ", kMaxAxis, "]"));
    }
  }
  return absl::OkStatus();
}

// Not negative, and finite.
absl::Status ValidateMagnitude(const char* name, double v) {
  if (v >= 0 && std::isfinite(v)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", v, " is negative or not finite"));
}

}  // namespace

LnccWindow MakeLnccWindow(double sigma) {
  LnccWindow window;
  window.radius = static_cast<int>(std::ceil(3 * sigma));
  double weights[kMaxLnccRadius + 1], sum = 0;
  for (int k = 0; k <= window.radius; ++k) {
    weights[k] = std::exp(-0.5 * (k / sigma) * (k / sigma));
    sum += k == 0 ? weights[k] : 2 * weights[k];
  }
  for (int k = 0; k <= window.radius; ++k) window.weights[k] = static_cast<float>(weights[k] / sum);
  return window;
}

NgfScales MakeNgfScales(const NgfTask& task) {
  NgfScales s;
  for (int a = 0; a < 3; ++a) {
    s.half_inverse[a] = task.size[a] > 1 ? static_cast<float>(0.5 / task.spacing[a]) : 0.0f;
  }
  s.fixed_eta2 = std::max(static_cast<float>(task.fixed_edge * task.fixed_edge), kNgfTiny);
  s.moving_eta2 = std::max(static_cast<float>(task.moving_edge * task.moving_edge), kNgfTiny);
  return s;
}

absl::Status LnccResidual(const ExecContext& ctx, const LnccTask& task, const int* skip, float* residual,
                          FfdValue* value) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(task.size));
  if (!(task.sigma > 0 && task.sigma <= kMaxLnccSigma)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sigma: ", task.sigma, " is not in (0, ", kMaxLnccSigma, "] voxels"));
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateMagnitude("fixed_floor", task.fixed_floor));
  INTRAWARP_RETURN_IF_ERROR(ValidateMagnitude("moving_floor", task.moving_floor));
  return INTRAWARP_DISPATCH(ctx, LnccResidual, task, skip, residual, value);
}

absl::Status NgfResidual(const ExecContext& ctx, const NgfTask& task, const int* skip, float* residual,
                         FfdValue* value) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(task.size));
  for (int a = 0; a < 3; ++a) {
    if (!(task.spacing[a] > 0 && std::isfinite(task.spacing[a]))) {
      return absl::InvalidArgumentError(absl::StrCat("spacing: ", task.spacing[a], " is not a length"));
    }
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateMagnitude("fixed_edge", task.fixed_edge));
  INTRAWARP_RETURN_IF_ERROR(ValidateMagnitude("moving_edge", task.moving_edge));
  return INTRAWARP_DISPATCH(ctx, NgfResidual, task, skip, residual, value);
}

int64_t LnccWorkspaceBytes(Int3 size) {
#if INTRAWARP_WITH_CUDA
  return std::max(cpu::LnccWorkspaceBytes(size), cuda::LnccWorkspaceBytes(size));
#else
  return cpu::LnccWorkspaceBytes(size);
#endif
}

int64_t NgfWorkspaceBytes(Int3 size) {
#if INTRAWARP_WITH_CUDA
  return std::max(cpu::NgfWorkspaceBytes(size), cuda::NgfWorkspaceBytes(size));
#else
  return cpu::NgfWorkspaceBytes(size);
#endif
}

}  // namespace intrawarp
