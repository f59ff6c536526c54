// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/assess.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>

#include "engine/base/status_macros.h"
#include "engine/quality/deformation_gate.h"
#include "engine/quality/deformation_ways.h"
#include "engine/quality/predicted_error.h"
#include "engine/quality/residual_probe.h"
#include "engine/registration/mask_sources.h"
#include "engine/registration/stage/levels.h"
#include "engine/registration/stage/mask_levels.h"
#include "engine/transform/undeformed.h"

namespace intrawarp {
namespace {

bool IsFinite(const AffineMap& map) {
  for (const auto& row : map.m) {
    for (double value : row) {
      if (!std::isfinite(value)) return false;
    }
  }
  return true;
}

// A checkpoint between two passes of the assessment.
absl::Status CheckIn(const ExecContext& ctx) {
  return ctx.Checkpoint({}) == Decision::kCancel ? absl::CancelledError("cancelled") : absl::OkStatus();
}

Ending EndingOf(StopReason reason) {
  switch (reason) {
    case StopReason::kConverged:
      return Ending::kConverged;
    case StopReason::kBudget:
      return Ending::kCutShort;
    case StopReason::kIterationLimit:
    case StopReason::kNoProgress:
      return Ending::kUnfinished;
  }
  return Ending::kUnfinished;
}

struct Masks {
  ConstMaskView fixed, moving;
};

// Tissue that the result shows to be missing counts no more than what a mask leaves out.
absl::StatusOr<Masks> MasksOf(const ExecContext& ctx, const RegistrationInput& in, const RegistrationResult& result) {
  MaskSources fixed = FixedMaskSources(in);
  if (result.missing_tissue) fixed.left_out = &*result.missing_tissue;
  Masks masks;
  INTRAWARP_ASSIGN_OR_RETURN(masks.fixed, BuildMask(ctx, in.fixed->geometry(), fixed));
  INTRAWARP_ASSIGN_OR_RETURN(masks.moving, BuildMask(ctx, in.moving->geometry(), MovingMaskSources(in)));
  return masks;
}

int64_t MasksBytes(const RegistrationInput& in) {
  const bool has_fixed = FixedMaskSources(in).has_images() || in.find_missing_tissue || in.left_out != nullptr;
  return (has_fixed ? MaskWorkspaceBytes(in.fixed->geometry()) : 0) +
         (MovingMaskSources(in).has_images() ? MaskWorkspaceBytes(in.moving->geometry()) : 0);
}

absl::StatusOr<ResidualProbe> Probe(const ExecContext& ctx, const RegistrationInput& in, const Masks& masks,
                                    const Transform& transform, int64_t nodes = kProbeNodes) {
  return ProbeResidual(ctx, *in.fixed, *in.moving, masks.fixed, masks.moving, transform, nodes);
}

int64_t ProbeNodesOf(Scrutiny scrutiny) { return scrutiny == Scrutiny::kFrame ? kFrameProbeNodes : kProbeNodes; }

// Holds the deformation of `result` against its affine part; one that is rejected is taken out of the result unless the
// input keeps it, and `probe`, the result's own, becomes the affine part's. `report` has the estimate of `probe`.
absl::Status ApplyGate(const ExecContext& ctx, const RegistrationInput& in, const Masks& masks,
                       RegistrationResult& result, ResidualProbe& probe, QualityReport& report) {
  INTRAWARP_ASSIGN_OR_RETURN(ResidualProbe before, Probe(ctx, in, masks, Transform(result.transform.affine())));
  const std::optional<ErrorEstimate> affine = PredictError(before);
  if (!affine) {
    // The start of the deformation is unknown, so that its own figures prove nothing.
    report.error.reset();
    return absl::OkStatus();
  }
  const GateImages images{*in.fixed, *in.moving, masks.fixed, masks.moving};
  INTRAWARP_ASSIGN_OR_RETURN(const GateAnswer answer, JudgeDeformation(ctx, images, result.transform, {before, *affine},
                                                                       {probe, *report.error}));
  report.error = answer.error;
  if (answer.is_accepted) return absl::OkStatus();
  report.rejected_gain = answer.gain();
  report.keeps_rejected = in.keep_deformation;
  if (in.keep_deformation) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(result.transform, Undeformed(ctx, std::move(result.transform)));
  report.error = affine;
  HoldAgainstAffine(*affine, answer.evidence.deformation_mm, *report.error);
  probe = std::move(before);
  return absl::OkStatus();
}

// A registration that chose its stages has judged its result. False where it could not.
bool TakeJudgement(const RegistrationResult& result, QualityReport& report) {
  if (!result.choice.has_value() || !result.choice->error.has_value()) return false;
  report.error = result.choice->error;
  report.rejected_gain = result.choice->rejected_gain;
  report.keeps_rejected = result.choice->keeps_rejected;
  return true;
}

bool HasLinearStage(const std::vector<StageOptions>& stages) {
  return std::any_of(stages.begin(), stages.end(), [](const StageOptions& stage) {
    return std::holds_alternative<RigidOptions>(stage) || std::holds_alternative<AffineOptions>(stage);
  });
}

// Fills in what is predicted of the error of a result. With Scrutiny::kFull that may cost the result its deformation.
absl::Status Judge(const ExecContext& ctx, const RegistrationInput& in, const AssessOptions& options,
                   RegistrationResult& result, QualityReport& report, LatencyBreakdown& latency) {
  report.is_probed = true;
  const bool is_judged = TakeJudgement(result, report);
  if (is_judged && !options.error.map && options.error.points.empty()) return absl::OkStatus();
  PhaseTimer timer(latency, Phase::kAssess);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const Masks masks, MasksOf(ctx, in, result));
  const int64_t nodes = is_judged ? kProbeNodes : ProbeNodesOf(options.scrutiny);
  INTRAWARP_ASSIGN_OR_RETURN(ResidualProbe probe, Probe(ctx, in, masks, result.transform, nodes));
  INTRAWARP_RETURN_IF_ERROR(CheckIn(ctx));
  if (!is_judged) {
    report.error = PredictError(probe);
    if (!report.error) return absl::OkStatus();
    if (options.scrutiny == Scrutiny::kFull && !result.transform.is_affine()) {
      INTRAWARP_RETURN_IF_ERROR(ApplyGate(ctx, in, masks, result, probe, report));
    }
  }
  if (!is_judged && !result.transform.is_affine() && !HasLinearStage(in.stages)) {
    INTRAWARP_ASSIGN_OR_RETURN(report.turn_degrees, DeformationTurn(ctx, result.transform, probe));
  }
  if (options.error.map) report.error_map = MapErrors(probe);
  report.error_at = PredictErrorsAt(probe, options.error.points);
  for (size_t i = 0; i < report.error_at.size(); ++i) {
    report.error_at[i].is_missing =
        result.missing_tissue.has_value() && result.missing_tissue->Contains(options.error.points[i]);
  }
  return absl::OkStatus();
}

double LongestSide(const Geometry& g) {
  return std::max({g.size.x * g.spacing.x, g.size.y * g.spacing.y, g.is_2d() ? 0 : g.size.z * g.spacing.z});
}

double ExtentRatio(const Geometry& a, const Geometry& b) {
  const auto [shorter, longer] = std::minmax({LongestSide(a), LongestSide(b)});
  return longer / shorter;
}

// The last stage whose result is part of the answer: not one whose deformation was taken out, if there is another. Null
// without stages.
const StageReport* LastInAnswer(const RegistrationResult& result, const QualityReport& report) {
  if (result.stages.empty()) return nullptr;
  const bool is_undone = report.rejected_gain && !report.keeps_rejected && result.stages.size() > 1;
  return &result.stages[result.stages.size() - (is_undone ? 2 : 1)];
}

// Fills what the judge has left.
absl::Status Assess(const ExecContext& ctx, const RegistrationInput& in, const AssessOptions& options,
                    const RegistrationResult& result, QualityReport& report, LatencyBreakdown& latency) {
  PhaseTimer timer(latency, Phase::kAssess);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const Masks masks, MasksOf(ctx, in, result));
  const Transform header_alignment(AffineMap::Identity());
  INTRAWARP_ASSIGN_OR_RETURN(SimilarityResult before, MeasureSimilarity(ctx, *in.fixed, *in.moving, masks.fixed,
                                                                        masks.moving, header_alignment));
  INTRAWARP_RETURN_IF_ERROR(CheckIn(ctx));
  INTRAWARP_ASSIGN_OR_RETURN(SimilarityResult after, MeasureSimilarity(ctx, *in.fixed, *in.moving, masks.fixed,
                                                                       masks.moving, result.transform));
  INTRAWARP_RETURN_IF_ERROR(CheckIn(ctx));
  report.before = before.similarity;
  report.after = after.similarity;
  report.overlap = after.overlap;
  report.affine = ShapeOf(result.transform.affine());
  INTRAWARP_ASSIGN_OR_RETURN(report.jacobian, MeasureJacobian(ctx, result.transform, in.fixed->geometry()));
  if (result.transform.is_affine()) {
    report.inverse_consistency = AffineInverseConsistency(result.transform.affine(), in.fixed->geometry());
  } else if (result.transform.has_velocity()) {
    INTRAWARP_ASSIGN_OR_RETURN(report.inverse_consistency, MeasureInverseConsistency(ctx, result.transform));
  }
  if (result.starts) {
    report.start_margin = result.starts->margin;
    report.mirror_lead = result.starts->mirror_lead;
  }
  if (result.missing_tissue) report.missing_fraction = result.missing_tissue->fraction;
  if (!in.landmarks.empty()) {
    const double voxel = VoxelScale(in.fixed->geometry());
    INTRAWARP_ASSIGN_OR_RETURN(report.landmarks, MeasureLandmarks(ctx, result.transform, in.landmarks, voxel));
  }
  if (result.slice_pose) report.slice_observability = result.slice_pose->Observability();
  report.is_deformed = !result.transform.is_affine() && (!report.rejected_gain || report.keeps_rejected);
  const StageReport* last = LastInAnswer(result, report);
  report.takes_like_intensities = last != nullptr && MetricOf(last->options) == MetricKind::kSsd;
  report.extent_ratio = ExtentRatio(in.fixed->geometry(), in.moving->geometry());
  report.review_reasons =
      ReviewReasons(report, result.worse_than_start, EndingOf(result.stop_reason), options.error_limit_mm);
  return absl::OkStatus();
}

