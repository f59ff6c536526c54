// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/registration.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/registration/automatic.h"
#include "engine/registration/automatic_steps.h"
#include "engine/registration/mask_sources.h"
#include "engine/registration/methods/landmark_force.h"
#include "engine/registration/methods/log_demons.h"
#include "engine/registration/methods/method.h"
#include "engine/registration/stage/mask_levels.h"
#include "engine/registration/validate.h"
#include "engine/search/node_pulls.h"
#include "engine/transform/landmark_penalty.h"

namespace intrawarp {
namespace {

bool IsGivenAStart(const RegistrationInput& input) {
  return input.initial.has_value() || input.initial_transform != nullptr;
}

std::vector<StageOptions> ResolvedStages(const RegistrationInput& input) {
  std::vector<StageOptions> stages;
  for (const StageOptions& stage : input.stages) stages.push_back(Resolved(stage, input.fixed->geometry()));
  return stages;
}

// A rigid stage that takes the workspace of the search of a start.
StageOptions OptionsOfStart(MetricKind metric, const Geometry& fixed) {
  return Resolved(RigidOptions{.metric = StartMetric(metric)}, fixed);
}

// The state between stages.
struct Pipeline {
  const RegistrationInput& input;
  std::vector<StageOptions> stages;
  RegistrationImages images;
  // Where the next stage starts.
  AffineMap start = AffineMap::Identity();
  // Where the first stage started.
  std::optional<Transform> first_start;
  RegistrationResult result;
  // The last stage's objective at its result, where it is known.
  std::optional<double> value;
  // Index of the last stage that ran.
  int last = 0;
  // Progress.stage of the first one.
  int first_step = 0;
};

// The stages with every SSD of a linear one replaced by NGF, which serves images of unlike intensities.
std::vector<StageOptions> ForUnlikeIntensities(std::vector<StageOptions> stages) {
  for (StageOptions& stage : stages) {
    const auto replace = [](auto& options) {
      if (options.metric == MetricKind::kSsd) options.metric = MetricKind::kNgf;
    };
    if (auto* rigid = std::get_if<RigidOptions>(&stage)) replace(*rigid);
    if (auto* affine = std::get_if<AffineOptions>(&stage)) replace(*affine);
  }
  return stages;
}

// Linear stages, and the search of a start, prepare log-demons that is to find out by itself whether the images differ
// in gain and offset. SSD, with which they would compare intensities as they are, gives way where the images do.
bool MayGiveWay(const RegistrationInput& input) {
  const auto* demons = std::get_if<LogDemonsOptions>(&input.stages.back());
  const Int3 n = input.fixed->geometry().size;
  const bool has_gradients = n.x != 2 && n.y != 2 && n.z != 2;
  const bool has_more = input.stages.size() > 1 || !IsGivenAStart(input);
  return has_more && demons != nullptr && !demons->match_intensities.has_value() && has_gradients;
}

// Sets where the first stage starts; `metric` is that of a search.
absl::Status ChooseStart(const ExecContext& ctx, MetricKind metric, Pipeline* pipeline) {
  const RegistrationInput& input = pipeline->input;
  if (input.initial_transform != nullptr) {
    pipeline->start = input.initial_transform->affine();
    pipeline->first_start = *input.initial_transform;
    return absl::OkStatus();
  }
  if (input.initial.has_value()) {
    pipeline->start = *input.initial;
    pipeline->first_start = Transform(*input.initial);
    return absl::OkStatus();
  }
  const StageOptions& first = pipeline->stages.front();
  INTRAWARP_ASSIGN_OR_RETURN(StartSearch search, SearchStart(ctx, pipeline->images, metric));
  const bool as_proposed = MethodOf(first).is_deformable && search.kind != StartKind::kRotation;
  pipeline->start = as_proposed ? search.start : search.found;
  pipeline->first_start = Transform(search.start);
  pipeline->result.starts = std::move(search.report);
  return absl::OkStatus();
}

absl::Status AdaptToIntensities(const ExecContext& ctx, Pipeline* pipeline) {
  const auto& demons = std::get<LogDemonsOptions>(pipeline->stages.back());
  INTRAWARP_ASSIGN_OR_RETURN(const bool differ,
                             AskForMatching(ctx, pipeline->images, demons, pipeline->first_start->affine(), {}));
  if (!differ) return absl::OkStatus();
  pipeline->stages = ForUnlikeIntensities(std::move(pipeline->stages));
  return ChooseStart(ctx, MetricKind::kNgf, pipeline);
}

absl::Status RunStage(const ExecContext& ctx, int index, Pipeline* pipeline) {
  const StageOptions& options = pipeline->stages[index];
  const Transform& before = pipeline->result.transform;
  const Transform* initial = before.is_affine() ? pipeline->input.initial_transform : &before;
  const bool is_last = index + 1 == static_cast<int>(pipeline->stages.size());
  const CoarseHook* coarse = is_last && pipeline->input.coarse ? &*pipeline->input.coarse : nullptr;
  const Effort effort = before.is_affine() ? Effort::kAfterRegistration : Effort::kAfterStage;
  const StageTask task{pipeline->images, options, pipeline->first_step + index, pipeline->start, initial,
                       effort,           coarse};
  INTRAWARP_ASSIGN_OR_RETURN(StageResult stage, MethodOf(options).run(ctx, task));
  // The objective is that of the stage as it ran: what it chose by the images stays.
  pipeline->stages[index] = stage.report.options;
  pipeline->start = stage.transform.affine();
  pipeline->value = stage.value;
  pipeline->last = index;
  pipeline->result.stop_reason = stage.report.stop_reason;
  pipeline->result.transform = std::move(stage.transform);
  pipeline->result.stages.push_back(std::move(stage.report));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<double>> Objective(const ExecContext& ctx, const Pipeline& pipeline,
                                                const Transform& transform) {
  const StageOptions& last = pipeline.stages[pipeline.last];
  return MethodOf(last).objective(ctx, pipeline.images, last, transform);
}

absl::StatusOr<bool> IsWorse(const ExecContext& ctx, const Pipeline& pipeline) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> before, Objective(ctx, pipeline, *pipeline.first_start));
  std::optional<double> after = pipeline.value;
  if (!after.has_value()) {
    INTRAWARP_ASSIGN_OR_RETURN(after, Objective(ctx, pipeline, pipeline.result.transform));
  }
  return IsClearlyWorse(before, after);
}

// The workspace of these stages, which are resolved, and of the search of their start with such a metric.
int64_t StagesWorkspaceBytes(const Device& device, const RegistrationInput& input,
                             const std::vector<StageOptions>& stages, MetricKind search_metric) {
  int64_t bytes = 0;
  for (const StageOptions& stage : stages) {
    bytes = std::max(bytes, MethodOf(stage).workspace_bytes(device, *input.fixed, *input.moving, stage));
  }
  if (IsGivenAStart(input)) return bytes;
  const StageOptions search = OptionsOfStart(search_metric, input.fixed->geometry());
  return std::max(bytes, MethodOf(search).workspace_bytes(device, *input.fixed, *input.moving, search));
}

// This is for an input with named stages, without masks.
int64_t NamedWorkspaceBytes(const Device& device, const RegistrationInput& input) {
  const std::vector<StageOptions> stages = ResolvedStages(input);
  int64_t bytes = StagesWorkspaceBytes(device, input, stages, MetricOf(stages.front()));
  if (MayGiveWay(input)) {
    const std::vector<StageOptions> unlike = ForUnlikeIntensities(stages);
    bytes = std::max(bytes, StagesWorkspaceBytes(device, input, unlike, MetricKind::kNgf));
  }
  const Method& last = MethodOf(stages.back());
  if (input.coarse && last.is_deformable) {
    bytes = std::max(bytes, last.coarse_bytes(*input.fixed, stages.back()) + input.coarse->workspace_bytes);
  }
  return bytes;
}

// An error about the mask of several sources is one about its mask.
bool HasOnlyWeights(const MaskSources& sources) { return sources.mask == nullptr && sources.weight != nullptr; }

absl::StatusOr<MissingTissue> Search(const ExecContext& ctx, const RegistrationInput& input,
                                     const Transform& transform) {
  ArenaScope scope(ctx.arena());
  ConstMaskView fixed_mask, moving_mask;
  INTRAWARP_ASSIGN_OR_RETURN(fixed_mask, BuildMask(ctx, input.fixed->geometry(), FixedMaskSources(input)));
  INTRAWARP_ASSIGN_OR_RETURN(moving_mask, BuildMask(ctx, input.moving->geometry(), MovingMaskSources(input)));
  return FindMissingTissue(ctx, *input.fixed, *input.moving, fixed_mask, moving_mask, transform);
}

// On images that are through their windows. Progress counts named stages from `first_step`.
absl::StatusOr<RegistrationResult> RegisterOnce(const ExecContext& ctx, const RegistrationInput& input,
                                                int first_step = 0) {
  ArenaScope scope(ctx.arena());
  const Geometry &fixed = input.fixed->geometry(), &moving = input.moving->geometry();
  const bool is_plane = fixed.is_2d() && moving.is_2d();
  const std::vector<Landmark> in_planes = is_plane ? InPlanes(input.landmarks, fixed, moving) : std::vector<Landmark>();
  RegistrationImages images{input.fixed, input.moving, {}, {}, input.landmarks};
  if (is_plane) images.landmarks = in_planes;
  const MaskSources fixed_sources = FixedMaskSources(input), moving_sources = MovingMaskSources(input);
  const char* fixed_name = HasOnlyWeights(fixed_sources) ? "fixed_weight" : "fixed_mask";
  const char* moving_name = HasOnlyWeights(moving_sources) ? "moving_weight" : "moving_mask";
  INTRAWARP_ASSIGN_OR_RETURN(images.fixed_masks, BuildMaskLevels(ctx, fixed_name, *input.fixed, fixed_sources));
  INTRAWARP_ASSIGN_OR_RETURN(images.moving_masks, BuildMaskLevels(ctx, moving_name, *input.moving, moving_sources));
  INTRAWARP_RETURN_IF_ERROR(ValidateSamples(input, fixed_name, images.fixed_masks[0].count));
  INTRAWARP_RETURN_IF_ERROR(ValidateSamples(input, moving_name, images.moving_masks[0].count));
  if (input.automatic) return RegisterAutomatically(ctx, input, images);
  Pipeline pipeline{input, ResolvedStages(input), std::move(images), {}, std::nullopt, {}, std::nullopt, 0, first_step};
  INTRAWARP_RETURN_IF_ERROR(ChooseStart(ctx, MetricOf(pipeline.stages.front()), &pipeline));
  if (MayGiveWay(input)) INTRAWARP_RETURN_IF_ERROR(AdaptToIntensities(ctx, &pipeline));
  RegistrationResult& result = pipeline.result;
  for (int index = 0; index < static_cast<int>(input.stages.size()); ++index) {
    const bool out_of_time = result.stop_reason == StopReason::kBudget;
    if (out_of_time && !MethodOf(input.stages[index]).is_deformable) continue;
    INTRAWARP_RETURN_IF_ERROR(RunStage(ctx, index, &pipeline));
  }
  INTRAWARP_ASSIGN_OR_RETURN(result.worse_than_start, IsWorse(ctx, pipeline));
  if (IsSliceToVolume(input)) {
    const MetricKind metric = MetricOf(pipeline.stages[pipeline.last]);
    INTRAWARP_ASSIGN_OR_RETURN(result.slice_pose,
                               ObserveSlicePose(ctx, pipeline.images, metric, result.transform.affine()));
  }
  return std::move(result);
}

// The registration whose result shows what is missing: a discrete search, since its coarse grid follows the motion of
// the tissue and cannot stretch it into a hole.
RegistrationInput SearchOf(const RegistrationInput& input) {
  RegistrationInput search = input;
  search.stages = {SearchOptions{}};
  search.automatic = false;
  search.coarse.reset();
  return search;
}

// The tissue that is left out is so much wider than what is missing: interpolation and smoothing carry it outwards.
constexpr double kMarginMm = 3;

absl::StatusOr<RegistrationResult> RegisterAroundMissing(const ExecContext& ctx, const RegistrationInput& input) {
  std::optional<MissingTissue> missing;
  absl::StatusOr<RegistrationResult> search = RegisterOnce(ctx, SearchOf(input), kBeforeStages);
  if (!search.ok() && !absl::IsFailedPrecondition(search.status())) return search.status();
  if (search.ok() && search->stop_reason != StopReason::kBudget) {
    INTRAWARP_ASSIGN_OR_RETURN(missing, Search(ctx, input, search->transform));
  }
  search = absl::UnknownError("");
  const MissingTissue left_out = missing ? Widened(*missing, kMarginMm) : MissingTissue();
  RegistrationInput around = input;
  if (!left_out.nodes.empty()) around.left_out = &left_out;
  INTRAWARP_ASSIGN_OR_RETURN(RegistrationResult result, RegisterOnce(ctx, around));
  result.missing_tissue = std::move(missing);
  return result;
}

// The workspace of the search for missing tissue.
int64_t MissingWorkspaceBytes(const Device& device, const RegistrationInput& input) {
  const RegistrationInput search = SearchOf(input);
  int64_t bytes = static_cast<int64_t>(MissingTissueWorkspaceBytes(input.fixed->geometry()));
  if (FixedMaskSources(input).has_images()) bytes += MaskWorkspaceBytes(input.fixed->geometry());
  if (MovingMaskSources(input).has_images()) bytes += MaskWorkspaceBytes(input.moving->geometry());
  return std::max(bytes, NamedWorkspaceBytes(device, search));
}

// A stage starts from the result of the one before it, which stays until the stage has its own.
int64_t NamedTransformBytes(const std::vector<StageOptions>& stages, const Geometry& fixed) {
  int64_t before = 0, most = 0;
  for (const StageOptions& stage : stages) {
    const StageOptions resolved = Resolved(stage, fixed);
    const Method& method = MethodOf(resolved);
    most = std::max(most, before + method.held_bytes(fixed, resolved));
    before = method.result_bytes(fixed, resolved);
  }
  return most;
}

// The most that landmarks take at any time, in any method.
int64_t LandmarksWorkspaceBytes(int64_t landmarks) {
  return std::max({GridLandmarksBytes(landmarks), LandmarkForceBytes(landmarks), NodePullsBytes(landmarks)});
}

}  // namespace

