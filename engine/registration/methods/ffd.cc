// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/ffd.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/device/branch.h"
#include "engine/device/recording.h"
#include "engine/metric/ffd_objective.h"
#include "engine/metric/nmi.h"
#include "engine/registration/methods/grid_result.h"
#include "engine/registration/methods/sliding.h"
#include "engine/registration/optimise/descent.h"
#include "engine/transform/control_grid.h"
#include "engine/transform/fold_smoothing.h"
#include "engine/transform/grid_penalty.h"
#include "engine/transform/landmark_penalty.h"
#include "engine/transform/total_variation.h"

namespace intrawarp {
namespace {

// No axis that the pyramid has halved is shorter than this at the coarsest level: shorter ones leave too few tiles.
constexpr int kCoarsestAxis = 8;
// A joint histogram of fewer samples than this, four a cell, is best when its cells are few, not when they are right.
constexpr int64_t kLeastNmiVoxels = 4 * kNmiBins * kNmiBins;
// The first step in voxels of the level, and the longest step in distances of control points: a single step of at most
// 0.4 does not fold (Rueckert et al. 2006).
constexpr double kFirstStep = 1, kMaxStep = 0.4;
// A level ends where the value fell by less than this part of itself over kDescentWindow iterations: the finest level,
// and one that a finer one goes on from or that goes on from an earlier stage (docs/evidence/accuracy.md, "When a level
// ends"). From the grid of an earlier registration every level ends at kWarmTolerance: what follows is noise
// (docs/evidence/performance.md, "Frames of ffd").
constexpr double kFinalTolerance = 1e-4, kPassingTolerance = 1e-3, kWarmTolerance = 3e-3;
// Grids that differ by less than this, in distances of control points, are the same.
constexpr double kSameGrid = 1e-6;

FfdOptions Resolved(FfdOptions options, const Geometry& fixed) {
  const double longest = std::max({fixed.size.x, fixed.size.y, fixed.size.z});
  options.metric = options.metric.value_or(FfdOptions::kDefaultMetric);
  options.iterations = options.iterations.value_or(FfdOptions::kDefaultIterations);
  options.spacing_vox = options.spacing_vox.value_or(std::min(FfdOptions::kDefaultSpacingVox, longest));
  options.bending_weight = options.bending_weight.value_or(FfdOptions::DefaultBendingWeight(*options.metric));
  options.elasticity_weight = options.elasticity_weight.value_or(FfdOptions::kDefaultElasticityWeight);
  options.jacobian_weight = options.jacobian_weight.value_or(FfdOptions::kDefaultJacobianWeight);
  options.total_variation_weight = options.total_variation_weight.value_or(FfdOptions::kDefaultTotalVariationWeight);
  return options;
}

// All options below are resolved.

// Distance of control points at the finest level, mm.
Vec3d Spacing(const Geometry& fixed, const FfdOptions& options) { return *options.spacing_vox * fixed.spacing; }
// Two layers are merged on a grid of a voxel.
Vec3d ResultSpacing(const Geometry& fixed, const FfdOptions& options) {
  return options.sliding ? fixed.spacing : Spacing(fixed, options);
}

struct Weights {
  PenaltyWeights grid;
  double total_variation = 0;

