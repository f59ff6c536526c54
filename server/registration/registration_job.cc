// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_job.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/image/convert.h"
#include "engine/quality/deformation_gate.h"
#include "engine/quality/predicted_error.h"
#include "engine/quality/residual_probe.h"
#include "engine/transform/undeformed.h"
#include "server/base/names.h"
#include "server/bulk/bulk_stream.h"
#include "server/bulk/field_stream.h"
#include "server/registration/registration_options.h"

namespace intrawarp::server {
namespace {

int64_t MaskBytes(const PreparedImage* mask) {
  return mask == nullptr ? 0 : static_cast<int64_t>(Arena::Rounded(mask->geometry().voxels()));
}

absl::StatusOr<ConstMaskView> Binarize(const ExecContext& ctx, const PreparedImage* mask) {
  if (mask == nullptr) return ConstMaskView();
  MaskView view{nullptr, mask->geometry()};
  INTRAWARP_ASSIGN_OR_RETURN(view.data, ctx.arena().Allocate<uint8_t>(mask->geometry().voxels()));
  INTRAWARP_RETURN_IF_ERROR(BinarizeMask(ctx, mask->volume(), view));
  return ConstMaskView(view);
}

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

absl::StatusOr<std::shared_ptr<Grant>> ReserveResult(const RegistrationTask& task, LatencyBreakdown& latency) {
  PhaseTimer timer(latency, Phase::kAdmit);
  return task.reserve(RegistrationMemoryBytes(task.input));
}

// Within the phase optimise, of which the time for sending is not part.
absl::Status SendCoarseField(const ExecContext& ctx, const FieldOutput& output, const Transform& transform,
                             std::shared_ptr<char> memory, JobControl& control, LatencyBreakdown& latency) {
  if (control.cancelled()) return control.CancelStatus();
  const auto begin = std::chrono::steady_clock::now();
  INTRAWARP_RETURN_IF_ERROR(SendField(ctx, output, transform, std::move(memory), latency));
  const std::chrono::nanoseconds sending = std::chrono::steady_clock::now() - begin;
  latency.Add(Phase::kOptimise, -sending);
  control.Held(sending);
  return absl::OkStatus();
}

absl::StatusOr<RegistrationResult> Optimise(const ExecContext& ctx, const RegistrationTask& task,
                                            std::shared_ptr<char> coarse_memory, JobControl& control,
                                            LatencyBreakdown& latency) {
  PhaseTimer timer(latency, Phase::kOptimise);
  ArenaScope scope(ctx.arena());
  RegistrationInput input = task.input;
  if (task.coarse_field) {
    input.coarse->call = [&](const ExecContext& stage_ctx, const Transform& transform) {
      return SendCoarseField(stage_ctx, *task.coarse_field, transform, std::move(coarse_memory), control, latency);
    };
  }
  control.StartBudget(task.budget);
  absl::StatusOr<RegistrationResult> result = Register(ctx, input);
  if (control.cancelled()) return control.CancelStatus();
  if (!result.ok()) return result;
  if (result->stop_reason == StopReason::kBudget && !task.best_effort) {
    const double ms =
        std::chrono::duration<double, std::milli>(task.budget.value_or(std::chrono::nanoseconds(0))).count();
    const std::string description = absl::StrCat(ms, " ms were used up");
    return WithReason(FieldError(absl::StatusCode::kDeadlineExceeded, "budget", description), v1::BUDGET_USED_UP);
  }
  if (!IsFinite(result->transform.affine()) || IsSingular(result->transform.affine())) {
    return WithReason(absl::FailedPreconditionError("the optimiser diverged"), v1::OPTIMIZER_DIVERGED);
  }
  return result;
}

// Room for the field before the work, so that it is not done in vain. Null for control points, whose number is not
// known before, for a stream, and without a field.
absl::StatusOr<std::shared_ptr<char>> LeaseField(const std::optional<FieldOutput>& field, const Geometry& fixed,
                                                 LatencyBreakdown& latency) {
  if (!field || field->stream || field->request.form == FieldForm::kControlPoints) return nullptr;
  PhaseTimer timer(latency, Phase::kAdmit);
  absl::StatusOr<Geometry> grid = FieldGrid(field->request, fixed);
  if (!grid.ok()) return Within("field", grid.status());
  return field->lease(FieldBytes(field->request, *grid));
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

absl::StatusOr<Masks> BinarizeMasks(const ExecContext& ctx, const RegistrationInput& in) {
  Masks masks;
  INTRAWARP_ASSIGN_OR_RETURN(masks.fixed, Binarize(ctx, in.fixed_mask));
  INTRAWARP_ASSIGN_OR_RETURN(masks.moving, Binarize(ctx, in.moving_mask));
  return masks;
}

absl::StatusOr<ResidualProbe> Probe(const ExecContext& ctx, const RegistrationInput& in, const Masks& masks,
                                    const Transform& transform, int64_t nodes = kProbeNodes) {
  return ProbeResidual(ctx, *in.fixed, *in.moving, masks.fixed, masks.moving, transform, nodes);
}

int64_t ProbeNodesOf(Scrutiny scrutiny) { return scrutiny == Scrutiny::kFrame ? kFrameProbeNodes : kProbeNodes; }

// Holds the deformation of `result` against its affine part; one that is rejected is taken out of the result unless the
// task keeps it, and `probe`, which is that of the result, with it. `report` has the estimate of `probe`.
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

// Fills in what is predicted of the error of a result. With Scrutiny::kFull that may cost the result its deformation.
absl::Status Judge(const ExecContext& ctx, const RegistrationTask& task, RegistrationResult& result,
                   QualityReport& report, LatencyBreakdown& latency) {
  report.is_probed = true;
  const bool is_judged = TakeJudgement(result, report);
  if (is_judged && !task.error.map && task.error.points.empty()) return absl::OkStatus();
  PhaseTimer timer(latency, Phase::kAssess);
  ArenaScope scope(ctx.arena());
  const RegistrationInput& in = task.input;
  INTRAWARP_ASSIGN_OR_RETURN(const Masks masks, BinarizeMasks(ctx, in));
  const int64_t nodes = is_judged ? kProbeNodes : ProbeNodesOf(task.scrutiny);
  INTRAWARP_ASSIGN_OR_RETURN(ResidualProbe probe, Probe(ctx, in, masks, result.transform, nodes));
  INTRAWARP_RETURN_IF_ERROR(CheckIn(ctx));
  if (!is_judged) {
    report.error = PredictError(probe);
    if (!report.error) return absl::OkStatus();
    if (task.scrutiny == Scrutiny::kFull && !result.transform.is_affine()) {
      INTRAWARP_RETURN_IF_ERROR(ApplyGate(ctx, in, masks, result, probe, report));
    }
  }
  if (task.error.map) report.error_map = MapErrors(probe);
  report.error_at = PredictErrorsAt(probe, task.error.points);
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
absl::Status Assess(const ExecContext& ctx, const RegistrationTask& task, const RegistrationResult& result,
                    QualityReport& report, LatencyBreakdown& latency) {
  PhaseTimer timer(latency, Phase::kAssess);
  ArenaScope scope(ctx.arena());
  const RegistrationInput& in = task.input;
  INTRAWARP_ASSIGN_OR_RETURN(const Masks masks, BinarizeMasks(ctx, in));
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
  if (result.slice_pose) report.slice_observability = result.slice_pose->Observability();
  report.is_deformed = !result.transform.is_affine() && (!report.rejected_gain || report.keeps_rejected);
  const StageReport* last = LastInAnswer(result, report);
  report.takes_like_intensities = last != nullptr && MetricOf(last->options) == MetricKind::kSsd;
  report.extent_ratio = ExtentRatio(in.fixed->geometry(), in.moving->geometry());
  report.review_reasons =
      ReviewReasons(report, result.worse_than_start, EndingOf(result.stop_reason), task.error_limit_mm);
  return absl::OkStatus();
}

}  // namespace

CoarseHook CoarseFieldHook(const Device& device, const Geometry& fixed) {
  return {.workspace_bytes = ProduceFieldWorkspaceBytes(device, fixed), .call = nullptr};
}

int64_t RegistrationJobBytes(const Device& device, const RegistrationInput& input) {
  const Geometry& fixed = input.fixed->geometry();
  const bool has_control_grid = std::any_of(input.stages.begin(), input.stages.end(), [](const StageOptions& stage) {
    return std::holds_alternative<FfdOptions>(stage);
  });
  const int64_t measure = static_cast<int64_t>(
      std::max({SimilarityWorkspaceBytes(fixed, has_control_grid), JacobianWorkspaceBytes(fixed, has_control_grid),
                InverseConsistencyWorkspaceBytes(fixed), ResidualProbeWorkspaceBytes(fixed)}));
  const int64_t assess = MaskBytes(input.fixed_mask) + MaskBytes(input.moving_mask) + measure;
  // Within it Register sees images that are through their windows already.
  const int64_t windows = input.fixed->WindowWorkspaceBytes() + input.moving->WindowWorkspaceBytes();
  return std::max({RegistrationWorkspaceBytes(device, input), windows + assess,
                   windows + ProduceFieldWorkspaceBytes(device, fixed)});
}

int64_t RegistrationMemoryBytes(const RegistrationInput& input) {
  return RegistrationMemoryBytes(input.stages, input.fixed->geometry());
}

int64_t RegistrationMemoryBytes(const std::vector<StageOptions>& stages, const Geometry& fixed) {
  int64_t before = 0, most = 0;
  for (const StageOptions& stage : stages) {
    const int64_t result = StageResultBytes(stage, fixed);
    most = std::max(most, before + result);
    before = result;
  }
  return most;
}

absl::StatusOr<Claim> RegistrationClaim(const Device& device, const RegistrationInput& input,
                                        const FieldRequest* field) {
  Claim claim;
  claim.resident_bytes = RegistrationMemoryBytes(input);
  claim.workspace_bytes = RegistrationJobBytes(device, input);
  claim.transforms = 1;
  if (field == nullptr) return claim;
  absl::StatusOr<Geometry> grid = FieldGrid(*field, input.fixed->geometry());
  if (!grid.ok()) return Within("field", grid.status());
  // A control grid is the whole result.
  const bool is_whole = field->form == FieldForm::kControlPoints;
  const int64_t field_bytes = is_whole ? RegistrationResultBytes(input) : FieldBytes(*field, *grid);
  const Amounts stream = FieldStreamAmounts(device, *field, *grid, field_bytes, 0);
  claim.resident_bytes += stream.resident_bytes;
  claim.pinned_bytes += stream.pinned_bytes;
  return claim;
}

absl::StatusOr<RegistrationOutcome> RegisterAndAssess(const ExecContext& ctx, const RegistrationTask& as_it_came,
                                                      JobControl& control, LatencyBreakdown& latency) {
  if (control.cancelled()) return control.CancelStatus();
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage seen_fixed,
                             PreparedImage::ThroughWindow(ctx, *as_it_came.input.fixed));
  INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage seen_moving,
                             PreparedImage::ThroughWindow(ctx, *as_it_came.input.moving));
  RegistrationTask task = as_it_came;
  task.input.fixed = &seen_fixed;
  task.input.moving = &seen_moving;
  RegistrationOutcome outcome;
  INTRAWARP_ASSIGN_OR_RETURN(outcome.reservation, ReserveResult(task, latency));
  const Geometry& fixed = task.input.fixed->geometry();
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<char> memory, LeaseField(task.field, fixed, latency));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<char> coarse, LeaseField(task.coarse_field, fixed, latency));
  INTRAWARP_ASSIGN_OR_RETURN(outcome.result, Optimise(ctx, task, std::move(coarse), control, latency));
  if (control.cancelled()) return control.CancelStatus();
  const bool is_frame = task.scrutiny == Scrutiny::kFrame;
  const auto why = [&control](const absl::Status& status) {
    return !status.ok() && control.cancelled() ? control.CancelStatus() : status;
  };
  const auto judge = [&] { return why(Judge(ctx, task, outcome.result, outcome.quality, latency)); };
  // A deformation may be taken out: before the field is sent.
  if (!is_frame) INTRAWARP_RETURN_IF_ERROR(judge());
  const Transform& transform = outcome.result.transform;
  if (outcome.reservation != nullptr) outcome.reservation->ShrinkResident(transform.resident_bytes());
  if (task.field) INTRAWARP_RETURN_IF_ERROR(SendField(ctx, *task.field, transform, std::move(memory), latency));
  if (control.cancelled()) return control.CancelStatus();
  if (is_frame) INTRAWARP_RETURN_IF_ERROR(judge());
  INTRAWARP_RETURN_IF_ERROR(why(Assess(ctx, task, outcome.result, outcome.quality, latency)));
  return outcome;
}

absl::Status SendField(const ExecContext& ctx, const FieldOutput& output, const Transform& transform,
                       std::shared_ptr<char> memory, LatencyBreakdown& latency) {
  absl::StatusOr<Geometry> grid = FieldGrid(output.request, *transform.domain());
  if (!grid.ok()) return Within("field", grid.status());
  if (output.stream) return output.stream(ctx, transform, *grid);
  absl::StatusOr<FieldAnswer> answer = MakeFieldAnswer(ctx, output.request, transform, *grid);
  if (!answer.ok()) return Within("field", answer.status());
  const int64_t bytes = answer->header.total_bytes();
  if (memory == nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(memory, output.lease(bytes));
  }
  auto stream = std::make_shared<BulkBuffer>(std::move(memory), bytes);
  output.send(answer->header, stream);
  return ProduceField(ctx, transform, *answer, *stream, latency, output.advanced);
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

}  // namespace intrawarp::server