bool IsSliceToVolume(const RegistrationInput& input) {
  return IsSliceOf(input.fixed->geometry(), input.moving->geometry());
}

std::vector<StageOptions> AutomaticSliceStages() { return {RigidOptions{.metric = MetricKind::kNmi}}; }

int64_t RegistrationWorkspaceBytes(const Device& device, const RegistrationInput& input) {
  int64_t bytes = input.automatic ? AutomaticWorkspaceBytes(device, input) : NamedWorkspaceBytes(device, input);
  if (input.find_missing_tissue) bytes = std::max(bytes, MissingWorkspaceBytes(device, input));
  const bool leaves_out = input.find_missing_tissue || input.left_out != nullptr;
  if (FixedMaskSources(input).has_images() || leaves_out) bytes += MaskLevelsWorkspaceBytes(*input.fixed);
  if (MovingMaskSources(input).has_images()) bytes += MaskLevelsWorkspaceBytes(*input.moving);
  if (!input.landmarks.empty()) bytes += LandmarksWorkspaceBytes(static_cast<int64_t>(input.landmarks.size()));
  return bytes + input.fixed->WindowWorkspaceBytes() + input.moving->WindowWorkspaceBytes();
}

int64_t RegistrationResultBytes(const std::vector<StageOptions>& stages, bool automatic, const Geometry& fixed) {
  return automatic ? AutomaticResultBytes(fixed) : StageResultBytes(stages.back(), fixed);
}

