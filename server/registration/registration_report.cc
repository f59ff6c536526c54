// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_report.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/registration/stage/stage.h"
#include "server/base/wire.h"
#include "server/job/job_support.h"
#include "server/registration/stage_messages.h"
#include "server/status/errors.h"
#include "server/transform/transform_messages.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

v1::StopReason ToProto(StopReason reason) {
  switch (reason) {
    case StopReason::kConverged:
      return v1::STOP_REASON_CONVERGED;
    case StopReason::kIterationLimit:
      return v1::STOP_REASON_ITERATION_LIMIT;
    case StopReason::kBudget:
      return v1::STOP_REASON_BUDGET;
    case StopReason::kNoProgress:
      return v1::STOP_REASON_NO_PROGRESS;
  }
  return v1::STOP_REASON_UNSPECIFIED;
}

v1::StageReport ToProto(const StageReport& from) {
  v1::StageReport to;
  to.set_stop_reason(ToProto(from.stop_reason));
  for (const LevelReport& level : from.levels) {
    v1::LevelReport* report = to.add_levels();
    for (int a = 0; a < 3; ++a) report->add_size(level.size[a]);
    report->set_iterations(level.iterations);
    report->set_value_before(level.value_before);
    report->set_value_after(level.value_after);
  }
  if (from.second_layer_fraction) to.set_second_layer_fraction(*from.second_layer_fraction);
  return to;
}

v1::Similarity ToProto(const Similarity& from) {
  v1::Similarity to;
  if (from.mse) to.set_mse(*from.mse);
  if (from.sse) to.set_sse(*from.sse);
  if (from.mae) to.set_mae(*from.mae);
  if (from.ncc) to.set_ncc(*from.ncc);
  if (from.nmi) to.set_nmi(*from.nmi);
  if (from.ssim) to.set_ssim(*from.ssim);
  return to;
}

v1::VerdictCause ToProto(ReviewCause cause) {
  switch (cause) {
    case ReviewCause::kWorseThanStart:
      return v1::VERDICT_CAUSE_WORSE_THAN_START;
    case ReviewCause::kFolding:
      return v1::VERDICT_CAUSE_FOLDING;
    case ReviewCause::kLowOverlap:
      return v1::VERDICT_CAUSE_LOW_OVERLAP;
    case ReviewCause::kNotConverged:
      return v1::VERDICT_CAUSE_NOT_CONVERGED;
    case ReviewCause::kImplausibleAffine:
      return v1::VERDICT_CAUSE_IMPLAUSIBLE_AFFINE;
    case ReviewCause::kAmbiguousStart:
      return v1::VERDICT_CAUSE_AMBIGUOUS_START;
    case ReviewCause::kMirrored:
      return v1::VERDICT_CAUSE_MIRRORED;
    case ReviewCause::kErrorAboveLimit:
      return v1::VERDICT_CAUSE_ERROR_ABOVE_LIMIT;
    case ReviewCause::kUnrelatedImages:
      return v1::VERDICT_CAUSE_UNRELATED_IMAGES;
    case ReviewCause::kDeformationRejected:
      return v1::VERDICT_CAUSE_DEFORMATION_REJECTED;
    case ReviewCause::kErrorUnknown:
      return v1::VERDICT_CAUSE_ERROR_UNKNOWN;
    case ReviewCause::kPoseNotObserved:
      return v1::VERDICT_CAUSE_POSE_NOT_OBSERVED;
    case ReviewCause::kSpatiallyUneven:
      return v1::VERDICT_CAUSE_SPATIALLY_UNEVEN;
    case ReviewCause::kBoundAboveLimit:
      return v1::VERDICT_CAUSE_BOUND_ABOVE_LIMIT;
    case ReviewCause::kUnitsDiffer:
      return v1::VERDICT_CAUSE_UNITS_DIFFER;
    case ReviewCause::kNotCorrelated:
      return v1::VERDICT_CAUSE_NOT_CORRELATED;
    case ReviewCause::kPartlyVisible:
      return v1::VERDICT_CAUSE_PARTLY_VISIBLE;
    case ReviewCause::kNoGain:
      return v1::VERDICT_CAUSE_NO_GAIN;
    case ReviewCause::kMissingTissue:
      return v1::VERDICT_CAUSE_MISSING_TISSUE;
    case ReviewCause::kLandmarksMissed:
      return v1::VERDICT_CAUSE_LANDMARKS_MISSED;
    case ReviewCause::kTurned:
      return v1::VERDICT_CAUSE_TURNED;
  }
  return v1::VERDICT_CAUSE_UNSPECIFIED;
}

