// SPDX-License-Identifier: Apache-2.0
// Planning on each device; multiply.h has the meaning and checks the arguments first.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_KERNELS_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_KERNELS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/multiply.h"

namespace intrawarp {

// How often a plan will be executed. Planning for one execution may leave a part of C's columns for the execution to
// write.
enum class Executions { kOnce, kAnyNumber };

// The result of planning: the pattern of C and the device's part of the plan.
struct PlannedProduct {
  CsrPattern c;
  std::unique_ptr<DevicePlan> device_plan;
};

// Device memory for `what`, `bytes_each` bytes for each of C's entries. RESOURCE_EXHAUSTED with the numbers, also where
// their product overflows.
absl::StatusOr<Buffer> AllocateForEntries(const ExecContext& ctx, absl::string_view what, int64_t entries,
                                          int64_t bytes_each);

namespace cpu {
absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options);
absl::StatusOr<PlannedProduct> PlanMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                            const ConstPatternView& b, const MultiplyOptions& options,
                                            Executions executions);
}  // namespace cpu

namespace cuda {
absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options);
absl::StatusOr<PlannedProduct> PlanMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                            const ConstPatternView& b, const MultiplyOptions& options,
                                            Executions executions);
}  // namespace cuda

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_KERNELS_H_
