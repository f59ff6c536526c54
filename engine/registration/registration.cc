// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/registration.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/metric/nmi.h"
#include "engine/quality/quality.h"
#include "engine/registration/affine.h"
#include "engine/registration/ffd.h"
#include "engine/registration/log_demons.h"
#include "engine/registration/mask_levels.h"
#include "engine/transform/vector_field.h"
#include "engine/transform/velocity.h"

namespace intrawarp {
namespace {

// A linear part whose volume change is beyond this in either direction is taken for a mistake.
constexpr double kMaxVolumeChange = 1e3;
// Objectives (about 1 at a bad start) closer than this are as good as each other: a registration that starts at a
// minimum ends within its tolerances of it, on either side.
constexpr double kWorse = 1e-5;
// 2-D planes count as parallel when their normals are within this of each other (cosine).
constexpr double kParallelCosine = 1 - 1e-4;

bool IsDeformable(Method method) { return method == Method::kFfd || method == Method::kLogDemons; }

absl::Status RefuseOptionsOfFfd(const StageOptions& stage) {
  for (const auto& [given, name] :
       {std::pair(stage.spacing_vox != 0, "spacing_vox"), std::pair(stage.bending_weight.has_value(), "bending_weight"),
        std::pair(stage.elasticity_weight.has_value(), "elasticity_weight"),
        std::pair(stage.jacobian_weight.has_value(), "jacobian_weight"),
        std::pair(stage.optimizer != DescentMethod::kLbfgs, "optimizer")}) {
    if (given) return absl::InvalidArgumentError(absl::StrCat(name, ": is for ffd alone"));
  }
  return absl::OkStatus();
}

absl::Status RefuseOptionsOfLogDemons(const StageOptions& stage) {
  for (const auto& [given, name] :
       {std::pair(stage.fluid_sigma.has_value(), "fluid_sigma"),
        std::pair(stage.diffusion_sigma.has_value(), "diffusion_sigma"),
        std::pair(stage.max_step.has_value(), "max_step"), std::pair(stage.weak_gradient.has_value(), "weak_gradient"),
        std::pair(stage.update != VelocityUpdate::kCompose, "update"), std::pair(stage.symmetric, "symmetric"),
        std::pair(stage.match_intensities, "match_intensities")}) {
    if (given) return absl::InvalidArgumentError(absl::StrCat(name, ": is for log-demons alone"));
  }
  return absl::OkStatus();
}

absl::Status ValidateAffineStage(const StageOptions& stage) {
  if (stage.metric != MetricKind::kSsd && stage.metric != MetricKind::kNgf) {
    return absl::UnimplementedError("metric: rigid and affine stages take ssd and ngf");
  }
  INTRAWARP_RETURN_IF_ERROR(RefuseOptionsOfFfd(stage));
  return RefuseOptionsOfLogDemons(stage);
}

absl::Status ValidateLogDemonsStage(const StageOptions& stage) {
  if (stage.metric != MetricKind::kSsd) return absl::UnimplementedError("metric: log-demons takes ssd alone");
  INTRAWARP_RETURN_IF_ERROR(RefuseOptionsOfFfd(stage));
  return ValidateLogDemons(ToLogDemonsOptions(stage));
}

absl::Status ValidateStage(const Geometry& fixed, const StageOptions& stage) {
  if (stage.levels < 0 || stage.levels > kMaxLevels) {
    return absl::InvalidArgumentError(absl::StrCat("levels: must be 0 to ", kMaxLevels));
  }
  if (stage.iterations < 0 || stage.iterations > kMaxIterations) {
    return absl::InvalidArgumentError(absl::StrCat("iterations: must be 0 to ", kMaxIterations));
  }
  if (stage.method == Method::kLogDemons) return ValidateLogDemonsStage(stage);
  if (stage.method != Method::kFfd) return ValidateAffineStage(stage);
  INTRAWARP_RETURN_IF_ERROR(RefuseOptionsOfLogDemons(stage));
  return ValidateFfdStage(fixed, stage);
}

absl::Status AtStage(size_t stage, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("stages[", stage, "].", status.message()));
}

absl::Status ValidateStages(const Geometry& fixed, const std::vector<StageOptions>& stages) {
  if (stages.empty() || stages.size() > kMaxStages) {
    return absl::InvalidArgumentError(absl::StrCat("stages: ", stages.size(), ", must be 1 to ", kMaxStages));
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const absl::Status valid = ValidateStage(fixed, stages[i]);
    if (!valid.ok()) return AtStage(i, valid);
    if (i > 0 && IsDeformable(stages[i - 1].method) && stages[i].method != stages[i - 1].method) {
      return AtStage(i, absl::InvalidArgumentError("method: must be that of the stage before, which is deformable"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateInitial(const char* name, const AffineMap& initial) {
  for (const auto& row : initial.m) {
    for (double entry : row) {
      if (!std::isfinite(entry)) return absl::InvalidArgumentError(absl::StrCat(name, ": an entry is not finite"));
    }
  }
  const double determinant = std::abs(Determinant(initial));
  if (!(determinant >= 1 / kMaxVolumeChange && determinant <= kMaxVolumeChange)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": determinant ", determinant, ", must be ",
                                                   1 / kMaxVolumeChange, " to ", kMaxVolumeChange));
  }
  return absl::OkStatus();
}

absl::Status ValidateMask(const char* name, const PreparedImage& image, const PreparedImage* mask) {
  if (mask == nullptr || SameGrid(mask->geometry(), image.geometry())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", SizeString(mask->geometry()),
                                                 ", is not on the grid of its image, ", SizeString(image.geometry())));
}

absl::Status ValidateContrast(const char* name, const PreparedImage& image) {
  if (image.statistics().maximum > image.statistics().minimum) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name, ": the image is constant"));
}

// NGF takes central differences on every axis of the fixed image that is longer than one voxel.
absl::Status ValidateGradients(const std::vector<StageOptions>& stages, const Geometry& fixed) {
  const Int3 n = fixed.size;
  if (n.x != 2 && n.y != 2 && n.z != 2) return absl::OkStatus();
  for (const StageOptions& stage : stages) {
    if (stage.metric != MetricKind::kNgf) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("fixed: ngf needs gradients, and an axis of two voxels (", SizeString(fixed), ") has none"));
  }
  return absl::OkStatus();
}

