// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/ffd_objective.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

absl::Status ValidateMask(const char* name, const ConstMaskView& mask, const Geometry& grid) {
  if (mask.data == nullptr || SameGrid(mask.geometry, grid)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", SizeString(mask.geometry),
                                                 " voxels, must lie on its image's grid of ", SizeString(grid)));
}

}  // namespace

absl::Status FfdEvaluator::Evaluate(const ExecContext& ctx, const float* grid, const int* skip, float* gradient,
                                    MetricValue* value) {
  INTRAWARP_RETURN_IF_ERROR(Measure(ctx, grid, skip, gradient != nullptr, value));
  return gradient == nullptr ? absl::OkStatus() : Gather(ctx, skip, value, /*adds=*/false, gradient);
}

absl::StatusOr<std::unique_ptr<FfdEvaluator>> MakeFfdEvaluator(const ExecContext& ctx, const FfdObjective& objective) {
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("fixed_mask", objective.fixed_mask, objective.fixed.geometry));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("moving_mask", objective.moving_mask, objective.moving.geometry));
  return INTRAWARP_DISPATCH(ctx, MakeFfdEvaluator, objective);
}

int64_t FfdEvaluatorBytes([[maybe_unused]] const Device& device, MetricKind metric, const Geometry& fixed,
                          const Geometry& moving, const Geometry& grid) {
#if INTRAWARP_WITH_CUDA
  if (device.kind() == DeviceKind::kCuda) return cuda::FfdEvaluatorBytes(metric, fixed, moving, grid);
#endif
  return cpu::FfdEvaluatorBytes(metric, fixed, moving, grid);
}

}  // namespace intrawarp
