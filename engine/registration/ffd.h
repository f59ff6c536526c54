// SPDX-License-Identifier: Apache-2.0
// One FFD stage: a cubic B-spline displacement on top of an affine map, from the coarsest level to the finest, the control
// grid refined from level to level.
#ifndef INTRAWARP_ENGINE_REGISTRATION_FFD_H_
#define INTRAWARP_ENGINE_REGISTRATION_FFD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/registration/affine.h"
#include "engine/registration/registration.h"
#include "engine/transform/transform.h"

namespace intrawarp {

inline constexpr double kDefaultSpacingVox = 5;
inline constexpr int kDefaultFfdIterations = 150;

struct FfdStageResult {
  // The control grid at the finest level reached; empty when a budget ended the stage before it began.
  Buffer control_points;
  Geometry grid;
  // Objective at the finest level at the result, and with u = 0 (or the initial grid); absent where a budget ended the
  // stage before, or where it is undefined.
  std::optional<double> value;
  std::optional<double> value_before;
  StageReport report;
};

// T = A(x + u(x)) with `affine` kept and u found. `initial` (may be null): a control grid to start from. While det(I +
// grad u) is not above 0 at every voxel of the fixed image, the finest level goes on with a growing jacobian weight, a
// few times at most. Errors and checkpoints as Register. Waits for the stream. Workspace: FfdStageWorkspaceBytes.
absl::StatusOr<FfdStageResult> RunFfdStage(const ExecContext& ctx, const AffineImages& images,
                                           const StageOptions& options, int stage, const AffineMap& affine,
                                           const Transform* initial);
int64_t FfdStageWorkspaceBytes(const ExecContext& ctx, const AffineImages& images, const StageOptions& options);

// What RunFfdStage can know to be wrong before work starts: INVALID_ARGUMENT "spacing_vox: ...", "bending_weight: ..."
// (not finite or negative; likewise the others).
absl::Status ValidateFfdStage(const Geometry& fixed, const StageOptions& options);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_FFD_H_
