// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/affine.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/metric/nmi.h"
#include "engine/metric/soft_mask.h"
#include "engine/registration/optimise/gauss_newton.h"

namespace intrawarp {
namespace {

// The coarsest level is the first whose longest axis is at most this.
constexpr int kCoarsestAxis = 24;
// The longest axis of a level along which an affine stage of NMI has a rigid companion.
constexpr int kCompanionAxis = 32;
// Coarser levels stop at steps of about a hundredth of a voxel: the minimum of the next level is farther away.
constexpr double kCoarseValueTolerance = 1e-5, kCoarseStepTolerance = 1e-3, kCoarseGradientTolerance = 1e-3;

// The resolved options of either method.
struct Settings {
  bool rigid = false;
  MetricKind metric = MetricKind::kSsd;
  std::optional<int> levels;
  int iterations = 0;
};

Settings ToSettings(const StageOptions& options) {
  if (const auto* rigid = std::get_if<RigidOptions>(&options)) {
    return {true, *rigid->metric, rigid->levels, *rigid->iterations};
  }
  const auto& affine = std::get<AffineOptions>(options);
  return {false, *affine.metric, affine.levels, *affine.iterations};
}

// One level, ready to be optimised: the objective, and how W and the transform follow from each other.
struct Level {
  AffineObjective objective;
  GaussNewtonProblem problem;
  AffineMap physical_to_moving;      // LPS mm to moving index
  AffineMap normalized_to_physical;  // q to LPS mm
};

Vec3d Column(const Geometry& g, int c) { return {g.direction[0][c], g.direction[1][c], g.direction[2][c]}; }

// The map W of a transform. In 2-D the fixed plane goes onto the moving plane, and its normal onto the normal.
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

Vec3d Cross(Vec3d a, Vec3d b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }

// The map that agrees with `map` on the plane of a slice and takes its unit normal to that of the plane's image: the
// part of an affine map that no point of the plane shows. Its determinant is the change of area, and positive. A map
// that takes the plane to a line stays as it is.
AffineMap CompletedFromPlane(const AffineMap& map, const Geometry& slice) {
  AffineMap axes, images;
  const Vec3d u = Column(slice, 0), v = Column(slice, 1), a = map.Linear(u), b = map.Linear(v);
  const Vec3d normal = Cross(u, v), image = Cross(a, b);
  const double length = std::sqrt(Dot(image, image));
  if (!(length > 0)) return map;
  const Vec3d from[3] = {u, v, (1 / std::sqrt(Dot(normal, normal))) * normal}, to[3] = {a, b, (1 / length) * image};
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) {
      axes.m[r][c] = from[c][r];
      images.m[r][c] = to[c][r];
    }
  }
  AffineMap completed = Compose(images, Inverse(axes));
  const Vec3d shift = map(slice.origin) - completed.Linear(slice.origin);
  for (int r = 0; r < 3; ++r) completed.m[r][3] = shift[r];
  return completed;
}

