// SPDX-License-Identifier: Apache-2.0
// One log-demons stage: a diffeomorphism on top of an affine map, T(x) = A(exp(v)(x)), with v a stationary velocity on
// the fixed image's grid (Vercauteren et al. 2008, "Symmetric log-domain diffeomorphic registration"; Leong et al.
// 2021, algorithm 1), from the coarsest level to the finest.
//
// An iteration: s = exp(v); the moving image at A(x + s(x)); the force u (demons_step.h); u smoothed by the fluid
// sigma; v updated by u; v smoothed by the diffusion sigma. The symmetric mode takes the mean of that force and of
// minus the force of the exchanged images at exp(-v), so that exchanging the images gives -v after as many iterations
// (its value, which says when to stop, is that of the first direction). All sizes are in voxels of the level. The value
// of a level is the mean squared difference in variances of the fixed image. On request the moving image is brought to
// the fixed image's mean and standard deviation at the start of every level, over the samples that both have there. It
// serves images of different gain and offset; where both have the same background (0 around a brain, say) it moves one
// background against the other, which drives the velocity, and does harm.
//
// The host enqueues a few iterations at a time (on CUDA an iteration is a graph) and then looks at the state once; the
// state stops them on the device.
#ifndef INTRAWARP_ENGINE_REGISTRATION_LOG_DEMONS_H_
#define INTRAWARP_ENGINE_REGISTRATION_LOG_DEMONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/registration/demons_step.h"
#include "engine/registration/levels.h"
#include "engine/registration/registration.h"

namespace intrawarp {

inline constexpr int kDefaultLogDemonsIterations = 100;
// From an initial velocity: what a coarser level would find is there already, and it would only be lost and found
// again.
inline constexpr int kWarmLogDemonsLevels = 2;

struct LogDemonsOptions {
  // Pyramid levels at most, finest included; 0: as many as the images (masks) allow, from an initial velocity
  // kWarmLogDemonsLevels of them.
  int levels = 0;
  // Iterations a level at most.
  int iterations = kDefaultLogDemonsIterations;
  // Standard deviations in voxels of the level, in [0, 64].
  double fluid_sigma = 2;
  double diffusion_sigma = 0.7;
  // The longest force, in mean voxel sides of the level; in (0, 100].
  double max_step = 2;
  // Weaker gradients pull less (demons_step.h): in mean standard deviations of the two images per mean voxel
  // side of the level; in [0, 100].
  double weak_gradient = 0.1;
  // Converged when the value falls by less than this part of itself over kDemonsWindow iterations; 0: never.
  double tolerance = 1e-3;
  DemonsGradient gradient = DemonsGradient::kSymmetric;
  VelocityUpdate update = VelocityUpdate::kCompose;
  bool symmetric = false;
  bool match_intensities = false;
  // On CUDA the displacements within an exponential are held in float16, to 2^-11 of themselves; the velocity is not.
  bool half_fields = false;
};

// A velocity in voxels of `size` (index units, three float32 a voxel) on the fixed image's domain; device memory.
struct ConstVelocityView {
  const float* data = nullptr;
  Int3 size;
};

struct LogDemonsStageResult {
  // On the fixed image's grid; freed in the order of the context's stream.
  Buffer velocity;
  std::vector<LevelReport> levels;
  StopReason stop_reason = StopReason::kBudget;
};

// `affine` is kept. `initial` (data may be null) starts from a velocity on any grid over the fixed image's domain: the
// result of the frame before, for example. Looks at ctx.Checkpoint every few iterations: kStop returns what there is,
// kCancel CANCELLED. INVALID_ARGUMENT "fluid_sigma: ..." and so on; FAILED_PRECONDITION when the images (masks) do not
// overlap enough or differences overflow. Waits for the stream. Workspace: LogDemonsWorkspaceBytes.
absl::StatusOr<LogDemonsStageResult> RunLogDemonsStage(const ExecContext& ctx, const RegistrationImages& images,
                                                       const LogDemonsOptions& options, int stage,
                                                       const AffineMap& affine, const ConstVelocityView& initial);
int64_t LogDemonsWorkspaceBytes(const PreparedImage& fixed, const PreparedImage& moving);

absl::Status ValidateLogDemons(const LogDemonsOptions& options);

// Of a pipeline's stage: defaults where it sets nothing.
LogDemonsOptions ToLogDemonsOptions(const StageOptions& stage);

// The mean squared difference in variances of the fixed image at the finest level, with `velocity` (on the fixed
// image's grid; data may be null: none) and intensities matched there when the options say so; absent with too little
// overlap. Waits for the stream. Workspace: LogDemonsWorkspaceBytes.
absl::StatusOr<std::optional<double>> FinestLogDemonsObjective(const ExecContext& ctx, const RegistrationImages& images,
                                                               const LogDemonsOptions& options, const AffineMap& affine,
                                                               const ConstVelocityView& velocity);

// The one of `starts` that overlaps enough and has the least of the same at the stage's coarsest level, without a
// velocity. Waits for the stream. Workspace: LogDemonsWorkspaceBytes.
absl::StatusOr<AffineMap> ChooseLogDemonsStart(const ExecContext& ctx, const RegistrationImages& images,
                                               const LogDemonsOptions& options, const std::vector<AffineMap>& starts);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_LOG_DEMONS_H_