absl::StatusOr<RegistrationResult> Optimise(const ExecContext& ctx, const RegistrationInput& input,
                                            const RegistrationHooks& hooks, LatencyBreakdown& latency) {
  PhaseTimer timer(latency, Phase::kOptimise);
  ArenaScope scope(ctx.arena());
  if (hooks.on_start) INTRAWARP_RETURN_IF_ERROR(hooks.on_start());
  INTRAWARP_ASSIGN_OR_RETURN(RegistrationResult result, Register(ctx, input));
  if (hooks.on_optimised) INTRAWARP_RETURN_IF_ERROR(hooks.on_optimised(result));
  if (HasDiverged(result)) return absl::FailedPreconditionError("the optimiser diverged");
  return result;
}

}  // namespace

absl::StatusOr<AssessedRegistration> RegisterAndAssess(const ExecContext& ctx, const RegistrationInput& input,
                                                       const AssessOptions& options, const RegistrationHooks& hooks,
                                                       LatencyBreakdown* latency) {
  LatencyBreakdown own;
  LatencyBreakdown& phases = latency == nullptr ? own : *latency;
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage fixed, PreparedImage::ThroughWindow(ctx, *input.fixed));
  INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage moving, PreparedImage::ThroughWindow(ctx, *input.moving));
  RegistrationInput seen = input;
  seen.fixed = &fixed;
  seen.moving = &moving;
  AssessedRegistration answer;
  RegistrationResult& result = answer.result;
  INTRAWARP_ASSIGN_OR_RETURN(result, Optimise(ctx, seen, hooks, phases));
  const bool is_frame = options.scrutiny == Scrutiny::kFrame;
  // A deformation may be taken out: before anybody gets the transform.
  if (!is_frame) INTRAWARP_RETURN_IF_ERROR(Judge(ctx, seen, options, result, answer.quality, phases));
  if (hooks.on_transform) INTRAWARP_RETURN_IF_ERROR(hooks.on_transform(result.transform));
  if (is_frame) INTRAWARP_RETURN_IF_ERROR(Judge(ctx, seen, options, result, answer.quality, phases));
  INTRAWARP_RETURN_IF_ERROR(Assess(ctx, seen, options, result, answer.quality, phases));
  return answer;
}

