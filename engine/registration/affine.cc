// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/affine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/registration/gauss_newton.h"
#include "engine/registration/levels.h"

namespace intrawarp {
namespace {

constexpr int kDefaultIterations = 50;
// The coarsest level is the first whose longest axis is at most this.
constexpr int kCoarsestAxis = 24;
// Coarser levels stop at steps of about a hundredth of a voxel: the next level's own minimum is farther away than that.
constexpr double kCoarseValueTolerance = 1e-5, kCoarseStepTolerance = 1e-3, kCoarseGradientTolerance = 1e-3;

// One level, ready to be optimised: the objective, and how W and the transform follow from each other.
struct Level {
  AffineObjective objective;
  GaussNewtonProblem problem;
  AffineMap physical_to_moving;      // LPS mm to moving index
  AffineMap normalized_to_physical;  // q to LPS mm
};

Vec3d Column(const Geometry& g, int c) { return {g.direction[0][c], g.direction[1][c], g.direction[2][c]}; }

// W of a transform. In 2-D the fixed plane goes onto the moving plane, and its normal onto the normal.
AffineMap ToIndexSpace(const Level& level, const AffineMap& transform) {
  AffineMap w = Compose(level.physical_to_moving, Compose(transform, level.normalized_to_physical));
  if (level.problem.dimensions == 2) {
    const Geometry& f = level.objective.fixed.geometry;
    const Geometry& m = level.objective.moving.geometry;
    const double along = Dot(Column(f, 2), Column(m, 2)) < 0 ? -1 : 1;
    w.m[0][2] = w.m[1][2] = 0;
    for (double& entry : w.m[2]) entry = 0;
    w.m[2][2] = 0.5 * along * f.spacing.z / m.spacing.z;
  }
  return w;
}

AffineMap ToPhysicalSpace(const Level& level, const AffineMap& w) {
  return Compose(Inverse(level.physical_to_moving), Compose(w, Inverse(level.normalized_to_physical)));
}

void SetRigid(const Level& level, GaussNewtonProblem* problem) {
  const AffineMap from_moving = Inverse(level.physical_to_moving);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) {
      problem->to_moving[r][c] = level.physical_to_moving.m[r][c];
      problem->from_moving[r][c] = from_moving.m[r][c];
      problem->rotation_axis[r][c] = problem->translation_axis[r][c] = r == c ? 1 : 0;
    }
  }
  if (problem->dimensions == 3) return;
  const Geometry& m = level.objective.moving.geometry;
  for (int c = 0; c < 3; ++c) {
    problem->rotation_axis[0][c] = Column(m, 2)[c];
    problem->translation_axis[0][c] = Column(m, 0)[c];
    problem->translation_axis[1][c] = Column(m, 1)[c];
  }
}

Level MakeLevel(const RegistrationImages& images, const StageOptions& options, int index) {
  const PyramidLevel& fixed = images.fixed->levels()[index];
  const int moving_index = MatchingLevel(*images.moving, fixed.volume.geometry);
  const PyramidLevel& moving = images.moving->levels()[moving_index];
  const MaskLevel &fixed_mask = images.fixed_masks[index], &moving_mask = images.moving_masks[moving_index];
  Level level;
  level.objective = {options.metric,
                     fixed.volume,
                     moving.volume,
                     fixed_mask.mask,
                     moving_mask.mask,
                     fixed.mean_gradient,
                     kMovingEdge * moving.mean_gradient,
                     1.0};
  if (options.metric == MetricKind::kSsd) level.objective.intensity_scale = 1 / images.fixed->statistics().stddev;
  level.physical_to_moving = PhysicalToIndex(moving.volume.geometry);
  level.normalized_to_physical =
      Compose(IndexToPhysical(fixed.volume.geometry), NormalizedToIndex(fixed.volume.geometry));
  GaussNewtonProblem& problem = level.problem;
  problem.rigid = options.method == Method::kRigid;
  problem.dimensions = fixed.volume.geometry.is_2d() ? 2 : 3;
  problem.max_iterations = options.iterations > 0 ? options.iterations : kDefaultIterations;
  if (index > 0) {
    problem.value_tolerance = kCoarseValueTolerance;
    problem.step_tolerance = kCoarseStepTolerance;
    problem.gradient_tolerance = kCoarseGradientTolerance;
  }
  problem.min_samples = MinSamples(images, options.metric, index);
  SetRigid(level, &problem);
  return level;
}

// What is reported: NGF as it is, SSD in the images' own intensities.
double ReportedValue(const Level& level, double value) {
  return value / (level.objective.intensity_scale * level.objective.intensity_scale);
}

struct LevelRun {
  GaussNewtonState state;
  Decision decision = Decision::kContinue;
};