v1::VerdictReason ToProto(const ReviewReason& from) {
  v1::VerdictReason to;
  to.set_cause(ToProto(from.cause));
  to.set_message(ReviewText(from.cause));
  if (from.value) to.set_value(*from.value);
  if (from.limit) to.set_limit(*from.limit);
  return to;
}

v1::ErrorEstimate ToProto(const ErrorEstimate& from) {
  v1::ErrorEstimate to;
  to.set_quantile(kErrorQuantile);
  to.set_expected_mm(from.expected_mm);
  to.set_bound_mm(from.bound_mm);
  to.set_bound_p95_mm(from.bound_p95_mm);
  to.set_bound_max_mm(from.bound_max_mm);
  to.set_judged_fraction(from.judged_fraction);
  to.set_agreement(from.agreement);
  to.set_chance(from.chance);
  if (from.affine_expected_mm) to.set_affine_expected_mm(*from.affine_expected_mm);
  if (from.affine_agreement) to.set_affine_agreement(*from.affine_agreement);
  if (from.deformation_mm) to.set_deformation_mm(*from.deformation_mm);
  to.set_reach_mm(from.reach_mm);
  if (from.worst_region_expected_mm) to.set_worst_region_expected_mm(*from.worst_region_expected_mm);
  if (from.worst_region_agreement) to.set_worst_region_agreement(*from.worst_region_agreement);
  to.set_visible_fraction(from.visible_fraction);
  return to;
}

v1::ErrorMap ToProto(const ErrorMap& from) {
  v1::ErrorMap to;
  *to.mutable_geometry() = GeometryToProto(from.blocks);
  to.mutable_expected_mm()->Add(from.expected_mm.begin(), from.expected_mm.end());
  to.mutable_bound_mm()->Add(from.bound_mm.begin(), from.bound_mm.end());
  return to;
}

// The figures of an estimate, if there is one.
void AddError(const QualityReport& from, v1::Report* to) {
  if (!from.error) return;
  *to->mutable_error() = ToProto(*from.error);
  if (from.rejected_gain) to->mutable_error()->set_rejected_gain(*from.rejected_gain);
  if (from.error_map) *to->mutable_error_map() = ToProto(*from.error_map);
  for (const PointError& error : from.error_at) {
    v1::PointError* at = to->add_error_at();
    at->set_expected_mm(error.error.expected_mm);
    at->set_bound_mm(error.error.bound_mm);
    at->set_distance_mm(error.distance_mm);
    at->set_no_correspondence(error.is_missing);
  }
}

v1::LandmarkFit ToProto(const LandmarkFit& from) {
  v1::LandmarkFit to;
  for (const double distance : from.distance_mm) to.add_distance_mm(distance);
  to.set_mean_mm(from.mean_mm);
  to.set_max_mm(from.max_mm);
  to.set_max_sigmas(from.max_sigmas);
  return to;
}

void AddQuality(const QualityReport& from, v1::Report* to) {
  *to->mutable_before() = ToProto(from.before);
  *to->mutable_after() = ToProto(from.after);
  to->set_overlap(from.overlap);
  to->mutable_affine_shape()->set_min_stretch(from.affine.min_stretch);
  to->mutable_affine_shape()->set_max_stretch(from.affine.max_stretch);
  to->mutable_affine_shape()->set_mirrors(from.affine.mirrors);
  to->mutable_jacobian()->set_min(from.jacobian.min);
  to->mutable_jacobian()->set_max(from.jacobian.max);
  to->mutable_jacobian()->set_nonpositive_fraction(from.jacobian.nonpositive_fraction);
  if (from.inverse_consistency) {
    to->mutable_inverse_consistency()->set_mean_mm(from.inverse_consistency->mean_mm);
    to->mutable_inverse_consistency()->set_max_mm(from.inverse_consistency->max_mm);
  }
  AddError(from, to);
  to->set_verdict(NeedsReview(from.review_reasons) ? v1::VERDICT_REVIEW : v1::VERDICT_OK);
  if (from.landmarks) *to->mutable_landmarks() = ToProto(*from.landmarks);
  for (const ReviewReason& reason : from.review_reasons) *to->add_reasons() = ToProto(reason);
}

v1::MissingTissue ToProto(const MissingTissue& from) {
  v1::MissingTissue to;
  *to.mutable_geometry() = GeometryToProto(from.grid);
  std::string bits((from.nodes.size() + 7) / 8, '\0');
  for (size_t i = 0; i < from.nodes.size(); ++i) {
    if (from.nodes[i] != 0) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  }
  to.set_nodes(std::move(bits));
  to.set_volume_mm3(from.volume_mm3);
  to.set_fraction(from.fraction);
  return to;
}

