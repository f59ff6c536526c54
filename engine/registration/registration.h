// SPDX-License-Identifier: Apache-2.0
// Registration of two prepared images: a pipeline of stages, each starting from the result of the one before.
#ifndef INTRAWARP_ENGINE_REGISTRATION_REGISTRATION_H_
#define INTRAWARP_ENGINE_REGISTRATION_REGISTRATION_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/metric/metric.h"
#include "engine/registration/descent.h"
#include "engine/transform/transform.h"

namespace intrawarp {

enum class Method { kRigid, kAffine, kFfd, kLogDemons };

// How the force u updates the velocity v of log-demons: v + u; the velocity field composed with it, v(x + u(x)) + u(x)
// (Leong et al. 2021); the Baker-Campbell-Hausdorff series (BchUpdate).
enum class VelocityUpdate { kAdd, kCompose, kBch };

// Of a stage at its finest level: within the tolerances; out of iterations; out of time (at any level); no descent.
enum class StopReason { kConverged, kIterationLimit, kBudget, kNoProgress };

struct StageOptions {
  Method method = Method::kAffine;
  MetricKind metric = MetricKind::kSsd;
  // Pyramid levels at most, finest included; 0: as many as the images (masks) allow, but of a log-demons stage that
  // starts from a velocity, 2.
  int levels = 0;
  // Iterations a level at most; 0: the method's default (rigid, affine 50; ffd 150; log-demons 100).
  int iterations = 0;
  // From here for ffd alone.
  // Distance of control points in voxels of the fixed image at the finest level, at least 1; coarser levels have the
  // same number of their own voxels. 0: the default (5). A shorter axis has one tile.
  double spacing_vox = 0;
  // Weights against the metric (grid_penalty.h); unset: the default of the metric (ffd.h).
  std::optional<double> bending_weight = std::nullopt;
  std::optional<double> elasticity_weight = std::nullopt;
  std::optional<double> jacobian_weight = std::nullopt;
  DescentMethod optimizer = DescentMethod::kLbfgs;
  // From here for log-demons alone (log_demons.h), whose metric is ssd. Standard deviations of the Gaussians over the
  // force and over the velocity in voxels of the level, and the longest force in mean voxel sides; unset: the defaults.
  std::optional<double> fluid_sigma = std::nullopt;
  std::optional<double> diffusion_sigma = std::nullopt;
  std::optional<double> max_step = std::nullopt;
  // Weaker gradients pull less (log_demons.h); unset: the default.
  std::optional<double> weak_gradient = std::nullopt;
  VelocityUpdate update = VelocityUpdate::kCompose;
  // Exchanging the images then gives the inverse.
  bool symmetric = false;
  // The moving image is brought to the fixed one's mean and standard deviation in their overlap at every level.
  bool match_intensities = false;
};

inline constexpr int kMaxStages = 4;
inline constexpr int kMaxLevels = 16;
inline constexpr int kMaxIterations = 10000;

struct RegistrationInput {
  const PreparedImage* fixed = nullptr;
  const PreparedImage* moving = nullptr;
  // On their images' grids; a mask voxel counts where the image is not 0. Null: no mask.
  const PreparedImage* fixed_mask = nullptr;
  const PreparedImage* moving_mask = nullptr;
  std::vector<StageOptions> stages;
  // Fixed to moving, LPS mm. Unset: the better of header alignment and centre of mass, judged at the coarsest level.
  std::optional<AffineMap> initial;
  // Instead of `initial`: its affine part starts every stage, its velocity a log-demons stage, its control grid an ffd
  // stage, which then keeps the finest spacing on every level so that nothing of it is lost, and leaves out levels of
  // larger voxels than that. Null: none.
  const Transform* initial_transform = nullptr;
};

struct LevelReport {
  Int3 size;
  int iterations = 0;
  // The objective; of a level of log-demons that was cut short, value_after is that before its last update.
  double value_before = 0;
  double value_after = 0;
};

struct StageReport {
  Method method = Method::kAffine;
  MetricKind metric = MetricKind::kSsd;
  StopReason stop_reason = StopReason::kConverged;
  std::vector<LevelReport> levels;
};

struct RegistrationResult {
  // With a control grid after an ffd stage, a velocity after a log-demons stage; its memory is freed in the order of
  // the context's stream. Its domain is the fixed image's grid.
  Transform transform{AffineMap::Identity()};
  StopReason stop_reason = StopReason::kConverged;
  std::vector<StageReport> stages;
  // The objective of the last stage, at the finest level: clearly above what it was at the start of the first, or
  // undefined (too little overlap) where the start had one.
  bool worse_than_start = false;
};

// Everything that can be known to be wrong before work starts. INVALID_ARGUMENT: no stage or too many, levels or
// iterations out of range ("stages[0].levels: ..."), an option that its stage's method does not take, another
// method after an ffd or log-demons stage, a mask on another grid ("fixed_mask: ..."), an initial matrix that is not
// finite or singular; 2-D with non-parallel planes. UNIMPLEMENTED: a 2-D image with a 3-D one, a metric that the method
// does not take, a start from a displacement field, or of one deformable method from the result of the other.
// FAILED_PRECONDITION: a constant image ("fixed: ..." or "moving: ..."); NGF on a fixed image with an axis of two
// voxels; NMI on an image with fewer voxels than bins.
absl::Status ValidateRegistration(const RegistrationInput& input);

// Device memory that Register takes from the arena of a context on `device`.
int64_t RegistrationWorkspaceBytes(const Device& device, const RegistrationInput& input);
// Device memory that the result's transform holds at most, for a valid input; a little less when a budget ends an ffd
// stage early.
int64_t RegistrationResultBytes(const RegistrationInput& input);

// Runs the stages. Looks at ctx.Checkpoint between iterations (on CUDA every few): kStop returns the best so far with
// stop_reason kBudget, kCancel returns CANCELLED. FAILED_PRECONDITION when the images (or masks) do not overlap enough,
// a mask selects nothing, or the objective is undefined (affine.h). Waits for the stream.
absl::StatusOr<RegistrationResult> Register(const ExecContext& ctx, const RegistrationInput& input);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_REGISTRATION_H_