  bool Any() const { return grid.bending > 0 || grid.elasticity > 0 || grid.jacobian > 0 || total_variation > 0; }
};

Weights WeightsOf(const FfdOptions& options) {
  return {{*options.bending_weight, *options.elasticity_weight, *options.jacobian_weight},
          *options.total_variation_weight};
}

bool IsTooCoarse(Int3 size, Int3 finest) {
  for (int a = 0; a < 3; ++a)
    if (size[a] < finest[a] && size[a] < kCoarsestAxis) return true;
  return false;
}

// A level with fewer voxels than this is left out.
int64_t LeastVoxels(MetricKind metric) { return metric == MetricKind::kNmi ? kLeastNmiVoxels : 1; }

// Levels that the fixed image allows, finest included.
int Levels(const PreparedImage& fixed, const FfdOptions& options) {
  const auto& pyramid = fixed.levels();
  int levels = 1;
  while (levels < static_cast<int>(pyramid.size()) &&
         pyramid[levels].volume.geometry.voxels() >= LeastVoxels(*options.metric) &&
         !IsTooCoarse(pyramid[levels].volume.geometry.size, fixed.geometry().size)) {
    ++levels;
  }
  return std::min(levels, options.levels.value_or(levels));
}

// Levels that the masks allow, too; kWarmLevels of them at most after another registration.
int Levels(const RegistrationImages& images, const FfdOptions& options, Effort effort) {
  int levels = Levels(*images.fixed, options);
  if (effort == Effort::kAfterRegistration) levels = std::min(levels, FfdOptions::kWarmLevels);
  while (levels > 1 && images.fixed_masks[levels - 1].count < LeastVoxels(*options.metric)) --levels;
  return levels;
}

// Whether control points lie no closer than voxels.
bool IsWideEnough(const Geometry& grid, const Geometry& image) {
  for (int a = 0; a < 3; ++a)
    if (image.size[a] > 1 && grid.spacing[a] < image.spacing[a]) return false;
  return true;
}

// The control grid of each of at most `levels` levels, finest first. From level to level the spacing doubles, unless
// the grid would be coarser than the image or `keep` holds. Levels with voxels larger than the grid's spacing are left
// out.
absl::StatusOr<std::vector<Geometry>> LevelGrids(const PreparedImage& fixed, const FfdOptions& options, int levels,
                                                 bool keep) {
  const Vec3d spacing = Spacing(fixed.geometry(), options);
  INTRAWARP_ASSIGN_OR_RETURN(const Geometry finest, MakeControlGrid(fixed.geometry(), spacing));
  std::vector<Geometry> grids = {finest};
  for (int level = 1; level < levels; ++level) {
    absl::StatusOr<Geometry> coarser = MakeControlGrid(fixed.geometry(), std::ldexp(1.0, level) * spacing);
    const Geometry& grid = coarser.ok() && !keep ? *coarser : grids.back();
    if (!IsWideEnough(grid, fixed.levels()[level].volume.geometry)) break;
    grids.push_back(Geometry(grid));
  }
  return grids;
}

int64_t Elements(const Geometry& grid) { return 3 * grid.voxels(); }

FfdObjective MakeObjective(const RegistrationImages& images, MetricKind metric, int index, const AffineMap& affine,
                           const Geometry& grid) {
  const PyramidLevel& fixed = images.fixed->levels()[index];
  const int moving_index = MatchingLevel(*images.moving, fixed.volume.geometry);
  const PyramidLevel& moving = images.moving->levels()[moving_index];
  const VolumeStatistics &f = images.fixed->statistics(), &m = images.moving->statistics();
  FfdObjective objective;
  objective.metric = metric;
  objective.fixed = fixed.volume;
  objective.moving = moving.volume;
  objective.fixed_mask = images.fixed_masks[index].mask;
  objective.moving_mask = images.moving_masks[moving_index].mask;
  objective.affine = affine;
  objective.grid = grid;
  objective.intensity_scale = 1 / f.stddev;
  objective.fixed_minimum = f.minimum;
  objective.fixed_maximum = f.maximum;
  objective.moving_minimum = m.minimum;
  objective.moving_maximum = m.maximum;
  objective.fixed_stddev = f.stddev;
  objective.moving_stddev = m.stddev;
  objective.fixed_edge = fixed.mean_gradient;
  objective.moving_edge = kMovingEdge * moving.mean_gradient;
  return objective;
}

// The objective of one level with its penalties.
struct Level {
  std::unique_ptr<FfdEvaluator> evaluator;
  Geometry fixed;
  Geometry grid;
  GridLandmarks landmarks;
  // The penalties' unit of length: the finest fixed voxel, mm.
  double unit = 1;
  double min_samples = 0;
};

// Memory stays taken from the arena.
absl::StatusOr<Level> MakeLevel(const ExecContext& ctx, const RegistrationImages& images, MetricKind metric, int index,
                                const AffineMap& affine, const Geometry& grid) {
  Level level;
  INTRAWARP_ASSIGN_OR_RETURN(level.evaluator,
                             MakeFfdEvaluator(ctx, MakeObjective(images, metric, index, affine, grid)));
  level.fixed = images.fixed->levels()[index].volume.geometry;
  level.grid = grid;
  INTRAWARP_ASSIGN_OR_RETURN(level.landmarks, PlaceLandmarks(ctx, images.landmarks, affine, grid));
  level.unit = VoxelScale(images.fixed->geometry());
  level.min_samples = MinSamples(images, metric, index);
  return level;
}

// Writes the start to a grid: the control grid of `initial` (may be null), or u = 0 without one.
absl::Status SetOrigin(const ExecContext& ctx, const Transform* initial, FieldView origin) {
  const size_t bytes = Elements(origin.geometry) * sizeof(float);
  if (initial == nullptr || !initial->has_control_grid()) return ctx.device().Fill(origin.data, 0, bytes, ctx.stream());
  const ConstFieldView grid = initial->control_grid();
  if (SameGrid(grid.geometry, origin.geometry, kSameGrid))
    return ctx.device().Copy(origin.data, grid.data, bytes, ctx.stream());
  return ResampleControlGrid(ctx, grid, origin);
}

// The metric at level `index`; absent where it is undefined. Waits for the stream.
absl::StatusOr<SampledValue> MetricAt(const ExecContext& ctx, const RegistrationImages& images, MetricKind metric,
                                      int index, const Transform& transform, const Geometry& grid) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(float* u, ctx.arena().Allocate<float>(Elements(grid)));
  INTRAWARP_RETURN_IF_ERROR(SetOrigin(ctx, &transform, {u, grid}));
  INTRAWARP_ASSIGN_OR_RETURN(MetricValue * on_device, ctx.arena().Allocate<MetricValue>(1));
  INTRAWARP_ASSIGN_OR_RETURN(const Level level, MakeLevel(ctx, images, metric, index, transform.affine(), grid));
  INTRAWARP_RETURN_IF_ERROR(level.evaluator->Evaluate(ctx, u, nullptr, nullptr, on_device));
  MetricValue on_host;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&on_host, on_device, sizeof(on_host), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  SampledValue result{std::nullopt, on_host.samples};
  if (on_host.samples >= level.min_samples && std::isfinite(on_host.metric)) result.value = on_host.metric;
  return result;
}

double Tolerance(Effort effort, int level) {
  if (effort == Effort::kAfterRegistration) return kWarmTolerance;
  return effort == Effort::kWhole && level == 0 ? kFinalTolerance : kPassingTolerance;
}

DescentProblem MakeProblem(const Level& level, const FfdOptions& options, double tolerance) {
  const Vec3d& spacing = level.grid.spacing;
  DescentProblem problem;
  problem.method = options.optimizer;
  problem.max_iterations = *options.iterations;
  problem.value_tolerance = tolerance;
  problem.max_step =
      kMaxStep * (level.fixed.is_2d() ? std::min(spacing.x, spacing.y) : std::min({spacing.x, spacing.y, spacing.z}));
  problem.first_step = std::min(kFirstStep * VoxelScale(level.fixed), problem.max_step);
  problem.min_samples = level.min_samples;
  return problem;
}

int64_t PenaltiesWorkspaceBytes(const Geometry& grid) {
  return Arena::Rounded(std::max(GridPenaltyWorkspaceBytes(grid), TotalVariationWorkspaceBytes(grid)));
}

// Writes what the penalties and landmarks cost, and their gradient.
absl::Status Penalise(const ExecContext& ctx, const Level& level, const Weights& weights, const Descent& descent) {
  const ConstFieldView grid{descent.trial(), level.grid};
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Fill(descent.gradient(), 0, Elements(level.grid) * sizeof(float), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(
      AddGridPenalties(ctx, weights.grid, level.unit, grid, descent.done(), descent.gradient(), descent.penalty()));
  INTRAWARP_RETURN_IF_ERROR(
      AddTotalVariation(ctx, weights.total_variation, grid, descent.done(), descent.gradient(), descent.penalty()));
  return AddLandmarkPenalty(ctx, level.landmarks, descent.trial(), descent.done(), descent.gradient(),
                            descent.penalty());
}

// The penalties, which look at the control points only, run beside the metric's pass over the voxels.
absl::Status Evaluate(const ExecContext& ctx, const Level& level, const Weights& weights, const Branch& branch,
                      const Descent& descent) {
  FfdEvaluator& evaluator = *level.evaluator;
  if (!weights.Any() && level.landmarks.count == 0) {
    return evaluator.Evaluate(ctx, descent.trial(), descent.done(), descent.gradient(), descent.value());
  }
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ExecContext beside, branch.Fork(ctx));
  INTRAWARP_RETURN_IF_ERROR(Penalise(beside, level, weights, descent));
  // The workspace of the penalties stays theirs meanwhile: they took it from here, and gave it back.
  INTRAWARP_RETURN_IF_ERROR(ctx.arena().AllocateBytes(PenaltiesWorkspaceBytes(level.grid)).status());
  INTRAWARP_RETURN_IF_ERROR(
      evaluator.Measure(ctx, descent.trial(), descent.done(), /*wants_gradient=*/true, descent.value()));
  INTRAWARP_RETURN_IF_ERROR(branch.Join(ctx));
  return evaluator.AddGradient(ctx, descent.done(), descent.value(), descent.gradient());
}

struct LevelRun {
  DescentState state;
  Decision decision = Decision::kContinue;
};

// Optimises from `position`, which the result replaces.
absl::StatusOr<LevelRun> RunLevel(const ExecContext& ctx, const Level& level, const DescentProblem& problem,
                                  const Weights& weights, Progress progress, float* position) {
  ArenaScope scope(ctx.arena());
  const int64_t n = Elements(level.grid);
  INTRAWARP_ASSIGN_OR_RETURN(const Descent descent, Descent::Create(ctx, problem, position, n));
  const int at_once = EvaluationsAtOnce(ctx, level.fixed);
  INTRAWARP_ASSIGN_OR_RETURN(const Branch branch, Branch::Create(ctx));
  INTRAWARP_ASSIGN_OR_RETURN(const Recording round, Recording::Make(ctx, [&](const ExecContext& ctx) {
                               INTRAWARP_RETURN_IF_ERROR(Evaluate(ctx, level, weights, branch, descent));
                               return descent.Descend(ctx);
                             }));
  LevelRun run;
  while (!run.state.done) {
    progress.iteration = run.state.iterations;
    progress.value = run.state.value;
    run.decision = ctx.Checkpoint(progress);
    if (run.decision == Decision::kCancel) return absl::CancelledError("cancelled");
    if (run.decision == Decision::kStop) break;
    for (int i = 0; i < at_once; ++i) INTRAWARP_RETURN_IF_ERROR(round.Enqueue(ctx));
    INTRAWARP_ASSIGN_OR_RETURN(run.state, descent.State(ctx));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(position, descent.position(), n * sizeof(float), ctx.stream()));
  return run;
}

bool HasStarted(const DescentState& state) {
  return state.evaluations > 0 && state.status != DescentStatus::kTooLittleOverlap &&
         state.status != DescentStatus::kNotFinite;
}

StopReason ToStopReason(DescentStatus status) {
  switch (status) {
    case DescentStatus::kConverged:
      return StopReason::kConverged;
    case DescentStatus::kIterationLimit:
      return StopReason::kIterationLimit;
    default:
      return StopReason::kNoProgress;
  }
}

absl::Status NotStarted(const DescentState& state, MetricKind metric) {
  if (state.status == DescentStatus::kTooLittleOverlap) return TooLittleOverlap();
  return absl::FailedPreconditionError(
      metric == MetricKind::kSsd
          ? "fixed, moving: intensities so large (or small) that sums are not finite"
          : "fixed, moving: the metric is undefined where the images (masks) overlap: one is flat there");
}

// The control points as they are, on the finest grid already.
absl::Status GiveCoarse(const ExecContext& ctx, const CoarseHook& hook, const AffineMap& affine, const float* position,
                        const Geometry& grid, const Geometry& domain) {
  INTRAWARP_ASSIGN_OR_RETURN(const Transform transform, MakeGridTransform(ctx, affine, {position, grid}, domain));
  return hook.call(ctx, transform);
}

absl::StatusOr<StageResult> Run(const ExecContext& ctx, const StageTask& task) {
  const RegistrationImages& images = task.images;
  const auto& options = std::get<FfdOptions>(task.options);
  const Geometry& domain = images.fixed->geometry();
  const Transform* initial = task.initial != nullptr && task.initial->has_control_grid() ? task.initial : nullptr;
  // Whoever asks for levels wants a whole stage.
  const bool is_short =
      initial != nullptr && (task.effort != Effort::kAfterRegistration || !options.levels.has_value());
  const Effort effort = is_short ? task.effort : Effort::kWhole;
  StageResult result;
  INTRAWARP_ASSIGN_OR_RETURN(
      const std::vector<Geometry> grids,
      LevelGrids(*images.fixed, options, Levels(images, options, effort), /*keep=*/initial != nullptr));
  const int levels = static_cast<int>(grids.size());
  const Weights weights = WeightsOf(options);
  result.report.options = WithLevels(task.options, levels);

  ArenaScope scope(ctx.arena());
  float *position, *refined;
  INTRAWARP_ASSIGN_OR_RETURN(position, ctx.arena().Allocate<float>(Elements(grids[0])));
  INTRAWARP_ASSIGN_OR_RETURN(refined, ctx.arena().Allocate<float>(Elements(grids[0])));
  INTRAWARP_RETURN_IF_ERROR(SetOrigin(ctx, initial, {position, grids.back()}));

  for (int index = levels - 1;; --index) {
    if (index == 0 && levels > 1 && task.coarse != nullptr) {
      INTRAWARP_RETURN_IF_ERROR(GiveCoarse(ctx, *task.coarse, task.start, position, grids[0], domain));
    }
    ArenaScope level_scope(ctx.arena());
    INTRAWARP_ASSIGN_OR_RETURN(const Level level,
                               MakeLevel(ctx, images, *options.metric, index, task.start, grids[index]));
    const DescentProblem problem = MakeProblem(level, options, Tolerance(effort, index));
    Progress progress{task.index, levels - 1 - index, levels, 0, 0};
    INTRAWARP_ASSIGN_OR_RETURN(const LevelRun run, RunLevel(ctx, level, problem, weights, progress, position));
    const DescentState& state = run.state;
    const Decision decision = run.decision;
    if (HasStarted(state)) {
      result.report.levels.push_back({level.fixed.size, state.iterations, state.first_value, state.value});
    } else if (index == 0 && decision == Decision::kContinue) {
      return NotStarted(state, *options.metric);
    }
    if (index == 0 && decision == Decision::kContinue) result.report.stop_reason = ToStopReason(state.status);
    if (index == 0) {
      progress.iteration = state.iterations;
      progress.value = state.value;
      INTRAWARP_ASSIGN_OR_RETURN(const Decision unfolded,
                                 UnfoldGrid(ctx, {position, level.grid}, level.fixed, progress));
      if (unfolded == Decision::kStop) result.report.stop_reason = StopReason::kBudget;
    }
    if (index == 0 || decision == Decision::kStop) {
      INTRAWARP_ASSIGN_OR_RETURN(result.transform, MakeGridTransform(ctx, task.start, {position, level.grid}, domain));
      return result;
    }
    if (grids[index - 1] == level.grid) continue;
    INTRAWARP_RETURN_IF_ERROR(RefineControlGrid(ctx, {position, level.grid}, {refined, grids[index - 1]}));
    std::swap(position, refined);
  }
}

// The device memory that a position and a refined one take.
int64_t PositionBytes(const Geometry& grid) { return 2 * Arena::Rounded(Elements(grid) * sizeof(float)); }

int64_t PlainWorkspaceBytes(const Device& device, const PreparedImage& fixed, const PreparedImage& moving,
                            const FfdOptions& options) {
  int64_t level = 0, positions = 0;
  // A stage that continues a grid keeps the finest one on every level.
  for (bool keep : {false, true}) {
    const absl::StatusOr<std::vector<Geometry>> grids = LevelGrids(fixed, options, Levels(fixed, options), keep);
    if (!grids.ok()) return 0;
    for (size_t i = 0; i < grids->size(); ++i) {
      const Geometry& grid = (*grids)[i];
      const int64_t descent = Descent::Bytes(Elements(grid)) + PenaltiesWorkspaceBytes(grid);
      const int64_t unfolding = i == 0 ? SmoothFoldsWorkspaceBytes(grid, fixed.geometry()) : 0;
      const Geometry& voxels = fixed.levels()[i].volume.geometry;
      const Geometry& moving_voxels = moving.levels()[MatchingLevel(moving, voxels)].volume.geometry;
      const int64_t evaluator = FfdEvaluatorBytes(device, *options.metric, voxels, moving_voxels, grid);
      level = std::max(level, evaluator + std::max(descent, unfolding));
    }
    positions = PositionBytes(grids->front());
    level = std::max(level, ResampleControlGridWorkspaceBytes(grids->front()));
  }
  return positions + level;
}

// The objective on the grid that layers are merged on.
int64_t MergedObjectiveBytes(const Device& device, const PreparedImage& fixed, const PreparedImage& moving,
                             const FfdOptions& options) {
  const Geometry& g = fixed.geometry();
  const absl::StatusOr<Geometry> grid = MakeControlGrid(g, ResultSpacing(g, options));
  if (!grid.ok()) return 0;
  const Geometry& moving_voxels = moving.levels()[MatchingLevel(moving, g)].volume.geometry;
  return Arena::Rounded(Elements(*grid) * sizeof(float)) + Arena::Rounded(sizeof(MetricValue)) +
         std::max(FfdEvaluatorBytes(device, *options.metric, g, moving_voxels, *grid),
                  ResampleControlGridWorkspaceBytes(*grid));
}

int64_t WorkspaceBytes(const Device& device, const PreparedImage& fixed, const PreparedImage& moving,
                       const StageOptions& stage) {
  const auto& options = std::get<FfdOptions>(stage);
  const int64_t plain = PlainWorkspaceBytes(device, fixed, moving, options);
  if (!options.sliding) return plain;
  const SlidingBytes sliding = SlidingWorkspaceBytes(fixed);
  const int64_t objective = MergedObjectiveBytes(device, fixed, moving, options);
  return std::max(sliding.between, sliding.beside + std::max(plain, objective));
}

int64_t CoarseBytes(const PreparedImage& fixed, const StageOptions& stage) {
  const Vec3d spacing = Spacing(fixed.geometry(), std::get<FfdOptions>(stage));
  const absl::StatusOr<Geometry> grid = MakeControlGrid(fixed.geometry(), spacing);
  return grid.ok() ? PositionBytes(*grid) : 0;
}

int64_t GridBytes(const Geometry& fixed, Vec3d spacing) {
  const absl::StatusOr<Geometry> grid = MakeControlGrid(fixed, spacing);
  return grid.ok() ? Elements(*grid) * static_cast<int64_t>(sizeof(float)) : 0;
}

int64_t ResultBytes(const Geometry& fixed, const StageOptions& stage) {
  return GridBytes(fixed, ResultSpacing(fixed, std::get<FfdOptions>(stage)));
}

// With sliding: the layers of two rounds and the deformation before them, or the last two layers and what they give.
int64_t HeldBytes(const Geometry& fixed, const StageOptions& stage) {
  const auto& options = std::get<FfdOptions>(stage);
  const int64_t result = ResultBytes(fixed, stage);
  if (!options.sliding) return result;
  const int64_t layer = GridBytes(fixed, Spacing(fixed, options));
  return std::max(5 * layer, 2 * layer + result);
}

absl::StatusOr<std::optional<double>> Objective(const ExecContext& ctx, const RegistrationImages& images,
                                                const StageOptions& stage, const Transform& transform) {
  const auto& options = std::get<FfdOptions>(stage);
  const Geometry& fixed = images.fixed->geometry();
  INTRAWARP_ASSIGN_OR_RETURN(const Geometry grid, MakeControlGrid(fixed, ResultSpacing(fixed, options)));
  INTRAWARP_ASSIGN_OR_RETURN(const SampledValue value, MetricAt(ctx, images, *options.metric, 0, transform, grid));
  return value.value;
}

absl::StatusOr<StageResult> RunAsAsked(const ExecContext& ctx, const StageTask& task) {
  if (!std::get<FfdOptions>(task.options).sliding) return Run(ctx, task);
  return RunSliding(ctx, task, {Run, Objective});
}

absl::Status ValidateSliding(const FfdOptions& options) {
  if (!options.sliding || options.metric == MetricKind::kSsd) return absl::OkStatus();
  return FieldError(absl::StatusCode::kUnimplemented, "sliding", "only with the metric ssd in this version");
}

// Whether a control grid of the stage's spacing covers the image.
absl::Status ValidateSpacing(const FfdOptions& options, const Geometry& fixed) {
  // A single voxel is a constant image, and refused as such.
  if (fixed.voxels() == 1) return absl::OkStatus();
  const absl::Status status = MakeControlGrid(fixed, Spacing(fixed, Resolved(options, fixed))).status();
  if (status.ok()) return status;
  return FieldError(status.code(), "spacing_vox", absl::StripPrefix(status.message(), "spacing_vox: "));
}

bool StartsFrom(const Transform& transform) { return transform.is_affine() || transform.has_control_grid(); }

absl::Status Validate(const StageOptions& stage, const Geometry& fixed) {
  const auto& options = std::get<FfdOptions>(stage);
  INTRAWARP_RETURN_IF_ERROR(ValidateEffort(options.levels, options.iterations));
  if (options.spacing_vox.has_value() &&
      !(*options.spacing_vox >= FfdOptions::kLeastSpacingVox && std::isfinite(*options.spacing_vox))) {
    return FieldError(
        absl::StatusCode::kInvalidArgument, "spacing_vox",
        absl::StrCat(*options.spacing_vox, ", must be finite and at least ", FfdOptions::kLeastSpacingVox));
  }
  for (const auto& [weight, name] :
       {std::pair(options.bending_weight, "bending_weight"), std::pair(options.elasticity_weight, "elasticity_weight"),
        std::pair(options.jacobian_weight, "jacobian_weight"),
        std::pair(options.total_variation_weight, "total_variation_weight")}) {
    if (!weight.has_value() || (*weight >= 0 && std::isfinite(*weight))) continue;
    return FieldError(absl::StatusCode::kInvalidArgument, name,
                      absl::StrCat(*weight, ", must be finite and not negative"));
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateSliding(options));
  return ValidateSpacing(options, fixed);
}

StageOptions ResolvedStage(const StageOptions& stage, const Geometry& fixed) {
  return Resolved(std::get<FfdOptions>(stage), fixed);
}

}  // namespace

constinit const Method kFfdMethod = {.name = "ffd",
                                     .is_deformable = true,
                                     .unset = FfdOptions{},
                                     .starts_from = StartsFrom,
                                     .validate = Validate,
                                     .resolved = ResolvedStage,
                                     .workspace_bytes = WorkspaceBytes,
                                     .coarse_bytes = CoarseBytes,
                                     .result_bytes = ResultBytes,
                                     .held_bytes = HeldBytes,
                                     .run = RunAsAsked,
                                     .objective = Objective};

}  // namespace intrawarp