v1::StartKind ToProto(StartKind kind) {
  switch (kind) {
    case StartKind::kHeader:
      return v1::START_KIND_HEADER;
    case StartKind::kCenterOfMass:
      return v1::START_KIND_CENTER_OF_MASS;
    case StartKind::kRotation:
      return v1::START_KIND_ROTATION;
    case StartKind::kMirrored:
      return v1::START_KIND_MIRRORED;
    case StartKind::kNearHeader:
      return v1::START_KIND_NEAR_HEADER;
  }
  return v1::START_KIND_UNSPECIFIED;
}

void AddStarts(const StartReport& from, v1::Report* to) {
  for (const StartCandidate& candidate : from.candidates) {
    v1::StartCandidate* start = to->add_starts();
    start->set_kind(ToProto(candidate.kind));
    start->set_rotation_deg(candidate.rotation_deg);
    if (candidate.kind == StartKind::kNearHeader) start->set_offset_mm(candidate.offset_mm);
    if (candidate.score_before) start->set_score_before(*candidate.score_before);
    start->set_score_after(candidate.score_after);
    start->set_overlap(candidate.overlap);
    *start->mutable_end() = AffineMapToProto(candidate.end);
  }
  if (from.margin) to->set_start_margin(*from.margin);
}

void AddSlicePose(const SlicePose& from, v1::Report* to) {
  v1::SlicePose* pose = to->mutable_slice_pose();
  pose->set_step_mm(from.step_mm);
  pose->set_offset_rise(from.offset_rise);
  pose->set_tilt_rise(from.tilt_rise);
  pose->set_in_plane_rise(from.in_plane_rise);
  pose->set_observability(from.Observability());
}

v1::ChoiceReason ToProto(ChoiceReason reason) {
  switch (reason) {
    case ChoiceReason::kLinearIntensities:
      return v1::CHOICE_REASON_LINEAR_INTENSITIES;
    case ChoiceReason::kOtherIntensities:
      return v1::CHOICE_REASON_OTHER_INTENSITIES;
    case ChoiceReason::kPlane:
      return v1::CHOICE_REASON_PLANE;
    case ChoiceReason::kUnknownIntensities:
      return v1::CHOICE_REASON_UNKNOWN_INTENSITIES;
  }
  return v1::CHOICE_REASON_UNSPECIFIED;
}

v1::AffineTrial ToProto(const AffineTrial& from) {
  v1::AffineTrial to;
  to.set_metric(MetricToProto(from.metric));
  to.set_has_result(from.has_result);
  if (from.error) *to.mutable_error() = ToProto(*from.error);
  to.set_chosen(from.is_chosen);
  return to;
}

v1::DeformationTrial ToProto(const DeformationTrial& from) {
  v1::DeformationTrial to;
  to.set_metric(MetricToProto(from.metric));
  to.set_bending_weight(from.bending_weight);
  if (from.error) *to.mutable_error() = ToProto(*from.error);
  if (from.gain) {
    to.set_gain(*from.gain);
    to.set_deformation_mm(from.deformation_mm);
  }
  to.set_contradicts(from.contradicts);
  to.set_accepted(from.is_accepted);
  to.set_chosen(from.is_chosen);
  to.set_searched(from.is_searched);
  to.set_refined(from.is_refinement);
  return to;
}

v1::Choice ToProto(const Choice& from) {
  v1::Choice to;
  to.set_text(Describe(from));
  for (const AffineTrial& trial : from.affine) *to.add_affine() = ToProto(trial);
  if (from.intensities) {
    to.set_correlation(from.intensities->correlation);
    to.set_correlation_ratio(from.intensities->correlation_ratio);
  }
  to.set_reason(ToProto(from.reason));
  for (const DeformationTrial& trial : from.deformations) *to.add_deformations() = ToProto(trial);
  return to;
}

FrameOutcome OutcomeOf(const absl::Status& status) {
  const v1::ErrorReason reason = ReasonOf(status);
  if (reason == v1::EXCEEDS_CAPACITY || reason == v1::DEADLINE_UNREACHABLE) return FrameOutcome::kRejected;
  if (reason == v1::FRAME_SUPERSEDED) return FrameOutcome::kSuperseded;
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return FrameOutcome::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return FrameOutcome::kDeadlineMissed;
    case absl::StatusCode::kResourceExhausted:
      return FrameOutcome::kRejected;
    default:
      return FrameOutcome::kFailed;
  }
}

