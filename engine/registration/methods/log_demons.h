// SPDX-License-Identifier: Apache-2.0
// One log-demons stage: a diffeomorphism on top of an affine map, T(x) = A(exp(v)(x)), with v a stationary velocity on
// the fixed image's grid (Vercauteren et al. 2008, "Symmetric log-domain diffeomorphic registration"; Leong et al.
// 2021, algorithm 1), from the coarsest level to the finest.
//
// An iteration: s = exp(v); the moving image at A(x + s(x)); the force u, smoothed by the fluid sigma
// (demons_step.h); v updated by u; v smoothed by the diffusion sigma. The symmetric mode takes the mean of that force
// and of minus the force of the exchanged images at exp(-v), numerators and denominators apart, so that exchanging the
// images gives -v after as many iterations (its value, which says when to stop, is that of the first direction). All
// sizes are in voxels of the level. The value of a level is the mean squared difference in variances of the fixed
// image. On request the moving image is brought to the fixed image's mean and standard deviation at the start of every
// level, over the samples that both have there. This matching serves images of different gain and offset. It harms
// images of the same background (0 around a brain, say) and of other content: it moves one background against the
// other, and the difference drives the velocity. Without a word the method of a pipeline therefore does it where the
// images ask for it (AskForMatching), which images of equal gain do not, however far apart they are.
//
// With VelocityGrid::kHalf the finest level, and each coarser one with an axis of kWarmCoarsestAxis voxels or more, has
// its velocity, and with it the force, on the grid of the level below. The force is made at every voxel of the images,
// and its mean is taken over the velocity's voxel. The sigmas stay in voxels of the images. Exponential, smoothing and
// update then take an eighth of the work. The velocity of the result is the trilinear interpolation of that velocity.
//
// With momentum an iteration ends beyond the velocity that it came to, in the direction from where the one before came
// to (Nesterov 1983). This reaches far from edges, where a force smoothed by the fluid sigma spreads a few voxels an
// iteration. A stage that starts from a velocity has it by default, and fewer iterations.
//
// The host enqueues a few iterations at a time (on CUDA an iteration is a graph) and then looks at the state once; the
// state stops them on the device.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_LOG_DEMONS_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_LOG_DEMONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/registration/methods/method.h"
#include "engine/registration/stage/levels.h"
#include "engine/registration/stage/stage.h"

namespace intrawarp {

// The method of a pipeline (log_demons_method.cc): chooses a start and whether intensities are matched, runs the stage
// below, and smooths its velocity until neither exponential folds between any voxels (velocity_unfolding.h). The same
// holds for the transform that a coarse hook gets. The result's value is absent when the last value of the stage does
// not stand for it.
extern const Method kLogDemonsMethod;

// A velocity in voxels of `size` (index units, three float32 a voxel) on the fixed image's domain; device memory.
struct ConstVelocityView {
  const float* data = nullptr;
  Int3 size;
};

// Matching is asked for where the images' means and standard deviations, over what both have, differ by kLeastMatched
// of the fixed image's variance or more (a gain of 1 +- 0.07, or an offset of 0.07 standard deviations), in squares,
// and this is kLeastMatchedPart or more of the mean squared difference of the images; at the start, at the coarsest
// level of some thousand voxels. Waits for the stream. Workspace: LogDemonsWorkspaceBytes.
inline constexpr double kLeastMatched = 0.005;
inline constexpr double kLeastMatchedPart = 0.1;
absl::StatusOr<bool> AskForMatching(const ExecContext& ctx, const RegistrationImages& images,
                                    const LogDemonsOptions& options, const AffineMap& affine,
                                    const ConstVelocityView& velocity);

struct LogDemonsStageResult {
  // On the fixed image's grid; freed in the order of the context's stream.
  Buffer velocity;
  StageReport report;
};

// Takes a velocity on a grid over the fixed image's domain; may be empty.
using VelocityFn = std::function<absl::Status(const ConstVelocityView&)>;

// Keeps `affine`, and starts from `initial`: a velocity on any grid over the fixed image's domain (data may be null:
// none), the result of the frame before, for example. Unset options have their defaults, match_intensities false. Looks
// at ctx.Checkpoint every few iterations: kStop returns the velocity so far, kCancel CANCELLED. `on_coarse` is called
// once, with the velocity before the finest level, if another level ran before and the stage was not stopped; its error
// is returned. INVALID_ARGUMENT "fluid_sigma: ..." and so on; FAILED_PRECONDITION when the images (masks) do not
// overlap enough or differences overflow. Waits for the stream. Workspace: LogDemonsWorkspaceBytes, and not less than
// LogDemonsCoarseBytes plus that of on_coarse.
absl::StatusOr<LogDemonsStageResult> RunLogDemonsStage(const ExecContext& ctx, const RegistrationImages& images,
                                                       const LogDemonsOptions& options, int stage,
                                                       const AffineMap& affine, const ConstVelocityView& initial,
                                                       const VelocityFn& on_coarse = {});
int64_t LogDemonsWorkspaceBytes(const PreparedImage& fixed, const PreparedImage& moving);
// The device memory that the stage has taken from the arena when it calls on_coarse.
int64_t LogDemonsCoarseBytes(const PreparedImage& fixed);

// INVALID_ARGUMENT, naming the field: a value that is set is out of its range (stage.h).
absl::Status ValidateLogDemons(const LogDemonsOptions& options);

// Fills in every default but the defaults of levels, iterations, finest_iterations, momentum, velocity_grid and
// match_intensities, which depend on the images and on where the stage starts. The second function leaves out levels
// and match_intensities only; its stage has `levels` levels and starts from a velocity (`warm`) or not.
LogDemonsOptions Resolved(LogDemonsOptions options);
LogDemonsOptions Resolved(LogDemonsOptions options, bool warm, int levels);

// The mean squared difference in variances of the fixed image at the finest level, with `velocity` (on the fixed
// image's grid; data may be null: none) and intensities matched there when the options say so (unset: not); absent with
// too little overlap. Waits for the stream. Workspace: LogDemonsWorkspaceBytes.
absl::StatusOr<std::optional<double>> FinestLogDemonsObjective(const ExecContext& ctx, const RegistrationImages& images,
                                                               const LogDemonsOptions& options, const AffineMap& affine,
                                                               const ConstVelocityView& velocity);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_LOG_DEMONS_H_
