// SPDX-License-Identifier: Apache-2.0
// One affine or rigid stage: Gauss-Newton from the coarsest level to the finest (seed 003, algorithm 1).
#ifndef INTRAWARP_ENGINE_REGISTRATION_AFFINE_H_
#define INTRAWARP_ENGINE_REGISTRATION_AFFINE_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/registration/levels.h"
#include "engine/registration/registration.h"

namespace intrawarp {

struct AffineStageResult {
  AffineMap transform;  // fixed to moving, LPS mm
  AffineMap start;      // the one of the starts that it goes back to
  // Mean objective at the finest level at `transform`, in the optimiser's unit, where a bad start is about 1 (NGF as it
  // is, SSD in variances of the fixed image); absent when a budget ended the stage before.
  std::optional<double> value;
  StageReport report;
};

// Starts from each of `starts` at the coarsest level, goes on with the best. FAILED_PRECONDITION when there is no
// objective at the finest level: too little overlap, no gradients in it (NGF), or sums that overflow; CANCELLED when a
// checkpoint says so. Waits for the stream. Workspace: AffineStageWorkspaceBytes.
absl::StatusOr<AffineStageResult> RunAffineStage(const ExecContext& ctx, const RegistrationImages& images,
                                                 const StageOptions& options, int stage,
                                                 const std::vector<AffineMap>& starts);
int64_t AffineStageWorkspaceBytes();

// Mean objective of `metric` at the finest level, in the same unit; absent where it is undefined (too little
// overlap, for example). Waits for the stream.
absl::StatusOr<std::optional<double>> FinestObjective(const ExecContext& ctx, const RegistrationImages& images,
                                                      MetricKind metric, const AffineMap& transform);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_AFFINE_H_
