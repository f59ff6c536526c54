// SPDX-License-Identifier: Apache-2.0
// Log-demons as a method of the pipeline: velocities in mm, intensities that are matched where the images ask for it,
// and a result that does not fold.
#include <algorithm>
#include <utility>
#include <variant>

#include "engine/base/status_macros.h"
#include "engine/registration/methods/log_demons.h"
#include "engine/transform/vector_field.h"
#include "engine/transform/velocity.h"
#include "engine/transform/velocity_unfolding.h"

namespace intrawarp {
namespace {

const LogDemonsOptions& OptionsOf(const StageOptions& stage) { return std::get<LogDemonsOptions>(stage); }

// The velocity v of a transform on `grid`, in voxels of the grid; null without a velocity. Memory stays taken from the
// arena.
absl::StatusOr<ConstVelocityView> VelocityOn(const ExecContext& ctx, const Transform* transform, const Geometry& grid) {
  if (transform == nullptr || !transform->has_velocity()) return ConstVelocityView{nullptr, grid.size};
  INTRAWARP_ASSIGN_OR_RETURN(float* const velocity, ctx.arena().Allocate<float>(3 * grid.voxels()));
  INTRAWARP_RETURN_IF_ERROR(EvaluateVelocity(ctx, *transform, grid, 0, grid.voxels(), velocity));
  INTRAWARP_RETURN_IF_ERROR(MapVectors(ctx, PhysicalToIndex(grid).Cast<float>(), grid.size, velocity));
  return ConstVelocityView{velocity, grid.size};
}

// The stage's last value may stand for the objective at its result unless
// - the finest level was cut short: the value is that before the last update;
// - intensities were matched: the match is that at the start of the level;
// - it belongs to another velocity or objective: the velocity was on a coarser grid or was smoothed afterwards, or
//   there are landmarks.
std::optional<double> ValueAtResult(const StageReport& report, bool matched, bool is_other) {
  const bool finished =
      report.stop_reason == StopReason::kConverged || report.stop_reason == StopReason::kIterationLimit;
  if (!finished || matched || is_other) return std::nullopt;
  return report.levels.back().value_after;
}

absl::Status GiveCoarse(const ExecContext& ctx, const CoarseHook& hook, const AffineMap& affine,
                        const ConstVelocityView& velocity, const Geometry& domain) {
  INTRAWARP_ASSIGN_OR_RETURN(Buffer in_mm, ctx.device().Allocate(3 * sizeof(float) * domain.voxels(), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ResampleVectorField(ctx, velocity.data, velocity.size, in_mm.as<float>(), domain.size));
  INTRAWARP_RETURN_IF_ERROR(MapVectors(ctx, IndexToPhysical(domain).Cast<float>(), domain.size, in_mm.as<float>()));
  INTRAWARP_ASSIGN_OR_RETURN(const UnfoldedTransform unfolded,
                             MakeUnfoldedTransform(ctx, affine, std::move(in_mm), domain));
  return hook.call(ctx, unfolded.transform);
}

Progress AtTheEnd(int stage, const StageReport& report) {
  const int levels = *OptionsOf(report.options).levels;
  if (report.levels.empty()) return {stage, levels - 1, levels, 0, 0};
  return {stage, levels - 1, levels, report.levels.back().iterations, report.levels.back().value_after};
}

absl::StatusOr<StageResult> Run(const ExecContext& ctx, const StageTask& task) {
  LogDemonsOptions options = OptionsOf(task.options);
  const Geometry& domain = task.images.fixed->geometry();
  ArenaScope scope(ctx.arena());
  StageResult result;
  INTRAWARP_ASSIGN_OR_RETURN(const ConstVelocityView initial, VelocityOn(ctx, task.initial, domain));
  if (!options.match_intensities.has_value()) {
    INTRAWARP_ASSIGN_OR_RETURN(options.match_intensities,
                               AskForMatching(ctx, task.images, options, task.start, initial));
  }
  VelocityFn on_coarse;
  if (task.coarse != nullptr) {
    on_coarse = [&](const ConstVelocityView& velocity) {
      return GiveCoarse(ctx, *task.coarse, task.start, velocity, domain);
    };
  }
  INTRAWARP_ASSIGN_OR_RETURN(LogDemonsStageResult stage,
                             RunLogDemonsStage(ctx, task.images, options, task.index, task.start, initial, on_coarse));
  INTRAWARP_RETURN_IF_ERROR(
      MapVectors(ctx, IndexToPhysical(domain).Cast<float>(), domain.size, stage.velocity.as<float>()));
  const Progress progress = AtTheEnd(task.index, stage.report);
  INTRAWARP_ASSIGN_OR_RETURN(UnfoldedTransform unfolded,
                             MakeUnfoldedTransform(ctx, task.start, std::move(stage.velocity), domain, &progress));
  result.transform = std::move(unfolded.transform);
  // The objective is without landmarks.
  const bool is_half = *OptionsOf(stage.report.options).velocity_grid == VelocityGrid::kHalf;
  const bool is_other = is_half || unfolded.rounds > 0 || !task.images.landmarks.empty();
  result.value = ValueAtResult(stage.report, *options.match_intensities, is_other);
  result.report = std::move(stage.report);
  return result;
}

absl::StatusOr<std::optional<double>> Objective(const ExecContext& ctx, const RegistrationImages& images,
                                                const StageOptions& options, const Transform& transform) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ConstVelocityView velocity, VelocityOn(ctx, &transform, images.fixed->geometry()));
  return FinestLogDemonsObjective(ctx, images, OptionsOf(options), transform.affine(), velocity);
}

bool StartsFrom(const Transform& transform) { return transform.is_affine() || transform.has_velocity(); }

absl::Status Validate(const StageOptions& options, const Geometry&) { return ValidateLogDemons(OptionsOf(options)); }

StageOptions ResolvedStage(const StageOptions& options, const Geometry&) { return Resolved(OptionsOf(options)); }

int64_t InitialBytes(const Geometry& domain) { return Arena::Rounded(3 * sizeof(float) * domain.voxels()); }

int64_t WorkspaceBytes(const Device&, const PreparedImage& fixed, const PreparedImage& moving, const StageOptions&) {
  const Geometry& domain = fixed.geometry();
  return InitialBytes(domain) +
         std::max(LogDemonsWorkspaceBytes(fixed, moving), UnfoldedTransformWorkspaceBytes(domain.size));
}

// The workspace of the exponentials counts in full, although the hook may take the same memory after them.
int64_t CoarseBytes(const PreparedImage& fixed, const StageOptions&) {
  return InitialBytes(fixed.geometry()) + LogDemonsCoarseBytes(fixed) +
         UnfoldedTransformWorkspaceBytes(fixed.geometry().size);
}

int64_t ResultBytes(const Geometry& fixed, const StageOptions&) { return VelocityTransformBytes(fixed.size); }

}  // namespace

constinit const Method kLogDemonsMethod = {.name = "log-demons",
                                           .is_deformable = true,
                                           .unset = LogDemonsOptions{},
                                           .starts_from = StartsFrom,
                                           .validate = Validate,
                                           .resolved = ResolvedStage,
                                           .workspace_bytes = WorkspaceBytes,
                                           .coarse_bytes = CoarseBytes,
                                           .result_bytes = ResultBytes,
                                           .held_bytes = ResultBytes,
                                           .run = Run,
                                           .objective = Objective};

}  // namespace intrawarp
