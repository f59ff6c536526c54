// SPDX-License-Identifier: Apache-2.0
// One FFD stage: a cubic B-spline displacement on top of an affine map, from the coarsest level to the finest, the
// control grid refined from level to level.
#ifndef INTRAWARP_ENGINE_REGISTRATION_FFD_H_
#define INTRAWARP_ENGINE_REGISTRATION_FFD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/registration/levels.h"
#include "engine/registration/registration.h"
#include "engine/transform/grid_penalty.h"
#include "engine/transform/transform.h"

namespace intrawarp {

inline constexpr double kDefaultSpacingVox = 5;
inline constexpr int kDefaultFfdIterations = 150;

// Of the penalties that a stage does not set.
PenaltyWeights DefaultPenaltyWeights(MetricKind metric);

struct FfdStageResult {
  // With the control grid of the finest level reached; its u is that of the start (0 without one) when a budget ended
  // the stage before it began.
  Transform transform{AffineMap::Identity()};
  // Values are the objective's: SSD in variances of the fixed image, with penalties.
  StageReport report;
};

// T = A(x + u(x)) with `affine` kept and u found. `initial` (may be null): a transform whose control grid, if it has
// one, is where to start from; the stage's own finest spacing is then that of every level. Where the result of the
// finest level folds, its control points are smoothed until it no longer does (fold_smoothing.h), within limits: of
// rounds, and of time, which a checkpoint asks for every few rounds. Errors and checkpoints as Register. Waits for the
// stream. Workspace: FfdStageWorkspaceBytes.
absl::StatusOr<FfdStageResult> RunFfdStage(const ExecContext& ctx, const RegistrationImages& images,
                                           const StageOptions& options, int stage, const AffineMap& affine,
                                           const Transform* initial);
int64_t FfdStageWorkspaceBytes(const Device& device, const PreparedImage& fixed, const StageOptions& options);

// Device memory that the result's transform holds at most: less when a budget ended the stage at a coarser level.
int64_t FfdResultBytes(const Geometry& fixed, const StageOptions& options);

// The one of `starts` that the stage's metric likes best at its coarsest level, with u = 0. Waits for the stream.
// Workspace: that of the stage.
absl::StatusOr<AffineMap> ChooseFfdStart(const ExecContext& ctx, const RegistrationImages& images,
                                         const StageOptions& options, const std::vector<AffineMap>& starts);

// The stage's metric, without penalties, at its finest level and on its finest grid; absent where it is undefined.
// Waits for the stream. Workspace: that of the stage.
absl::StatusOr<std::optional<double>> FinestFfdObjective(const ExecContext& ctx, const RegistrationImages& images,
                                                         const StageOptions& options, const Transform& transform);

// What RunFfdStage can know to be wrong before work starts: INVALID_ARGUMENT "spacing_vox: ...", "bending_weight: ..."
// (not finite or negative; likewise the others).
absl::Status ValidateFfdStage(const Geometry& fixed, const StageOptions& options);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_FFD_H_
