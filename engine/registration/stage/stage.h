// SPDX-License-Identifier: Apache-2.0
// The vocabulary of a registration: what a stage is asked to do, and what it reports.
//
// A stage is one of five methods with the options of that method, and of no other. An option that is unset has the
// method's default. ValidateRegistration (validate.h) checks the values. All types are plain values, all functions
// pure.
#ifndef INTRAWARP_ENGINE_REGISTRATION_STAGE_STAGE_H_
#define INTRAWARP_ENGINE_REGISTRATION_STAGE_STAGE_H_

#include <optional>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/geometry/geometry.h"
#include "engine/metric/metric.h"

namespace intrawarp {

// Progress.stage of the work before the first stage: the search of a start, and the search for missing tissue.
inline constexpr int kBeforeStages = -1;

inline constexpr int kMaxStages = 4;
// Limits that every method shares: 1 to kMaxLevels levels, 1 to kMaxIterations iterations.
inline constexpr int kMaxLevels = 16;
inline constexpr int kMaxIterations = 10000;

// The options that every method but search has:
// - metric: what the images are compared by. A metric that the method lacks is UNIMPLEMENTED.
// - levels: pyramid levels at most, finest included. Unset: as many as the images (masks) allow.
// - iterations: iterations at most, for each level.

// A rotation and a translation; scale and shear of the start are kept. Every metric.
struct RigidOptions {
  static constexpr MetricKind kDefaultMetric = MetricKind::kSsd;
  static constexpr int kDefaultIterations = 50;

  std::optional<MetricKind> metric = std::nullopt;
  std::optional<int> levels = std::nullopt;
  std::optional<int> iterations = std::nullopt;
};

// An affine map. Every metric.
struct AffineOptions {
  static constexpr MetricKind kDefaultMetric = MetricKind::kSsd;
  static constexpr int kDefaultIterations = 50;

  std::optional<MetricKind> metric = std::nullopt;
  std::optional<int> levels = std::nullopt;
  std::optional<int> iterations = std::nullopt;
};

// Polak-Ribiere conjugate gradients restart where beta would be below 0.
enum class DescentMethod : int { kLbfgs, kConjugateGradient };

// A cubic B-spline displacement on top of an affine map (ffd.h). Every metric.
struct FfdOptions {
  static constexpr MetricKind kDefaultMetric = MetricKind::kNmi;
  static constexpr int kDefaultIterations = 150;
  // The default of levels when a named stage starts from the control grid of another registration (ffd.h).
  static constexpr int kWarmLevels = 2;
  static constexpr double kDefaultSpacingVox = 5;
  static constexpr double kLeastSpacingVox = 1;
  // The weights' units: a voxel is 1, and a metric at a bad start is about 1.
  static constexpr double DefaultBendingWeight(MetricKind metric);
  static constexpr double kDefaultElasticityWeight = 0;
  static constexpr double kDefaultJacobianWeight = 0.1;
  static constexpr double kDefaultTotalVariationWeight = 0;

  std::optional<MetricKind> metric = std::nullopt;
  std::optional<int> levels = std::nullopt;
  std::optional<int> iterations = std::nullopt;
  // Distance of control points in voxels of the fixed image at the finest level; coarser levels have the same number of
  // their own voxels. A shorter axis has one tile. The default is at most the longest axis of the image.
  std::optional<double> spacing_vox = std::nullopt;
  // Weights against the metric (grid_penalty.h, total_variation.h), finite and not negative.
  std::optional<double> bending_weight = std::nullopt;
  std::optional<double> elasticity_weight = std::nullopt;
  std::optional<double> jacobian_weight = std::nullopt;
  std::optional<double> total_variation_weight = std::nullopt;
  DescentMethod optimizer = DescentMethod::kLbfgs;
  // Tissue slides along tissue: two deformations, each of its own part of the image, instead of one (sliding.h). The
  // result then has a control point a voxel where anything slides, and spacing_vox is the spacing of both deformations.
  // With ssd, without landmarks and without masks of the moving image.
  bool sliding = false;
};

constexpr double FfdOptions::DefaultBendingWeight(MetricKind metric) {
  switch (metric) {
    case MetricKind::kSsd:
      return 0.1;
    case MetricKind::kNmi:
      return 0.5;
    case MetricKind::kLncc:
      return 0.2;
    case MetricKind::kNgf:
      return 0.05;
    case MetricKind::kMind:
      return 0.35;
  }
  return 0;
}

// How the force u updates the velocity v of log-demons: v + u; the velocity field composed with it, v(x + u(x)) + u(x)
// (Leong et al. 2021); the Baker-Campbell-Hausdorff series (BchUpdate).
enum class VelocityUpdate { kAdd, kCompose, kBch };

// The grid of the velocity of log-demons at the finest level, and at each coarser one that is large (log_demons.h): the
// level's own grid, or the grid of the level below, if there is one.
enum class VelocityGrid { kFull, kHalf };

// The image whose gradient drives the force of log-demons; kSymmetric takes the mean of both.
enum class DemonsGradient { kSymmetric, kFixed, kWarped };

// A diffeomorphism on top of an affine map (log_demons.h). The metric is ssd.
struct LogDemonsOptions {
  static constexpr MetricKind kDefaultMetric = MetricKind::kSsd;
  static constexpr int kDefaultIterations = 100;
  // The default of levels when the stage starts from a velocity, which holds already what coarser levels would find: at
  // least two, and so many that no axis has as many voxels as this at the coarsest, if the pyramid goes so far.
  // Coarser levels with such an axis have their velocity on half the grid, too (VelocityGrid::kHalf).
  static constexpr int kWarmLevels = 2, kWarmCoarsestAxis = 128;
  // The defaults of iterations, finest_iterations (with kWarmLevels levels, and with more of them), momentum and
  // velocity_grid then. Momentum makes up for the iterations: a frame of a moving phantom is as close to the truth
  // after 30 of them as after 100 without (docs/evidence/performance.md, Log-demons).
  static constexpr int kWarmIterations = 30, kWarmFinestIterations = 15, kWarmFinestOfManyLevels = 10;
  static constexpr double kWarmMomentum = 0.9;
  static constexpr VelocityGrid kWarmVelocityGrid = VelocityGrid::kHalf;
  static constexpr double kDefaultMomentum = 0, kMaxMomentum = 0.99;
  static constexpr double kDefaultFluidSigma = 2, kDefaultDiffusionSigma = 0.7, kMaxSigma = 64;
  static constexpr double kDefaultMaxStep = 2, kLeastMaxStep = 1e-3, kLargestMaxStep = 100;
  static constexpr double kDefaultWeakGradient = 0.05, kMaxWeakGradient = 100;
  static constexpr double kDefaultTolerance = 1e-3, kMaxTolerance = 1;