// A histogram with more bins than samples says nothing.
absl::Status ValidateSamples(const RegistrationInput& input, const char* name, int64_t samples) {
  for (const StageOptions& stage : input.stages) {
    if (stage.metric != MetricKind::kNmi || samples >= kNmiBins) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": nmi needs ", kNmiBins, " voxels or more, as many as its bins; there are ", samples));
  }
  return absl::OkStatus();
}

absl::Status ValidateDimensions(const Geometry& fixed, const Geometry& moving) {
  if (fixed.is_2d() != moving.is_2d()) {
    return absl::UnimplementedError("registration of a 2-D image with a 3-D one");
  }
  if (!fixed.is_2d()) return absl::OkStatus();
  // Directions are of unit length to kDirectionTolerance only.
  double dot = 0, fixed2 = 0, moving2 = 0;
  for (int r = 0; r < 3; ++r) {
    dot += fixed.direction[r][2] * moving.direction[r][2];
    fixed2 += fixed.direction[r][2] * fixed.direction[r][2];
    moving2 += moving.direction[r][2] * moving.direction[r][2];
  }
  if (std::abs(dot) < kParallelCosine * std::sqrt(fixed2 * moving2)) {
    return absl::InvalidArgumentError("direction: the planes of the 2-D images are not parallel");
  }
  return absl::OkStatus();
}

absl::Status ValidateStart(const RegistrationInput& input) {
  if (input.initial.has_value()) INTRAWARP_RETURN_IF_ERROR(ValidateInitial("initial", *input.initial));
  if (input.initial_transform == nullptr) return absl::OkStatus();
  if (input.initial.has_value())
    return absl::InvalidArgumentError("initial_transform: there is an initial matrix, too");
  const Transform& initial = *input.initial_transform;
  if (initial.has_displacement() && !initial.has_velocity()) {
    return absl::UnimplementedError("initial_transform: a start from a displacement field is not in this version");
  }
  for (const StageOptions& stage : input.stages) {
    if ((stage.method == Method::kFfd && initial.has_velocity()) ||
        (stage.method == Method::kLogDemons && initial.has_control_grid())) {
      return absl::UnimplementedError(
          "initial_transform: a start of ffd from a velocity, or of log-demons from a control grid, is not in this "
          "version");
    }
  }
  return ValidateInitial("initial_transform", input.initial_transform->affine());
}

// Header alignment, and the translation that brings the centres of mass together.
std::vector<AffineMap> Starts(const RegistrationInput& input) {
  if (input.initial.has_value()) return {*input.initial};
  if (input.initial_transform != nullptr) return {input.initial_transform->affine()};
  AffineMap shift = AffineMap::Identity();
  const Vec3d d = input.moving->statistics().center_of_mass - input.fixed->statistics().center_of_mass;
  for (int r = 0; r < 3; ++r) shift.m[r][3] = d[r];
  return {AffineMap::Identity(), shift};
}