int64_t WindowBytes(const RegistrationInput& input) {
  return input.fixed->WindowWorkspaceBytes() + input.moving->WindowWorkspaceBytes();
}

int64_t AssessedWorkspaceBytes(const Device& device, const RegistrationInput& input) {
  const Geometry& fixed = input.fixed->geometry();
  const bool has_control_grid = std::any_of(input.stages.begin(), input.stages.end(), [](const StageOptions& stage) {
    return std::holds_alternative<FfdOptions>(stage);
  });
  const int64_t measure = static_cast<int64_t>(
      std::max({SimilarityWorkspaceBytes(fixed, has_control_grid), JacobianWorkspaceBytes(fixed, has_control_grid),
                InverseConsistencyWorkspaceBytes(fixed), ResidualProbeWorkspaceBytes(fixed)}));
  const int64_t assess = MasksBytes(input) + measure;
  // Within it Register sees images that are through their windows already.
  return std::max(RegistrationWorkspaceBytes(device, input), WindowBytes(input) + assess);
}

bool HasDiverged(const RegistrationResult& result) {
  return !IsFinite(result.transform.affine()) || IsSingular(result.transform.affine());
}

InverseConsistency AffineInverseConsistency(const AffineMap& map, const Geometry& grid) {
  const AffineMap inverse = Inverse(map);
  const AffineMap to_physical = IndexToPhysical(grid);
  InverseConsistency result;
  for (int corner = 0; corner < 8; ++corner) {
    const Vec3d index{corner & 1 ? grid.size.x - 0.5 : -0.5, corner & 2 ? grid.size.y - 0.5 : -0.5,
                      corner & 4 ? grid.size.z - 0.5 : -0.5};
    const Vec3d p = to_physical(index);
    const Vec3d d = inverse(map(p)) - p;
    const double distance = std::sqrt(Dot(d, d));
    result.mean_mm += distance / 8;
    result.max_mm = std::max(result.max_mm, distance);
  }
  return result;
}

}  // namespace intrawarp