  std::optional<int> levels = std::nullopt;
  std::optional<int> iterations = std::nullopt;
  // Standard deviations of the Gaussians over the force and over the velocity, in voxels of the level, 0 to kMaxSigma.
  std::optional<double> fluid_sigma = std::nullopt;
  std::optional<double> diffusion_sigma = std::nullopt;
  // The longest force, in mean voxel sides of the level, kLeastMaxStep to kLargestMaxStep.
  std::optional<double> max_step = std::nullopt;
  // Weaker gradients pull less (demons_step.h): in mean standard deviations of the two images per mean voxel side of
  // the level, 0 to kMaxWeakGradient.
  std::optional<double> weak_gradient = std::nullopt;
  // A level has converged when its value falls by less than this part of itself over kDemonsWindow iterations; 0:
  // never.
  std::optional<double> tolerance = std::nullopt;
  // The largest part of its last change by which the velocity goes on after every update (demons_step.h), 0 (none) to
  // kMaxMomentum.
  std::optional<double> momentum = std::nullopt;
  DemonsGradient gradient = DemonsGradient::kSymmetric;
  VelocityUpdate update = VelocityUpdate::kCompose;
  // Exchanging the images then gives the inverse.
  bool symmetric = false;
  // The moving image is brought to the fixed one's mean and standard deviation in their overlap at every level. Unset:
  // in a pipeline, where the images differ by that at the start (AskForMatching, log_demons.h).
  std::optional<bool> match_intensities = std::nullopt;
  // Unset: kHalf for a stage that starts from a velocity, otherwise kFull.
  std::optional<VelocityGrid> velocity_grid = std::nullopt;
  // At the finest level; unset: as `iterations` where those are given or the stage does not start from a velocity.
  std::optional<int> finest_iterations = std::nullopt;
  // On CUDA the displacements within an exponential are held in float16, to 2^-11 of themselves; the velocity is not.
  bool half_fields = false;
};

// A discrete search for the deformation on top of an affine map (search.h): a coarse control grid, found without a
// start of its own. A search is followed by another, or by ffd, which continues its control grid. The metric is mind.
struct SearchOptions {
  static constexpr MetricKind kDefaultMetric = MetricKind::kMind;

  // The side of a node in mm, at least so long that there are 262144 nodes at most. Unset: about 32000 nodes, or 64 x
  // 64 in 2-D, but none smaller than a voxel.
  std::optional<double> node_mm = std::nullopt;
  // The longest displacement on each axis in mm, at most 12 nodes. Unset: 48 mm, or 8 nodes where these are shorter.
  std::optional<double> range_mm = std::nullopt;
};

using StageOptions = std::variant<RigidOptions, AffineOptions, FfdOptions, LogDemonsOptions, SearchOptions>;

// The name of the stage's method: "rigid", "affine", "ffd", "log-demons" or "search".
absl::string_view MethodName(const StageOptions& options);
// A stage of the method called `name` with nothing set; absent when there is no such method.
std::optional<StageOptions> StageNamed(absl::string_view name);

// The metric that the stage uses: its own, or the method's default.
MetricKind MetricOf(const StageOptions& options);

// The options with every default filled in, for a fixed image on `fixed`, but for those that depend on masks, images
// and start, too: levels, and of log-demons iterations, momentum, velocity_grid and match_intensities.
StageOptions Resolved(const StageOptions& options, const Geometry& fixed);

// Why a stage ended, at its finest level: its value is within the tolerances; it is out of iterations; it is out of
// time (at any level); there was no descent.
enum class StopReason { kConverged, kIterationLimit, kBudget, kNoProgress };

struct LevelReport {
  Int3 size;
  int iterations = 0;
  // The objective: SSD in variances of the fixed image for ffd and log-demons, in the images' own intensities for rigid
  // and affine; with the penalties of ffd. value_after of a log-demons level that was cut short is the objective before
  // its last update.
  double value_before = 0;
  double value_after = 0;
};

struct StageReport {
  // The options with every default filled in; levels is the number of levels that the stage set out to run.
  StageOptions options;
  StopReason stop_reason = StopReason::kBudget;
  // Coarsest first: the levels that ran and had a value.
  std::vector<LevelReport> levels;
  // Set by a stage of FfdOptions with `sliding`: the part of the fixed image's (mask's) voxels that are in the second
  // layer, 0 to 1. 0: the result is one deformation, since nothing slides, or since a budget ended the stage before its
  // first round was over.
  std::optional<double> second_layer_fraction = std::nullopt;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_STAGE_STAGE_H_