// What the stages so far have found.
struct Pipeline {
  const RegistrationInput& input;
  RegistrationImages images;
  std::vector<AffineMap> starts;
  std::optional<Transform> first_start;
  RegistrationResult result;
  // The last stage's objective at its result, where it is known.
  std::optional<double> value;
  // Of the last stage that ran, in the input.
  int last = 0;
};

// A velocity transform's v on `grid`, in voxels of it; null without one. Memory stays taken from the arena.
absl::StatusOr<ConstVelocityView> VelocityOn(const ExecContext& ctx, const Transform* transform, const Geometry& grid) {
  if (transform == nullptr || !transform->has_velocity()) return ConstVelocityView{nullptr, grid.size};
  INTRAWARP_ASSIGN_OR_RETURN(float* const velocity, ctx.arena().Allocate<float>(3 * grid.voxels()));
  INTRAWARP_RETURN_IF_ERROR(EvaluateVelocity(ctx, *transform, grid, 0, grid.voxels(), velocity));
  INTRAWARP_RETURN_IF_ERROR(MapVectors(ctx, PhysicalToIndex(grid).Cast<float>(), grid.size, velocity));
  return ConstVelocityView{velocity, grid.size};
}

// The objective of a stage at its finest level.
absl::StatusOr<std::optional<double>> Objective(const ExecContext& ctx, const RegistrationImages& images,
                                                const StageOptions& options, const Transform& transform) {
  if (options.method == Method::kFfd) return FinestFfdObjective(ctx, images, options, transform);
  if (options.method != Method::kLogDemons) return FinestObjective(ctx, images, options.metric, transform.affine());
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ConstVelocityView velocity, VelocityOn(ctx, &transform, images.fixed->geometry()));
  return FinestLogDemonsObjective(ctx, images, ToLogDemonsOptions(options), transform.affine(), velocity);
}

// The smallest determinant of exp(v).
absl::StatusOr<double> LeastDeterminant(const ExecContext& ctx, const Transform& transform, const Geometry& domain) {
  INTRAWARP_ASSIGN_OR_RETURN(const JacobianStatistics jacobian, MeasureJacobian(ctx, transform, domain));
  const double affine = Determinant(transform.affine());
  return (affine > 0 ? jacobian.min : jacobian.max) / affine;
}