int64_t RegistrationResultBytes(const RegistrationInput& input) {
  return RegistrationResultBytes(input.stages, input.automatic, input.fixed->geometry());
}

int64_t StageResultBytes(const StageOptions& stage, const Geometry& fixed) {
  const StageOptions resolved = Resolved(stage, fixed);
  return MethodOf(resolved).result_bytes(fixed, resolved);
}

int64_t RegistrationMemoryBytes(const std::vector<StageOptions>& stages, bool automatic, bool find_missing_tissue,
                                const Geometry& fixed) {
  // The result of the search for missing tissue is freed before the first stage.
  const int64_t missing = find_missing_tissue ? StageResultBytes(SearchOptions{}, fixed) : 0;
  return std::max(missing, automatic ? AutomaticTransformBytes(fixed) : NamedTransformBytes(stages, fixed));
}

int64_t RegistrationMemoryBytes(const RegistrationInput& input) {
  return RegistrationMemoryBytes(input.stages, input.automatic, input.find_missing_tissue, input.fixed->geometry());
}

absl::StatusOr<RegistrationResult> Register(const ExecContext& ctx, const RegistrationInput& as_they_came) {
  INTRAWARP_RETURN_IF_ERROR(ValidateRegistration(as_they_came));
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage fixed, PreparedImage::ThroughWindow(ctx, *as_they_came.fixed));
  INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage moving, PreparedImage::ThroughWindow(ctx, *as_they_came.moving));
  RegistrationInput input = as_they_came;
  input.fixed = &fixed;
  input.moving = &moving;
  return input.find_missing_tissue ? RegisterAroundMissing(ctx, input) : RegisterOnce(ctx, input);
}

}  // namespace intrawarp
