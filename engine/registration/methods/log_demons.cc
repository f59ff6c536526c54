// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/log_demons.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/recording.h"
#include "engine/metric/soft_mask.h"
#include "engine/registration/methods/demons_iteration.h"
#include "engine/registration/methods/demons_iteration_kernels.h"
#include "engine/registration/methods/demons_step.h"
#include "engine/transform/vector_field_kernels.h"

namespace intrawarp {
namespace {

// No axis that the pyramid has halved is shorter than this at the coarsest level.
constexpr int kCoarsestAxis = 8;
// Squarings are recorded for the velocity that the host saw last, but at least this many. A velocity that grew since
// costs another look of the host; a squaring that is not needed costs an empty kernel in every iteration.
constexpr int kLeastSquarings = 1;

// The coarsest level of at least so many voxels shows whether intensities are to be matched.
constexpr int64_t kLeastMatchingVoxels = 4096;

int64_t Floats(Int3 size) { return int64_t{3} * size.x * size.y * size.z; }
// A force is a field and its denominator (demons_step.h).
int64_t ForceFloats(Int3 size) { return int64_t{4} * size.x * size.y * size.z; }
size_t FieldBytes(Int3 size) { return sizeof(float) * Floats(size); }

bool IsTooCoarse(Int3 size, Int3 finest) {
  for (int a = 0; a < 3; ++a)
    if (size[a] < finest[a] && size[a] < kCoarsestAxis) return true;
  return false;
}

bool IsLarge(Int3 n) { return std::max({n.x, n.y, n.z}) >= LogDemonsOptions::kWarmCoarsestAxis; }

// Levels of a stage that starts from a velocity, at most.
int WarmLevels(const PreparedImage& fixed) {
  const int most = static_cast<int>(fixed.levels().size());
  int levels = LogDemonsOptions::kWarmLevels;
  while (levels < most && IsLarge(fixed.levels()[levels - 1].volume.geometry.size)) ++levels;
  return levels;
}

// Levels to run; `warm`: the stage starts from a velocity.
int Levels(const RegistrationImages& images, const LogDemonsOptions& options, bool warm) {
  const auto& pyramid = images.fixed->levels();
  int levels = 1;
  while (levels < static_cast<int>(pyramid.size()) && images.fixed_masks[levels].count > 0 &&
         !IsTooCoarse(pyramid[levels].volume.geometry.size, images.fixed->geometry().size)) {
    ++levels;
  }
  if (options.levels.has_value()) return std::min(levels, *options.levels);
  return warm ? std::min(levels, WarmLevels(*images.fixed)) : levels;
}

struct Intensities {
  float scale, offset;
};

// The map of an image's intensities to mean 0 and standard deviation 1.
Intensities Standard(const VolumeStatistics& s) {
  return {static_cast<float>(1 / s.stddev), static_cast<float>(-s.mean / s.stddev)};
}

// The grid of a level's velocity (log_demons.h).
Int3 VelocitySize(const RegistrationImages& images, const LogDemonsOptions& options, int index) {
  const auto& pyramid = images.fixed->levels();
  const bool is_half = options.velocity_grid == VelocityGrid::kHalf && index + 1 < static_cast<int>(pyramid.size()) &&
                       (index == 0 || IsLarge(pyramid[index].volume.geometry.size));
  return pyramid[is_half ? index + 1 : index].volume.geometry.size;
}

// Device memory for levels up to `size`.
struct Fields : DemonsFields {
  PairMoments* moments = nullptr;
};

absl::StatusOr<Fields> AllocateFields(const ExecContext& ctx, Int3 size) {
  Fields f;
  INTRAWARP_ASSIGN_OR_RETURN(f.velocity, ctx.arena().Allocate<float>(Floats(size)));
  INTRAWARP_ASSIGN_OR_RETURN(f.update, ctx.arena().Allocate<float>(ForceFloats(size)));
  INTRAWARP_ASSIGN_OR_RETURN(f.work, ctx.arena().Allocate<float>(Floats(size)));
  INTRAWARP_ASSIGN_OR_RETURN(f.state, ctx.arena().Allocate<DemonsState>(1));
  INTRAWARP_ASSIGN_OR_RETURN(f.moments, ctx.arena().Allocate<PairMoments>(1));
  return f;
}

// One level, its images made ready.
struct Level {
  Geometry grid;
  DemonsIteration step;
  double min_samples = 0;