// The transform of `velocity` (mm), which is smoothed by a voxel at a time while its exponential folds: an exponential
// does not where its velocity is smooth enough for its grid, but a small diffusion sigma leaves it to the images.
struct Unfolded {
  Transform transform{AffineMap::Identity()};
  bool smoothed = false;
};
absl::StatusOr<Unfolded> MakeUnfolded(const ExecContext& ctx, const AffineMap& affine, Buffer velocity,
                                      const Geometry& domain) {
  constexpr double kLeast = 0.01;
  constexpr int kRounds = 8;
  const size_t bytes = 3 * sizeof(float) * domain.voxels();
  Unfolded result;
  for (int round = 0;; ++round) {
    INTRAWARP_ASSIGN_OR_RETURN(result.transform, MakeVelocityTransform(ctx, affine, std::move(velocity), domain));
    INTRAWARP_ASSIGN_OR_RETURN(const double least, LeastDeterminant(ctx, result.transform, domain));
    if (least >= kLeast || round == kRounds) return result;
    result.smoothed = true;
    ArenaScope scope(ctx.arena());
    INTRAWARP_ASSIGN_OR_RETURN(float* const smooth, ctx.arena().Allocate<float>(3 * domain.voxels()));
    INTRAWARP_RETURN_IF_ERROR(
        SmoothVectorField(ctx, result.transform.velocity().data, domain.size, Vec3d{1, 1, 1}, smooth));
    // Its fields are given back before there are others.
    result.transform = Transform(affine);
    INTRAWARP_ASSIGN_OR_RETURN(velocity, ctx.device().Allocate(bytes, ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(velocity.as<float>(), smooth, bytes, ctx.stream()));
  }
}

int64_t UnfoldedWorkspaceBytes(const Geometry& domain) {
  const int64_t field = Arena::Rounded(3 * sizeof(float) * domain.voxels());
  return field + std::max({VelocityTransformWorkspaceBytes(domain.size),
                           static_cast<int64_t>(SmoothVectorFieldWorkspaceBytes(domain.size)),
                           static_cast<int64_t>(JacobianWorkspaceBytes(domain))});
}

absl::Status RunLogDemons(const ExecContext& ctx, int index, Pipeline* pipeline) {
  const StageOptions& options = pipeline->input.stages[index];
  const Geometry& domain = pipeline->input.fixed->geometry();
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(
      const AffineMap start,
      ChooseLogDemonsStart(ctx, pipeline->images, ToLogDemonsOptions(options), pipeline->starts));
  if (!pipeline->first_start.has_value()) pipeline->first_start = Transform(start);
  const Transform before = pipeline->result.transform;
  INTRAWARP_ASSIGN_OR_RETURN(
      const ConstVelocityView initial,
      VelocityOn(ctx, before.has_velocity() ? &before : pipeline->input.initial_transform, domain));
  INTRAWARP_ASSIGN_OR_RETURN(
      LogDemonsStageResult stage,
      RunLogDemonsStage(ctx, pipeline->images, ToLogDemonsOptions(options), index, start, initial));
  INTRAWARP_RETURN_IF_ERROR(
      MapVectors(ctx, IndexToPhysical(domain).Cast<float>(), domain.size, stage.velocity.as<float>()));
  INTRAWARP_ASSIGN_OR_RETURN(Unfolded unfolded, MakeUnfolded(ctx, start, std::move(stage.velocity), domain));
  pipeline->result.transform = std::move(unfolded.transform);
  pipeline->starts = {start};
  // Of a level that was cut short the last value is that before the last update, and of matched intensities it is one
  // with those of the level's start; of a velocity smoothed afterwards there is none.
  const bool finished = stage.stop_reason == StopReason::kConverged || stage.stop_reason == StopReason::kIterationLimit;
  pipeline->value = finished && !options.match_intensities && !unfolded.smoothed
                        ? std::optional(stage.levels.back().value_after)
                        : std::nullopt;
  pipeline->result.stages.push_back({options.method, options.metric, stage.stop_reason, std::move(stage.levels)});
  return absl::OkStatus();
}

int64_t LogDemonsPipelineBytes(const RegistrationInput& input) {
  const Geometry& domain = input.fixed->geometry();
  const int64_t initial = Arena::Rounded(3 * sizeof(float) * domain.voxels());
  return initial + std::max(LogDemonsWorkspaceBytes(*input.fixed, *input.moving), UnfoldedWorkspaceBytes(domain));
}

int64_t StageBytes(const Device& device, const RegistrationInput& input, const StageOptions& stage) {
  if (stage.method == Method::kFfd) return FfdStageWorkspaceBytes(device, *input.fixed, stage);
  return stage.method == Method::kLogDemons ? LogDemonsPipelineBytes(input) : AffineStageWorkspaceBytes();
}

absl::Status RunFfd(const ExecContext& ctx, int index, Pipeline* pipeline) {
  const StageOptions& options = pipeline->input.stages[index];
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap start, ChooseFfdStart(ctx, pipeline->images, options, pipeline->starts));
  if (!pipeline->first_start.has_value()) pipeline->first_start = Transform(start);
  const Transform before = pipeline->result.transform;
  const Transform* initial = before.has_control_grid() ? &before : pipeline->input.initial_transform;
  INTRAWARP_ASSIGN_OR_RETURN(FfdStageResult stage, RunFfdStage(ctx, pipeline->images, options, index, start, initial));
  pipeline->value = std::nullopt;
  pipeline->result.transform = std::move(stage.transform);
  pipeline->result.stages.push_back(std::move(stage.report));
  return absl::OkStatus();
}

absl::Status RunAffine(const ExecContext& ctx, int index, Pipeline* pipeline) {
  INTRAWARP_ASSIGN_OR_RETURN(
      AffineStageResult stage,
      RunAffineStage(ctx, pipeline->images, pipeline->input.stages[index], index, pipeline->starts));
  if (!pipeline->first_start.has_value()) pipeline->first_start = Transform(stage.start);
  pipeline->starts = {stage.transform};
  pipeline->value = stage.value;
  pipeline->result.transform = Transform(stage.transform, pipeline->input.fixed->geometry());
  pipeline->result.stages.push_back(std::move(stage.report));
  return absl::OkStatus();
}

absl::Status RunStage(const ExecContext& ctx, int index, Pipeline* pipeline) {
  const Method method = pipeline->input.stages[index].method;
  if (method == Method::kFfd) return RunFfd(ctx, index, pipeline);
  return method == Method::kLogDemons ? RunLogDemons(ctx, index, pipeline) : RunAffine(ctx, index, pipeline);
}