AffineMap ToPhysicalSpace(const Level& level, const AffineMap& w) {
  const AffineMap map = Compose(Inverse(level.physical_to_moving), Compose(w, Inverse(level.normalized_to_physical)));
  const bool is_open = level.problem.is_slice && !level.problem.rigid;
  return is_open ? CompletedFromPlane(map, level.objective.fixed.geometry) : map;
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

// The parameters that follow from the whole images at the finest level, and from the samples there may be at this one.
void SetIntensities(const RegistrationImages& images, double samples, AffineObjective* objective) {
  const VolumeStatistics &f = images.fixed->statistics(), &m = images.moving->statistics();
  if (objective->metric == MetricKind::kSsd) objective->intensity_scale = 1 / f.stddev;
  objective->fixed_minimum = f.minimum;
  objective->fixed_maximum = f.maximum;
  objective->moving_minimum = m.minimum;
  objective->moving_maximum = m.maximum;
  objective->fixed_stddev = f.stddev;
  objective->moving_stddev = m.stddev;
  objective->nmi_bins = NmiBinsFor(samples);
}

Level MakeLevel(const RegistrationImages& images, const Settings& settings, int index) {
  const PyramidLevel& fixed = images.fixed->levels()[index];
  const int moving_index = MatchingLevel(*images.moving, fixed.volume.geometry);
  const PyramidLevel& moving = images.moving->levels()[moving_index];
  const MaskLevel &fixed_mask = images.fixed_masks[index], &moving_mask = images.moving_masks[moving_index];
  Level level;
  level.objective = {settings.metric,
                     fixed.volume,
                     moving.volume,
                     fixed_mask.mask,
                     moving_mask.mask,
                     fixed.mean_gradient,
                     kMovingEdge * moving.mean_gradient,
                     1.0};
  SetIntensities(images, fixed_mask.count, &level.objective);
  level.physical_to_moving = PhysicalToIndex(moving.volume.geometry);
  level.normalized_to_physical =
      Compose(IndexToPhysical(fixed.volume.geometry), NormalizedToIndex(fixed.volume.geometry));
  GaussNewtonProblem& problem = level.problem;
  problem.rigid = settings.rigid;
  problem.is_slice = IsSliceOf(fixed.volume.geometry, moving.volume.geometry);
  problem.dimensions = fixed.volume.geometry.is_2d() && !problem.is_slice ? 2 : 3;
  problem.has_moving_weights = IsSoft(moving_mask.mask);
  problem.max_iterations = settings.iterations;
  if (index > 0) {
    problem.value_tolerance = kCoarseValueTolerance;
    problem.step_tolerance = kCoarseStepTolerance;
    problem.gradient_tolerance = kCoarseGradientTolerance;
  }
  problem.min_samples = MinSamples(images, settings.metric, index);
  problem.pull = MakeAffinePull(images.landmarks, Inverse(level.normalized_to_physical), level.physical_to_moving);
  SetRigid(level, &problem);
  return level;
}

// The value that reports give (affine.h).
double ReportedValue(const Level& level, double value) {
  return value / (level.objective.intensity_scale * level.objective.intensity_scale);
}

struct LevelRun {
  GaussNewtonState state;
  Decision decision = Decision::kContinue;
};

GaussNewtonState StateAt(const Level& level, const AffineMap& transform) {
  GaussNewtonState state;
  state.problem = level.problem;
  state.trial = state.current = ToIndexSpace(level, transform);
  return state;
}

// Carries all states of one level to their ends.
absl::StatusOr<Decision> RunAll(const ExecContext& ctx, const Level& level, Progress progress,
                                std::vector<GaussNewtonState>* states) {
  const int batch = EvaluationsAtOnce(ctx, level.objective.fixed.geometry);
  const auto running = [](const GaussNewtonState& state) { return state.status == GaussNewtonStatus::kRunning; };
  for (;;) {
    std::vector<GaussNewtonState> moving;
    std::copy_if(states->begin(), states->end(), std::back_inserter(moving), running);
    if (moving.empty()) return Decision::kContinue;
    progress.iteration = moving.front().iterations;
    progress.value = ReportedValue(level, moving.front().value);
    const Decision decision = ctx.Checkpoint(progress);
    if (decision == Decision::kCancel) return absl::CancelledError("cancelled");
    if (decision == Decision::kStop) return decision;
    INTRAWARP_RETURN_IF_ERROR(RunGaussNewton(ctx, level.objective, batch, absl::MakeSpan(moving)));
    auto moved = moving.begin();
    for (GaussNewtonState& state : *states) {
      if (running(state)) state = *moved++;
    }
  }
}

SampledValue ValueOf(const GaussNewtonState& state) {
  return {state.started ? std::optional<double>(state.value) : std::nullopt, static_cast<double>(state.samples)};
}

// The value of an objective whose sums at `w` are known.
SampledValue ValueOf(const GaussNewtonProblem& problem, const AffineMap& w, const NormalEquations& sums) {
  SampledValue result{std::nullopt, sums.samples};
  if (sums.samples < problem.min_samples || !(sums.weight > 0)) return result;
  const double value = gauss_newton_internal::ValueAt(problem, w, sums);
  if (std::isfinite(value)) result.value = value;
  return result;
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

absl::Status NotStarted(MetricKind metric, GaussNewtonStatus why) {
  switch (why) {
    case GaussNewtonStatus::kNoWeight:
      if (metric == MetricKind::kNgf) {
        return FieldError(absl::StatusCode::kFailedPrecondition, "fixed",
                          "no gradients where the images (masks) overlap, which ngf needs");
      }
      return absl::FailedPreconditionError(
          absl::StrCat("fixed, moving: constant where the images (masks) overlap, so that ", MetricName(metric),
                       " compares nothing"));
    case GaussNewtonStatus::kNotFinite:
      return absl::FailedPreconditionError("fixed, moving: intensities so large (or small) that sums are not finite");
    default:
      return TooLittleOverlap();
  }
}

// Index of the coarsest level to use.
int CoarsestLevel(const RegistrationImages& images, std::optional<int> levels_at_most) {
  const auto& levels = images.fixed->levels();
  int coarsest = 0;
  while (coarsest + 1 < static_cast<int>(levels.size())) {
    const Int3 n = levels[coarsest].volume.geometry.size;
    if (std::max({n.x, n.y, n.z}) <= kCoarsestAxis || images.fixed_masks[coarsest + 1].count == 0) break;
    ++coarsest;
  }
  return levels_at_most.has_value() ? std::min(coarsest, *levels_at_most - 1) : coarsest;
}

// The best of the runs from all places.
absl::StatusOr<LevelRun> RunFromAll(const ExecContext& ctx, const Level& level, absl::Span<const AffineMap> places,
                                    const Progress& progress) {
  std::vector<GaussNewtonState> states;
  for (const AffineMap& place : places) states.push_back(StateAt(level, place));
  LevelRun best;
  INTRAWARP_ASSIGN_OR_RETURN(best.decision, RunAll(ctx, level, progress, &states));
  best.state = states.front();
  for (const GaussNewtonState& state : states) {
    if (IsBetter(ValueOf(state), ValueOf(best.state))) best.state = state;
  }
  return best;
}

// Whether an affine stage should follow a rigid run along this level as well: the joint histogram of so few samples can
// fall for a scale or a shear.
bool NeedsRigidCompanion(const Settings& settings, const Geometry& fixed) {
  return !settings.rigid && settings.metric == MetricKind::kNmi &&
         std::max({fixed.size.x, fixed.size.y, fixed.size.z}) <= kCompanionAxis;
}

// The places that a stage goes on from, level by level: that of its own run, and along the coarsest levels that of a
// rigid companion, which joins it in the end.
struct Places {
  std::vector<AffineMap> own;
  std::optional<AffineMap> rigid;
};

// Moves the companion along a level where the stage needs one, and lets it compete where it no longer does.
absl::Status FollowRigid(const ExecContext& ctx, const Settings& settings, Level level, bool finest,
                         const Progress& progress, Places* places) {
  if (!places->rigid.has_value()) return absl::OkStatus();
  if (finest || !NeedsRigidCompanion(settings, level.objective.fixed.geometry)) {
    places->own.push_back(*places->rigid);
    places->rigid.reset();
    return absl::OkStatus();
  }
  level.problem.rigid = true;
  INTRAWARP_ASSIGN_OR_RETURN(const LevelRun run, RunFromAll(ctx, level, {*places->rigid}, progress));
  if (run.state.started) places->rigid = ToPhysicalSpace(level, run.state.current);
  return absl::OkStatus();
}

absl::StatusOr<StageResult> Run(const ExecContext& ctx, const StageTask& task) {
  const Settings settings = ToSettings(task.options);
  const int levels = CoarsestLevel(task.images, settings.levels) + 1;
  const Geometry& domain = task.images.fixed->geometry();
  StageResult result;
  result.transform = Transform(task.start, domain);
  result.report.options = WithLevels(task.options, levels);
  Places places{{task.start}, std::nullopt};
  if (NeedsRigidCompanion(settings, task.images.fixed->levels()[levels - 1].volume.geometry)) places.rigid = task.start;
  for (int index = levels - 1; index >= 0; --index) {
    const Level level = MakeLevel(task.images, settings, index);
    const Progress progress{task.index, levels - 1 - index, levels, 0, 0};
    INTRAWARP_RETURN_IF_ERROR(FollowRigid(ctx, settings, level, index == 0, progress, &places));
    INTRAWARP_ASSIGN_OR_RETURN(const LevelRun best, RunFromAll(ctx, level, places.own, progress));
    const GaussNewtonState& state = best.state;
    if (state.started) {
      const AffineMap found = ToPhysicalSpace(level, state.current);
      result.transform = Transform(found, domain);
      places.own = {found};
      // A slice's coarse levels have few pixels and can lead astray.
      if (level.problem.is_slice) places.own.push_back(task.start);
      result.report.levels.push_back({level.objective.fixed.geometry.size, state.iterations,
                                      ReportedValue(level, state.first_value), ReportedValue(level, state.value)});
    } else if (index == 0 && best.decision == Decision::kContinue) {
      return NotStarted(settings.metric, state.status);
    }
    if (best.decision == Decision::kStop) return result;
    // The objective is without landmarks.
    if (index == 0 && !level.problem.pull.is_active) result.value = state.value;
    if (index == 0) result.report.stop_reason = ToStopReason(state.status);
  }
  return result;
}

absl::StatusOr<std::optional<double>> Objective(const ExecContext& ctx, const RegistrationImages& images,
                                                const StageOptions& options, const Transform& transform) {
  const Level level = MakeLevel(images, ToSettings(options), 0);
  NormalEquations sums;
  INTRAWARP_RETURN_IF_ERROR(
      EvaluateAffineObjective(ctx, level.objective, ToIndexSpace(level, transform.affine()), &sums));
  if (sums.samples < level.problem.min_samples || !(sums.weight > 0)) return std::nullopt;
  const double value = sums.value / sums.weight;
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

bool StartsFrom(const Transform&) { return true; }

template <typename Options>
absl::Status Validate(const StageOptions& stage, const Geometry&) {
  const auto& options = std::get<Options>(stage);
  INTRAWARP_RETURN_IF_ERROR(ValidateMetric(options.metric));
  return ValidateEffort(options.levels, options.iterations);
}

template <typename Options>
StageOptions ResolvedStage(const StageOptions& stage, const Geometry&) {
  Options options = std::get<Options>(stage);
  options.metric = options.metric.value_or(Options::kDefaultMetric);
  options.iterations = options.iterations.value_or(Options::kDefaultIterations);
  return options;
}

int64_t WorkspaceBytes(const Device&, const PreparedImage& fixed, const PreparedImage&, const StageOptions& stage) {
  return AffineObjectiveWorkspaceBytes(MetricOf(stage), fixed.geometry().size) +
         Arena::Rounded(kMaxAffineMaps * sizeof(GaussNewtonState));
}

int64_t ResultBytes(const Geometry&, const StageOptions&) { return 0; }

}  // namespace

constinit const Method kRigidMethod = {.name = "rigid",
                                       .is_deformable = false,
                                       .unset = RigidOptions{},
                                       .starts_from = StartsFrom,
                                       .validate = Validate<RigidOptions>,
                                       .resolved = ResolvedStage<RigidOptions>,
                                       .workspace_bytes = WorkspaceBytes,
                                       .coarse_bytes = nullptr,
                                       .result_bytes = ResultBytes,
                                       .held_bytes = ResultBytes,
                                       .run = Run,
                                       .objective = Objective};

constinit const Method kAffineMethod = {.name = "affine",
                                        .is_deformable = false,
                                        .unset = AffineOptions{},
                                        .starts_from = StartsFrom,
                                        .validate = Validate<AffineOptions>,
                                        .resolved = ResolvedStage<AffineOptions>,
                                        .workspace_bytes = WorkspaceBytes,
                                        .coarse_bytes = nullptr,
                                        .result_bytes = ResultBytes,
                                        .held_bytes = ResultBytes,
                                        .run = Run,
                                        .objective = Objective};

int CoarsestAffineLevel(const RegistrationImages& images) { return CoarsestLevel(images, std::nullopt); }

absl::StatusOr<std::vector<SampledValue>> AffineValues(const ExecContext& ctx, const AffineLevel& at,
                                                       absl::Span<const AffineMap> maps) {
  const Level level = MakeLevel(at.images, {true, at.metric, std::nullopt, 1}, at.index);
  std::vector<AffineMap> w;
  for (const AffineMap& map : maps) w.push_back(ToIndexSpace(level, map));
  std::vector<NormalEquations> sums(maps.size());
  INTRAWARP_RETURN_IF_ERROR(EvaluateAffineObjectives(ctx, level.objective, w, sums.data()));
  std::vector<SampledValue> values;
  for (size_t i = 0; i < maps.size(); ++i) values.push_back(ValueOf(level.problem, w[i], sums[i]));
  return values;
}

absl::StatusOr<RigidRuns> RunRigidLevel(const ExecContext& ctx, const AffineLevel& at,
                                        absl::Span<const AffineMap> starts, int iterations, Progress progress) {
  const Level level = MakeLevel(at.images, {true, at.metric, std::nullopt, iterations}, at.index);
  std::vector<GaussNewtonState> states;
  for (const AffineMap& start : starts) states.push_back(StateAt(level, start));
  RigidRuns result;
  INTRAWARP_ASSIGN_OR_RETURN(result.decision, RunAll(ctx, level, progress, &states));
  for (size_t i = 0; i < starts.size(); ++i) {
    const GaussNewtonState& state = states[i];
    result.runs.push_back(
        {state.started ? ToPhysicalSpace(level, state.current) : starts[i], ValueOf(state), state.evaluations});
  }
  return result;
}

}  // namespace intrawarp