  Int3 velocity_size() const { return step.force.force_size; }
};

// The weights of a mask that has some.
DemonsWeights WeightsOf(const ConstMaskView& mask) {
  return IsSoft(mask) ? DemonsWeights{mask.data, mask.weight_per_unit} : DemonsWeights{};
}

absl::StatusOr<float*> MakeReady(const ExecContext& ctx, ConstVolumeView image, ConstMaskView mask, Intensities i) {
  INTRAWARP_ASSIGN_OR_RETURN(float* const ready, ctx.arena().Allocate<float>(image.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(PrepareDemonsImage(ctx, image, mask, i.scale, i.offset, ready));
  return ready;
}

// The standard deviation of an image made ready; with a mask over its samples, in which case it waits for the stream.
absl::StatusOr<double> Deviation(const ExecContext& ctx, const PreparedImage& image, const MaskLevel& mask,
                                 const float* ready, int64_t voxels, Intensities i) {
  if (mask.mask.data == nullptr) return image.statistics().stddev * i.scale;
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(PairMoments* const moments, ctx.arena().Allocate<PairMoments>(1));
  INTRAWARP_RETURN_IF_ERROR(MeasurePair(ctx, ready, ready, voxels, moments, WeightsOf(mask.mask)));
  PairMoments sums;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&sums, moments, sizeof(sums), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  if (!(sums.samples > 0)) return 0.0;
  const double mean = sums.fixed / sums.weight;
  return std::sqrt(std::max(0.0, sums.fixed_squares / sums.weight - mean * mean));
}

// Memory stays taken from the arena: none without weights.
absl::Status SetWeights(const ExecContext& ctx, const ConstMaskView& fixed, const ConstMaskView& moving, int64_t voxels,
                        DemonsIteration* step) {
  step->fixed_weights = WeightsOf(fixed);
  step->moving.weights = WeightsOf(moving);
  const bool has_moving = step->moving.weights.bytes != nullptr;
  if (!has_moving && step->fixed_weights.bytes == nullptr) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(step->warped_weights, ctx.arena().Allocate<uint8_t>(voxels));
  if (has_moving && step->moving_on_fixed != nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(step->weights_on_fixed, ctx.arena().Allocate<uint8_t>(voxels));
  }
  return absl::OkStatus();
}

// Memory stays taken from the arena.
absl::StatusOr<Level> MakeLevel(const ExecContext& ctx, const RegistrationImages& images,
                                const LogDemonsOptions& options, int index, const AffineMap& affine) {
  const ConstVolumeView fixed = images.fixed->levels()[index].volume;
  const int moving_index = MatchingLevel(*images.moving, fixed.geometry);
  const ConstVolumeView moving = images.moving->levels()[moving_index].volume;
  const Intensities of_fixed = Standard(images.fixed->statistics());
  Level level;
  level.grid = fixed.geometry;
  level.min_samples = MinSamples(images, MetricKind::kSsd, index);
  INTRAWARP_ASSIGN_OR_RETURN(level.step.fixed, MakeReady(ctx, fixed, images.fixed_masks[index].mask, of_fixed));
  INTRAWARP_ASSIGN_OR_RETURN(level.step.moving.data,
                             MakeReady(ctx, moving, images.moving_masks[moving_index].mask, of_fixed));
  level.step.moving.size = moving.geometry.size;
  level.step.moving.from_fixed =
      Compose(PhysicalToIndex(moving.geometry), Compose(affine, IndexToPhysical(fixed.geometry)));
  INTRAWARP_ASSIGN_OR_RETURN(level.step.warped, ctx.arena().Allocate<float>(fixed.geometry.voxels()));
  if (options.symmetric) {
    INTRAWARP_ASSIGN_OR_RETURN(level.step.moving_on_fixed, ctx.arena().Allocate<float>(fixed.geometry.voxels()));
  }
  INTRAWARP_RETURN_IF_ERROR(SetWeights(ctx, images.fixed_masks[index].mask, images.moving_masks[moving_index].mask,
                                       fixed.geometry.voxels(), &level.step));
  level.step.force.size = fixed.geometry.size;
  level.step.force.force_size = VelocitySize(images, options, index);
  for (int a = 0; a < 3; ++a) {
    level.step.force.sides[a] = static_cast<float>(fixed.geometry.spacing[a] / VoxelScale(fixed.geometry));
  }
  level.step.force.gradient = options.gradient;
  level.step.force.max_step = static_cast<float>(*options.max_step);
  // The deviation is the mean of both images', so that it is the same when they are exchanged.
  INTRAWARP_ASSIGN_OR_RETURN(const double deviation, Deviation(ctx, *images.fixed, images.fixed_masks[index],
                                                               level.step.fixed, fixed.geometry.voxels(), of_fixed));
  double of_moving = deviation;
  if (!options.match_intensities.value_or(false)) {
    INTRAWARP_ASSIGN_OR_RETURN(of_moving, Deviation(ctx, *images.moving, images.moving_masks[moving_index],
                                                    level.step.moving.data, moving.geometry.voxels(), of_fixed));
  }
  level.step.force.weak_gradient = static_cast<float>(*options.weak_gradient * 0.5 * (deviation + of_moving));
  level.step.symmetric = options.symmetric;
  level.step.fluid_sigma = *options.fluid_sigma;
  level.step.diffusion_sigma = *options.diffusion_sigma;
  level.step.update = options.update;
  level.step.half_fields = options.half_fields;
  INTRAWARP_ASSIGN_OR_RETURN(level.step.landmarks,
                             PlaceLandmarkForce(ctx, images.landmarks, affine, fixed.geometry, level.velocity_size(),
                                                level.step.force.max_step));
  return level;
}

absl::StatusOr<DemonsState> ReadState(const ExecContext& ctx, const DemonsState* state) {
  DemonsState on_host;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&on_host, state, sizeof(on_host), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return on_host;
}

absl::StatusOr<DemonsState> BeginLevel(const ExecContext& ctx, const Level& level, const LogDemonsOptions& options,
                                       int max_iterations, const Fields& fields) {
  DemonsState start;
  start.max_iterations = max_iterations;
  // With a tolerance of 0 not even a rising value ends the level.
  start.tolerance = *options.tolerance > 0 ? *options.tolerance : -std::numeric_limits<double>::infinity();
  start.min_samples = level.min_samples;
  start.most_momentum = static_cast<float>(*options.momentum);
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(fields.state, &start, sizeof(start), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(LargestComponent(ctx, fields.velocity, level.velocity_size(), &fields.state->largest));
  return ReadState(ctx, fields.state);
}

// Writes the moving image at the velocity to level.step.warped, and its weights, where it has some, to
// level.step.warped_weights; uses `work`.
absl::Status WarpByVelocity(const ExecContext& ctx, const Level& level, const Fields& fields) {
  INTRAWARP_RETURN_IF_ERROR(ExponentiateVectorField(ctx, fields.velocity, level.velocity_size(), 1,
                                                    &fields.state->largest, kMaxSquarings, fields.work));
  const float* displacement = fields.work;
  if (level.velocity_size() != level.grid.size) {
    INTRAWARP_RETURN_IF_ERROR(
        ResampleVectorField(ctx, fields.work, level.velocity_size(), fields.update, level.grid.size));
    displacement = fields.update;
  }
  INTRAWARP_RETURN_IF_ERROR(
      WarpWeights(ctx, level.step.moving, displacement, level.grid.size, level.step.warped_weights));
  return WarpSource(ctx, level.step.moving, displacement, level.grid.size, level.step.warped);
}

// Mean and standard deviation of both images over the samples that both have.
struct PairStatistics {
  double samples = 0;
  double fixed_mean = 0, fixed_deviation = 0, moving_mean = 0, moving_deviation = 0;
};

// At the velocity, with the moving image in level.step.warped; waits for the stream.
absl::StatusOr<PairStatistics> MeasureStatistics(const ExecContext& ctx, const Level& level, const Fields& fields) {
  INTRAWARP_RETURN_IF_ERROR(WarpByVelocity(ctx, level, fields));
  const DemonsForceTask pair = ForwardForce(level.step);
  INTRAWARP_RETURN_IF_ERROR(MeasurePair(ctx, pair.fixed, pair.warped, level.grid.voxels(), fields.moments,
                                        pair.fixed_weights, pair.warped_weights));
  PairMoments sums;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&sums, fields.moments, sizeof(sums), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  const double n = sums.weight, fixed = sums.fixed / n, moving = sums.moving / n;
  return PairStatistics{sums.samples, fixed, std::sqrt(sums.fixed_squares / n - fixed * fixed), moving,
                        std::sqrt(sums.moving_squares / n - moving * moving)};
}

// Brings the moving image to the mean and standard deviation of the fixed one, over the samples that both have at the
// velocity; waits for the stream.
absl::Status MatchIntensities(const ExecContext& ctx, const Level& level, const Fields& fields) {
  INTRAWARP_ASSIGN_OR_RETURN(const PairStatistics s, MeasureStatistics(ctx, level, fields));
  const double scale = s.fixed_deviation / s.moving_deviation;
  // With too few samples or a flat image there is nothing to match.
  if (!(s.samples >= level.min_samples && scale > 0 && std::isfinite(scale))) return absl::OkStatus();
  Geometry grid;
  grid.size = level.step.moving.size;
  return PrepareDemonsImage(ctx, {level.step.moving.data, grid}, {}, static_cast<float>(scale),
                            static_cast<float>(s.fixed_mean - scale * s.moving_mean), level.step.moving.data);
}

struct LevelRun {
  DemonsState state;
  Decision decision = Decision::kContinue;
};

// Enqueues iterations of a level, some at a time, with as many squarings as they need.
class Iterations {
 public:
  Iterations(const ExecContext& ctx, const DemonsIteration& step, int at_once, const DemonsFields& fields)
      : ctx_(ctx), step_(step), at_once_(at_once), fields_(fields) {}

  // `state` is a copy of the device's.
  absl::Status Enqueue(const DemonsState& state) {
    INTRAWARP_RETURN_IF_ERROR(Record(Squarings(state.largest, 1, kMaxSquarings)));
    // The last iterations stopped for want of squarings.
    if (state.done) {
      INTRAWARP_RETURN_IF_ERROR(ctx_.device().Fill(&fields_.state->done, 0, sizeof(state.done), ctx_.stream()));
    }
    for (int i = 0; i < at_once_; ++i) INTRAWARP_RETURN_IF_ERROR(recording_->Enqueue(ctx_));
    return absl::OkStatus();
  }

 private:
  absl::Status Record(int squarings) {
    if (recording_ && squarings <= squarings_) return absl::OkStatus();
    squarings_ = std::max(squarings, kLeastSquarings);
    INTRAWARP_ASSIGN_OR_RETURN(recording_,
                               Recording::Make(ctx_, [this, squarings = squarings_](const ExecContext& ctx) {
                                 return IterateDemons(ctx, step_, squarings, fields_);
                               }));
    return absl::OkStatus();
  }

  const ExecContext& ctx_;
  const DemonsIteration& step_;
  int at_once_;
  DemonsFields fields_;
  int squarings_ = 0;
  std::optional<Recording> recording_;
};

absl::StatusOr<LevelRun> RunLevel(const ExecContext& ctx, const Level& level, const LogDemonsOptions& options,
                                  Progress progress, const Fields& level_fields) {
  LevelRun run;
  Fields fields = level_fields;
  const bool is_finest = progress.level + 1 == progress.levels;
  INTRAWARP_ASSIGN_OR_RETURN(
      run.state, BeginLevel(ctx, level, options, is_finest ? *options.finest_iterations : *options.iterations, fields));
  if (*options.match_intensities) INTRAWARP_RETURN_IF_ERROR(MatchIntensities(ctx, level, fields));
  if (options.symmetric) {
    INTRAWARP_RETURN_IF_ERROR(WarpSource(ctx, level.step.moving, nullptr, level.grid.size, level.step.moving_on_fixed));
    INTRAWARP_RETURN_IF_ERROR(
        WarpWeights(ctx, level.step.moving, nullptr, level.grid.size, level.step.weights_on_fixed));
  }
  ArenaScope scope(ctx.arena());
  if (ctx.is_cuda()) {
    INTRAWARP_ASSIGN_OR_RETURN(fields.spare, ctx.arena().Allocate<float>(ForceFloats(level.velocity_size())));
  }
  INTRAWARP_RETURN_IF_ERROR(BeginDemonsIterations(ctx, level.velocity_size(), &fields));
  if (*options.momentum > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(fields.reached, ctx.arena().Allocate<float>(Floats(level.velocity_size())));
    INTRAWARP_RETURN_IF_ERROR(
        ctx.device().Copy(fields.reached, fields.velocity, FieldBytes(level.velocity_size()), ctx.stream()));
  }
  Iterations iterations(ctx, level.step, EvaluationsAtOnce(ctx, level.grid), fields);
  while (run.state.status == DemonsStatus::kRunning) {
    progress.iteration = run.state.iterations;
    progress.value = run.state.value;
    run.decision = ctx.Checkpoint(progress);
    if (run.decision == Decision::kCancel) return absl::CancelledError("cancelled");
    if (run.decision == Decision::kStop) break;
    INTRAWARP_RETURN_IF_ERROR(iterations.Enqueue(run.state));
    INTRAWARP_ASSIGN_OR_RETURN(run.state, ReadState(ctx, fields.state));
  }
  INTRAWARP_RETURN_IF_ERROR(EndDemonsIterations(ctx, level.velocity_size(), &fields));
  return run;
}

StopReason ToStopReason(DemonsStatus status) {
  switch (status) {
    case DemonsStatus::kConverged:
      return StopReason::kConverged;
    case DemonsStatus::kIterationLimit:
      return StopReason::kIterationLimit;
    default:
      return StopReason::kNoProgress;
  }
}

absl::Status NotStarted(const DemonsState& state) {
  if (state.status == DemonsStatus::kTooLittleOverlap) return TooLittleOverlap();
  return absl::FailedPreconditionError("fixed, moving: intensities so large (or small) that sums are not finite");
}

// The velocity on the grid of `size`; `fields` changes its buffers.
absl::Status MoveToGrid(const ExecContext& ctx, Int3 from, Int3 size, Fields* fields) {
  if (from == size) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(ResampleVectorField(ctx, fields->velocity, from, fields->work, size));
  std::swap(fields->velocity, fields->work);
  return absl::OkStatus();
}

absl::Status SetStart(const ExecContext& ctx, const ConstVelocityView& initial, Int3 size, const Fields& fields) {
  if (initial.data == nullptr) return ctx.device().Fill(fields.velocity, 0, FieldBytes(size), ctx.stream());
  return ResampleVectorField(ctx, initial.data, initial.size, fields.velocity, size);
}

// The mean squared difference at a level, for a velocity on its grid.
absl::StatusOr<SampledValue> ObjectiveAt(const ExecContext& ctx, const RegistrationImages& images,
                                         LogDemonsOptions options, int index, const AffineMap& affine,
                                         const ConstVelocityView& velocity) {
  ArenaScope scope(ctx.arena());
  options.velocity_grid = VelocityGrid::kFull;
  const Int3 size = images.fixed->levels()[index].volume.geometry.size;
  INTRAWARP_ASSIGN_OR_RETURN(const Fields fields, AllocateFields(ctx, size));
  INTRAWARP_ASSIGN_OR_RETURN(const Level level, MakeLevel(ctx, images, options, index, affine));
  INTRAWARP_RETURN_IF_ERROR(SetStart(ctx, velocity, size, fields));
  INTRAWARP_RETURN_IF_ERROR(BeginLevel(ctx, level, options, *options.iterations, fields).status());
  if (options.match_intensities.value_or(false)) INTRAWARP_RETURN_IF_ERROR(MatchIntensities(ctx, level, fields));
  INTRAWARP_RETURN_IF_ERROR(WarpByVelocity(ctx, level, fields));
  DemonsForceTask task = ForwardForce(level.step);
  task.weight = 1;
  INTRAWARP_RETURN_IF_ERROR(DemonsForce(ctx, task, fields.update, fields.state));
  INTRAWARP_ASSIGN_OR_RETURN(const DemonsState state, ReadState(ctx, fields.state));
  if (state.status == DemonsStatus::kTooLittleOverlap || state.status == DemonsStatus::kNotFinite) {
    return SampledValue();
  }
  return SampledValue{state.value, state.samples};
}

// The squared difference of the images that matching would take away at a level, in variances of the fixed image there.
absl::StatusOr<double> MatchableAt(const ExecContext& ctx, const RegistrationImages& images,
                                   const LogDemonsOptions& options, int index, const AffineMap& affine,
                                   const ConstVelocityView& velocity) {
  ArenaScope scope(ctx.arena());
  const Int3 size = images.fixed->levels()[index].volume.geometry.size;
  INTRAWARP_ASSIGN_OR_RETURN(const Fields fields, AllocateFields(ctx, size));
  INTRAWARP_ASSIGN_OR_RETURN(const Level level, MakeLevel(ctx, images, options, index, affine));
  INTRAWARP_RETURN_IF_ERROR(SetStart(ctx, velocity, size, fields));
  INTRAWARP_RETURN_IF_ERROR(BeginLevel(ctx, level, options, *options.iterations, fields).status());
  INTRAWARP_ASSIGN_OR_RETURN(const PairStatistics s, MeasureStatistics(ctx, level, fields));
  if (!(s.samples >= level.min_samples && s.fixed_deviation > 0 && s.moving_deviation > 0)) return 0.0;
  const double offset = s.fixed_mean - s.moving_mean, gain = s.fixed_deviation - s.moving_deviation;
  const double matchable = offset * offset + gain * gain;
  const bool is_worth_it = matchable >= kLeastMatched * s.fixed_deviation * s.fixed_deviation;
  return is_worth_it ? matchable : 0.0;
}

}  // namespace

absl::Status ValidateLogDemons(const LogDemonsOptions& options) {
  using O = LogDemonsOptions;
  INTRAWARP_RETURN_IF_ERROR(ValidateEffort(options.levels, options.iterations));
  INTRAWARP_RETURN_IF_ERROR(ValidateRange("finest_iterations", options.finest_iterations, 1, kMaxIterations));
  INTRAWARP_RETURN_IF_ERROR(ValidateRange("fluid_sigma", options.fluid_sigma, 0, O::kMaxSigma));
  INTRAWARP_RETURN_IF_ERROR(ValidateRange("diffusion_sigma", options.diffusion_sigma, 0, O::kMaxSigma));
  INTRAWARP_RETURN_IF_ERROR(ValidateRange("max_step", options.max_step, O::kLeastMaxStep, O::kLargestMaxStep));
  INTRAWARP_RETURN_IF_ERROR(ValidateRange("weak_gradient", options.weak_gradient, 0, O::kMaxWeakGradient));
  INTRAWARP_RETURN_IF_ERROR(ValidateRange("momentum", options.momentum, 0, O::kMaxMomentum));
  return ValidateRange("tolerance", options.tolerance, 0, O::kMaxTolerance);
}

LogDemonsOptions Resolved(LogDemonsOptions options) {
  using O = LogDemonsOptions;
  options.fluid_sigma = options.fluid_sigma.value_or(O::kDefaultFluidSigma);
  options.diffusion_sigma = options.diffusion_sigma.value_or(O::kDefaultDiffusionSigma);
  options.max_step = options.max_step.value_or(O::kDefaultMaxStep);
  options.weak_gradient = options.weak_gradient.value_or(O::kDefaultWeakGradient);
  options.tolerance = options.tolerance.value_or(O::kDefaultTolerance);
  return options;
}

LogDemonsOptions Resolved(LogDemonsOptions options, bool warm, int levels) {
  using O = LogDemonsOptions;
  options.velocity_grid = options.velocity_grid.value_or(warm ? O::kWarmVelocityGrid : VelocityGrid::kFull);
  const bool has_warm_finest = warm && !options.iterations.has_value();
  options.iterations = options.iterations.value_or(warm ? O::kWarmIterations : O::kDefaultIterations);
  const int warm_finest = levels > O::kWarmLevels ? O::kWarmFinestOfManyLevels : O::kWarmFinestIterations;
  options.finest_iterations = options.finest_iterations.value_or(has_warm_finest ? warm_finest : *options.iterations);
  options.momentum = options.momentum.value_or(warm ? O::kWarmMomentum : O::kDefaultMomentum);
  return Resolved(options);
}

absl::StatusOr<bool> AskForMatching(const ExecContext& ctx, const RegistrationImages& images,
                                    const LogDemonsOptions& given, const AffineMap& affine,
                                    const ConstVelocityView& velocity) {
  LogDemonsOptions options = Resolved(given, /*warm=*/false, /*levels=*/1);
  options.match_intensities = false;
  options.velocity_grid = VelocityGrid::kFull;
  options.levels.reset();
  int index = Levels(images, options, /*warm=*/false) - 1;
  while (index > 0 && images.fixed->levels()[index].volume.geometry.voxels() < kLeastMatchingVoxels) --index;
  INTRAWARP_ASSIGN_OR_RETURN(const double matchable, MatchableAt(ctx, images, options, index, affine, velocity));
  INTRAWARP_ASSIGN_OR_RETURN(const SampledValue whole, ObjectiveAt(ctx, images, options, index, affine, velocity));
  return matchable > 0 && whole.value.has_value() && matchable >= kLeastMatchedPart * *whole.value;
}

absl::StatusOr<LogDemonsStageResult> RunLogDemonsStage(const ExecContext& ctx, const RegistrationImages& images,
                                                       const LogDemonsOptions& given, int stage,
                                                       const AffineMap& affine, const ConstVelocityView& initial,
                                                       const VelocityFn& on_coarse) {
  INTRAWARP_RETURN_IF_ERROR(ValidateLogDemons(given));
  const bool warm = initial.data != nullptr;
  const int levels = Levels(images, given, warm);
  LogDemonsOptions options = Resolved(given, warm, levels);
  const Int3 finest = images.fixed->geometry().size;
  options.match_intensities = options.match_intensities.value_or(false);
  // Without a coarser grid.
  if (images.fixed->levels().size() == 1) options.velocity_grid = VelocityGrid::kFull;
  LogDemonsStageResult result;
  result.report.options = WithLevels(options, levels);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(Fields fields, AllocateFields(ctx, finest));
  Int3 size = VelocitySize(images, options, levels - 1);
  INTRAWARP_RETURN_IF_ERROR(SetStart(ctx, initial, size, fields));
  for (int index = levels - 1; index >= 0; --index) {
    const Int3 before = std::exchange(size, VelocitySize(images, options, index));
    INTRAWARP_RETURN_IF_ERROR(MoveToGrid(ctx, before, size, &fields));
    if (index == 0 && levels > 1 && on_coarse) INTRAWARP_RETURN_IF_ERROR(on_coarse({fields.velocity, size}));
    ArenaScope level_scope(ctx.arena());
    INTRAWARP_ASSIGN_OR_RETURN(const Level level, MakeLevel(ctx, images, options, index, affine));
    INTRAWARP_ASSIGN_OR_RETURN(const LevelRun run,
                               RunLevel(ctx, level, options, {stage, levels - 1 - index, levels, 0, 0}, fields));
    const DemonsState& state = run.state;
    if (state.iterations > 0 || state.status == DemonsStatus::kConverged) {
      result.report.levels.push_back({level.grid.size, state.iterations, state.first_value, state.value});
    } else if (index == 0 && run.decision == Decision::kContinue) {
      return NotStarted(state);
    }
    if (run.decision == Decision::kStop) break;
    if (index == 0) result.report.stop_reason = ToStopReason(state.status);
  }
  INTRAWARP_RETURN_IF_ERROR(MoveToGrid(ctx, size, finest, &fields));
  INTRAWARP_ASSIGN_OR_RETURN(result.velocity, ctx.device().Allocate(FieldBytes(finest), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Copy(result.velocity.as<float>(), fields.velocity, FieldBytes(finest), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return result;
}

int64_t LogDemonsWorkspaceBytes(const PreparedImage& fixed, const PreparedImage& moving) {
  const Geometry &f = fixed.geometry(), &m = moving.geometry();
  const int64_t spare = Arena::Rounded(sizeof(float) * ForceFloats(f.size)),
                image = Arena::Rounded(sizeof(float) * f.voxels());
  const size_t operators = std::max({SmoothVectorFieldWorkspaceBytes(f.size), ExponentiateWorkspaceBytes(f.size),
                                     DemonsForceWorkspaceBytes(f.size), PairMomentsWorkspaceBytes(f.voxels())});
  // The warped weights, and the moving ones on the fixed grid, where the masks have some.
  const int64_t weights = 2 * Arena::Rounded(f.voxels());
  return LogDemonsCoarseBytes(fixed) + spare + 3 * image + weights + Arena::Rounded(sizeof(float) * m.voxels()) +
         static_cast<int64_t>(operators);
}

int64_t LogDemonsCoarseBytes(const PreparedImage& fixed) {
  const Int3 size = fixed.geometry().size;
  return 2 * Arena::Rounded(FieldBytes(size)) + Arena::Rounded(sizeof(float) * ForceFloats(size)) +
         Arena::Rounded(sizeof(DemonsState)) + Arena::Rounded(sizeof(PairMoments));
}

absl::StatusOr<std::optional<double>> FinestLogDemonsObjective(const ExecContext& ctx, const RegistrationImages& images,
                                                               const LogDemonsOptions& options, const AffineMap& affine,
                                                               const ConstVelocityView& velocity) {
  INTRAWARP_ASSIGN_OR_RETURN(
      const SampledValue value,
      ObjectiveAt(ctx, images, Resolved(options, /*warm=*/false, /*levels=*/1), 0, affine, velocity));
  return value.value;
}

}  // namespace intrawarp