absl::StatusOr<bool> IsWorse(const ExecContext& ctx, const Pipeline& pipeline) {
  const StageOptions& last = pipeline.input.stages[pipeline.last];
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> before,
                             Objective(ctx, pipeline.images, last, *pipeline.first_start));
  std::optional<double> after = pipeline.value;
  if (!after.has_value()) {
    INTRAWARP_ASSIGN_OR_RETURN(after, Objective(ctx, pipeline.images, last, pipeline.result.transform));
  }
  return before.has_value() && (!after.has_value() || *after > *before + kWorse * (1 + *before));
}

}  // namespace

absl::Status ValidateRegistration(const RegistrationInput& input) {
  INTRAWARP_RETURN_IF_ERROR(ValidateStages(input.fixed->geometry(), input.stages));
  INTRAWARP_RETURN_IF_ERROR(ValidateStart(input));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("fixed_mask", *input.fixed, input.fixed_mask));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("moving_mask", *input.moving, input.moving_mask));
  INTRAWARP_RETURN_IF_ERROR(ValidateDimensions(input.fixed->geometry(), input.moving->geometry()));
  INTRAWARP_RETURN_IF_ERROR(ValidateGradients(input.stages, input.fixed->geometry()));
  INTRAWARP_RETURN_IF_ERROR(ValidateContrast("fixed", *input.fixed));
  INTRAWARP_RETURN_IF_ERROR(ValidateContrast("moving", *input.moving));
  INTRAWARP_RETURN_IF_ERROR(ValidateSamples(input, "fixed", input.fixed->geometry().voxels()));
  return ValidateSamples(input, "moving", input.moving->geometry().voxels());
}

int64_t RegistrationWorkspaceBytes(const Device& device, const RegistrationInput& input) {
  int64_t bytes = 0;
  for (const StageOptions& stage : input.stages) {
    bytes = std::max(bytes, StageBytes(device, input, stage));
  }
  if (input.fixed_mask != nullptr) bytes += MaskLevelsWorkspaceBytes(*input.fixed);
  if (input.moving_mask != nullptr) bytes += MaskLevelsWorkspaceBytes(*input.moving);
  return bytes;
}

int64_t RegistrationResultBytes(const RegistrationInput& input) {
  const StageOptions& last = input.stages.back();
  const Geometry& fixed = input.fixed->geometry();
  if (last.method == Method::kFfd) return FfdResultBytes(fixed, last);
  return last.method == Method::kLogDemons ? VelocityTransformBytes(fixed.size) : 0;
}

absl::StatusOr<RegistrationResult> Register(const ExecContext& ctx, const RegistrationInput& input) {
  INTRAWARP_RETURN_IF_ERROR(ValidateRegistration(input));
  ArenaScope scope(ctx.arena());
  Pipeline pipeline{input, {input.fixed, input.moving, {}, {}}, Starts(input), std::nullopt, {}, std::nullopt, 0};
  INTRAWARP_ASSIGN_OR_RETURN(pipeline.images.fixed_masks,
                             BuildMaskLevels(ctx, "fixed_mask", *input.fixed, input.fixed_mask));
  INTRAWARP_ASSIGN_OR_RETURN(pipeline.images.moving_masks,
                             BuildMaskLevels(ctx, "moving_mask", *input.moving, input.moving_mask));
  INTRAWARP_RETURN_IF_ERROR(ValidateSamples(input, "fixed_mask", pipeline.images.fixed_masks[0].count));
  INTRAWARP_RETURN_IF_ERROR(ValidateSamples(input, "moving_mask", pipeline.images.moving_masks[0].count));
  if (input.initial_transform != nullptr) pipeline.first_start = *input.initial_transform;
  RegistrationResult& result = pipeline.result;
  for (size_t i = 0; i < input.stages.size(); ++i) {
    const int index = static_cast<int>(i);
    // Without time a deformable stage still gives its native form, with what it would have started from.
    if (result.stop_reason == StopReason::kBudget && !IsDeformable(input.stages[i].method)) continue;
    INTRAWARP_RETURN_IF_ERROR(RunStage(ctx, index, &pipeline));
    pipeline.last = index;
    result.stop_reason = result.stages.back().stop_reason;
  }
  INTRAWARP_ASSIGN_OR_RETURN(result.worse_than_start, IsWorse(ctx, pipeline));
  return std::move(result);
}

}  // namespace intrawarp