absl::StatusOr<LevelRun> RunLevel(const ExecContext& ctx, const Level& level, const AffineMap& transform,
                                  Progress progress) {
  LevelRun run;
  run.state.problem = level.problem;
  run.state.trial = run.state.current = ToIndexSpace(level, transform);
  const int batch = EvaluationsAtOnce(ctx, level.objective.fixed.geometry);
  while (run.state.status == GaussNewtonStatus::kRunning) {
    progress.iteration = run.state.iterations;
    progress.value = ReportedValue(level, run.state.value);
    run.decision = ctx.Checkpoint(progress);
    if (run.decision == Decision::kCancel) return absl::CancelledError("cancelled");
    if (run.decision == Decision::kStop) break;
    INTRAWARP_RETURN_IF_ERROR(RunGaussNewton(ctx, level.objective, batch, &run.state));
  }
  return run;
}

SampledValue ValueOf(const GaussNewtonState& state) {
  return {state.started ? std::optional<double>(state.value) : std::nullopt, static_cast<double>(state.samples)};
}

StopReason ToStopReason(GaussNewtonStatus status) {
  switch (status) {
    case GaussNewtonStatus::kConverged:
      return StopReason::kConverged;
    case GaussNewtonStatus::kIterationLimit:
      return StopReason::kIterationLimit;
    default:
      return StopReason::kNoProgress;
  }
}

absl::Status NotStarted(GaussNewtonStatus why) {
  switch (why) {
    case GaussNewtonStatus::kNoWeight:
      return absl::FailedPreconditionError("fixed: no gradients where the images (masks) overlap, which ngf needs");
    case GaussNewtonStatus::kNotFinite:
      return absl::FailedPreconditionError("fixed, moving: intensities so large (or small) that sums are not finite");
    default:
      return TooLittleOverlap();
  }
}

// Index of the coarsest level to use.
int CoarsestLevel(const RegistrationImages& images, int wanted) {
  const auto& levels = images.fixed->levels();
  int coarsest = 0;
  while (coarsest + 1 < static_cast<int>(levels.size())) {
    const Int3 n = levels[coarsest].volume.geometry.size;
    if (std::max({n.x, n.y, n.z}) <= kCoarsestAxis || images.fixed_masks[coarsest + 1].count == 0) break;
    ++coarsest;
  }
  return wanted > 0 ? std::min(coarsest, wanted - 1) : coarsest;
}

}  // namespace

absl::StatusOr<AffineStageResult> RunAffineStage(const ExecContext& ctx, const RegistrationImages& images,
                                                 const StageOptions& options, int stage,
                                                 const std::vector<AffineMap>& starts) {
  AffineStageResult result;
  result.transform = result.start = starts.front();
  result.report.method = options.method;
  result.report.metric = options.metric;
  result.report.stop_reason = StopReason::kBudget;
  const int levels = CoarsestLevel(images, options.levels) + 1;
  std::vector<AffineMap> candidates = starts;
  for (int index = levels - 1; index >= 0; --index) {
    const Level level = MakeLevel(images, options, index);
    const Progress progress{stage, levels - 1 - index, levels, 0, 0};
    std::optional<LevelRun> best;
    for (const AffineMap& start : candidates) {
      INTRAWARP_ASSIGN_OR_RETURN(LevelRun run, RunLevel(ctx, level, start, progress));
      if (!best.has_value() || IsBetter(ValueOf(run.state), ValueOf(best->state))) {
        best = std::move(run);
        if (candidates.size() > 1) result.start = start;
      }
      if (run.decision == Decision::kStop) {
        best->decision = Decision::kStop;
        break;
      }
    }
    const GaussNewtonState& state = best->state;
    if (state.started) {
      result.transform = ToPhysicalSpace(level, state.current);
      candidates = {result.transform};
      result.report.levels.push_back({level.objective.fixed.geometry.size, state.iterations,
                                      ReportedValue(level, state.first_value), ReportedValue(level, state.value)});
    } else if (index == 0 && best->decision == Decision::kContinue) {
      return NotStarted(state.status);
    }
    if (best->decision == Decision::kStop) return result;
    if (index == 0) result.value = state.value;
    if (index == 0) result.report.stop_reason = ToStopReason(state.status);
  }
  return result;
}

int64_t AffineStageWorkspaceBytes() {
  return AffineObjectiveWorkspaceBytes() + Arena::Rounded(sizeof(GaussNewtonState));
}

absl::StatusOr<std::optional<double>> FinestObjective(const ExecContext& ctx, const RegistrationImages& images,
                                                      MetricKind metric, const AffineMap& transform) {
  const Level level = MakeLevel(images, {.metric = metric}, 0);
  NormalEquations sums;
  INTRAWARP_RETURN_IF_ERROR(EvaluateAffineObjective(ctx, level.objective, ToIndexSpace(level, transform), &sums));
  if (sums.samples < level.problem.min_samples || !(sums.weight > 0)) return std::nullopt;
  const double value = sums.value / sums.weight;
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

}  // namespace intrawarp