void CountStop(StopReason reason, const RegistrationMetrics& metrics) {
  switch (reason) {
    case StopReason::kConverged:
      return;
    case StopReason::kIterationLimit:
      return metrics.CountNonconverged(Nonconvergence::kIterationLimit);
    case StopReason::kBudget:
      return metrics.CountNonconverged(Nonconvergence::kBudget);
    case StopReason::kNoProgress:
      return metrics.CountNonconverged(Nonconvergence::kNoProgress);
  }
}

v1::RegistrationOptions ResolvedOptions(const RegistrationPlan& plan, const std::vector<StageReport>& stages) {
  v1::RegistrationOptions resolved = plan.asked;
  resolved.set_best_effort(plan.best_effort);
  resolved.set_keep_deformation(plan.keep_deformation);
  resolved.set_find_missing_tissue(plan.find_missing_tissue);
  SetLandmarks(plan.landmarks, resolved);
  resolved.set_error_limit_mm(plan.error_limit_mm);
  resolved.clear_stages();
  for (const StageReport& stage : stages) *resolved.add_stages() = StageToProto(stage.options);
  return resolved;
}

}  // namespace

v1::Report MakeReport(const std::string& device, const RegistrationPlan& plan, const RegistrationOutcome& outcome,
                      const LatencyBreakdown& latency) {
  v1::Report report;
  report.set_device(device);
  *report.mutable_options() = ResolvedOptions(plan, outcome.result.stages);
  report.set_stop_reason(ToProto(outcome.result.stop_reason));
  for (const StageReport& stage : outcome.result.stages) *report.add_stages() = ToProto(stage);
  *report.mutable_affine() = AffineMapToProto(outcome.result.transform.affine());
  AddQuality(outcome.quality, &report);
  if (outcome.result.choice) *report.mutable_choice() = ToProto(*outcome.result.choice);
  if (outcome.result.starts) AddStarts(*outcome.result.starts, &report);
  if (outcome.result.missing_tissue) *report.mutable_missing_tissue() = ToProto(*outcome.result.missing_tissue);
  if (outcome.result.slice_pose) AddSlicePose(*outcome.result.slice_pose, &report);
  *report.mutable_latency() = LatencyToProto(latency);
  return report;
}

void AddLateness(std::chrono::nanoseconds limit, std::chrono::nanoseconds total, v1::Report& report) {
  const auto ms = [](std::chrono::nanoseconds time) { return std::chrono::duration<double, std::milli>(time).count(); };
  report.set_verdict(v1::VERDICT_REVIEW);
  v1::VerdictReason& reason = *report.add_reasons();
  reason.set_cause(v1::VERDICT_CAUSE_LATE);
  reason.set_message("late");
  reason.set_value(ms(total - limit));
  reason.set_limit(ms(limit));
}

absl::StatusOr<std::shared_ptr<const StoredTransform>> StoreResult(ServerContext& context, ResultIdentity identity,
                                                                   const RegistrationOutcome& outcome,
                                                                   const v1::Report& report, ObjectOrigin origin) {
  auto stored = std::make_shared<StoredTransform>(StoredTransform{std::move(identity.id), context.seams.system_now(),
                                                                  report, outcome.reservation, outcome.result.transform,
                                                                  identity.expiry, std::move(identity.request)});
  stored->owner = std::move(identity.owner);
  if (origin.payload == nullptr) {
    INTRAWARP_RETURN_IF_ERROR(context.transforms.Insert(stored));
    return stored;
  }
  origin.description = TransformToProto(*stored, /*with_report=*/true).SerializeAsString();
  INTRAWARP_RETURN_IF_ERROR(context.durable.Insert(context.transforms, stored, origin));
  return stored;
}

v1::Progress ProgressToProto(const Progress& progress) {
  v1::Progress to;
  to.set_stage(progress.stage);
  to.set_level(progress.level);
  to.set_levels(progress.levels);
  to.set_iteration(progress.iteration);
  to.set_value(progress.value);
  return to;
}

FrameRecord::~FrameRecord() { Failed(absl::CancelledError("")); }

void FrameRecord::Failed(const absl::Status& status) {
  if (std::exchange(recorded_, true)) return;
  metrics_.FrameDone(work_, OutcomeOf(status), LatencyBreakdown());
}

void FrameRecord::Succeeded(const RegistrationOutcome& outcome, const LatencyBreakdown& latency, bool late) {
  if (std::exchange(recorded_, true)) return;
  metrics_.FrameDone(work_, late ? FrameOutcome::kLate : FrameOutcome::kOk, latency);
  if (outcome.quality.after.ncc) metrics_.ObserveSimilarity(*outcome.quality.after.ncc);
  CountStop(outcome.result.stop_reason, metrics_);
}

}  // namespace intrawarp::server
