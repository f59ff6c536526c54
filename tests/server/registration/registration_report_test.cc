// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

v1::Report ReportOf(const RegistrationOutcome& outcome, const RegistrationPlan& plan = {}) {
  return MakeReport("cpu", plan, outcome, LatencyBreakdown());
}

// The causes by their names on the wire, so that a wrong pair shows.
TEST(MakeReport, EveryCauseHasItsOwnName) {
  const std::map<ReviewCause, v1::VerdictCause> causes = {
      {ReviewCause::kWorseThanStart, v1::VERDICT_CAUSE_WORSE_THAN_START},
      {ReviewCause::kFolding, v1::VERDICT_CAUSE_FOLDING},
      {ReviewCause::kLowOverlap, v1::VERDICT_CAUSE_LOW_OVERLAP},
      {ReviewCause::kNotConverged, v1::VERDICT_CAUSE_NOT_CONVERGED},
      {ReviewCause::kImplausibleAffine, v1::VERDICT_CAUSE_IMPLAUSIBLE_AFFINE},
      {ReviewCause::kAmbiguousStart, v1::VERDICT_CAUSE_AMBIGUOUS_START},
      {ReviewCause::kMirrored, v1::VERDICT_CAUSE_MIRRORED},
      {ReviewCause::kErrorAboveLimit, v1::VERDICT_CAUSE_ERROR_ABOVE_LIMIT},
      {ReviewCause::kUnrelatedImages, v1::VERDICT_CAUSE_UNRELATED_IMAGES},
      {ReviewCause::kDeformationRejected, v1::VERDICT_CAUSE_DEFORMATION_REJECTED},
      {ReviewCause::kErrorUnknown, v1::VERDICT_CAUSE_ERROR_UNKNOWN},
      {ReviewCause::kPoseNotObserved, v1::VERDICT_CAUSE_POSE_NOT_OBSERVED},
      {ReviewCause::kSpatiallyUneven, v1::VERDICT_CAUSE_SPATIALLY_UNEVEN},
      {ReviewCause::kBoundAboveLimit, v1::VERDICT_CAUSE_BOUND_ABOVE_LIMIT},
      {ReviewCause::kUnitsDiffer, v1::VERDICT_CAUSE_UNITS_DIFFER},
      {ReviewCause::kNotCorrelated, v1::VERDICT_CAUSE_NOT_CORRELATED},
      {ReviewCause::kPartlyVisible, v1::VERDICT_CAUSE_PARTLY_VISIBLE},
      {ReviewCause::kNoGain, v1::VERDICT_CAUSE_NO_GAIN},
      {ReviewCause::kMissingTissue, v1::VERDICT_CAUSE_MISSING_TISSUE},
      {ReviewCause::kLandmarksMissed, v1::VERDICT_CAUSE_LANDMARKS_MISSED},
      {ReviewCause::kTurned, v1::VERDICT_CAUSE_TURNED}};
  RegistrationOutcome outcome;
  for (const auto& [cause, name] : causes) outcome.quality.review_reasons.push_back({cause});
  const v1::Report report = ReportOf(outcome);
  ASSERT_EQ(report.reasons_size(), static_cast<int>(causes.size()));
  std::set<int> named = {v1::VERDICT_CAUSE_UNSPECIFIED, v1::VERDICT_CAUSE_LATE};
  int at = 0;
  for (const auto& [cause, name] : causes) {
    EXPECT_EQ(report.reasons(at).cause(), name) << v1::VerdictCause_Name(name);
    EXPECT_EQ(report.reasons(at).message(), ReviewText(cause));
    named.insert(report.reasons(at++).cause());
  }
  // AddLateness has the one that is left.
  EXPECT_EQ(static_cast<int>(named.size()), v1::VerdictCause_descriptor()->value_count());
}

TEST(MakeReport, AReasonHasTheNumbersThatItsCauseHas) {
  RegistrationOutcome outcome;
  outcome.quality.review_reasons = {{ReviewCause::kLowOverlap, 0.25, 0.5}, {ReviewCause::kNotConverged}};
  const v1::Report report = ReportOf(outcome);
  EXPECT_EQ(report.verdict(), v1::VERDICT_REVIEW);
  EXPECT_EQ(report.reasons(0).value(), 0.25);
  EXPECT_EQ(report.reasons(0).limit(), 0.5);
  EXPECT_FALSE(report.reasons(1).has_value());
  EXPECT_FALSE(report.reasons(1).has_limit());
}

TEST(MakeReport, AReasonThatIsOnlyToldLeavesTheVerdictOk) {
  RegistrationOutcome outcome;
  EXPECT_EQ(ReportOf(outcome).verdict(), v1::VERDICT_OK);
  outcome.quality.review_reasons.push_back({.cause = ReviewCause::kDeformationRejected, .is_told_only = true});
  const v1::Report told = ReportOf(outcome);
  EXPECT_EQ(told.verdict(), v1::VERDICT_OK);
  EXPECT_EQ(told.reasons_size(), 1);
  outcome.quality.review_reasons.push_back({ReviewCause::kFolding});
  EXPECT_EQ(ReportOf(outcome).verdict(), v1::VERDICT_REVIEW);
}

TEST(MakeReport, EveryStopReasonHasItsOwnName) {
  const std::map<StopReason, v1::StopReason> reasons = {{StopReason::kConverged, v1::STOP_REASON_CONVERGED},
                                                        {StopReason::kIterationLimit, v1::STOP_REASON_ITERATION_LIMIT},
                                                        {StopReason::kBudget, v1::STOP_REASON_BUDGET},
                                                        {StopReason::kNoProgress, v1::STOP_REASON_NO_PROGRESS}};
  ASSERT_EQ(static_cast<int>(reasons.size()) + 1, v1::StopReason_descriptor()->value_count());
  for (const auto& [reason, name] : reasons) {
    RegistrationOutcome outcome;
    outcome.result.stop_reason = reason;
    EXPECT_EQ(ReportOf(outcome).stop_reason(), name);
  }
}

TEST(MakeReport, StagesAreInTheirOrderWithTheirLevelsAndTheOptionsThatTheyHad) {
  RegistrationOutcome outcome;
  StageReport affine;
  affine.options = AffineOptions{.metric = MetricKind::kNgf, .levels = 2};
  affine.stop_reason = StopReason::kConverged;
  affine.levels = {{.size = {8, 9, 10}, .iterations = 3, .value_before = 5, .value_after = 4},
                   {.size = {16, 18, 20}, .iterations = 7, .value_before = 4, .value_after = 1}};
  StageReport search;
  search.options = SearchOptions();
  search.stop_reason = StopReason::kNoProgress;
  outcome.result.stages = {affine, search};
  RegistrationPlan plan;
  plan.asked.add_stages()->mutable_ffd();
  plan.asked.set_fixed_mask("volumes/mask");
  const v1::Report report = ReportOf(outcome, plan);
  ASSERT_EQ(report.stages_size(), 2);
  EXPECT_EQ(report.stages(0).stop_reason(), v1::STOP_REASON_CONVERGED);
  EXPECT_EQ(report.stages(1).stop_reason(), v1::STOP_REASON_NO_PROGRESS);
  ASSERT_EQ(report.stages(0).levels_size(), 2);
  const v1::LevelReport& level = report.stages(0).levels(0);
  EXPECT_THAT(level.size(), ElementsAre(8, 9, 10));
  EXPECT_EQ(level.iterations(), 3);
  EXPECT_EQ(level.value_before(), 5);
  EXPECT_EQ(level.value_after(), 4);
  // The stages that ran stand in the place of the one that was asked for.
  ASSERT_EQ(report.options().stages_size(), 2);
  EXPECT_EQ(report.options().stages(0).affine().metric(), v1::METRIC_NGF);
  EXPECT_TRUE(report.options().stages(1).has_search());
  EXPECT_EQ(report.options().fixed_mask(), "volumes/mask");
}

// 0 and unset differ: nothing slid, and the stage had no `sliding`.
TEST(MakeReport, AStageTellsItsSecondLayer) {
  RegistrationOutcome outcome;
  outcome.result.stages.resize(3);
  outcome.result.stages[1].second_layer_fraction = 0.25;
  outcome.result.stages[2].second_layer_fraction = 0;
  const v1::Report report = ReportOf(outcome);
  EXPECT_FALSE(report.stages(0).has_second_layer_fraction());
  EXPECT_EQ(report.stages(1).second_layer_fraction(), 0.25);
  EXPECT_TRUE(report.stages(2).has_second_layer_fraction());
  EXPECT_EQ(report.stages(2).second_layer_fraction(), 0);
}

TEST(MakeReport, OptionsHaveTheirDefaultsFilledIn) {
  RegistrationPlan plan;
  plan.best_effort = true;
  plan.keep_deformation = true;
  plan.find_missing_tissue = true;
  plan.error_limit_mm = 3;
  plan.landmarks = {{.fixed = {1, 2, 3}, .moving = {4, 5, 6}, .sigma_mm = 2}};
  const v1::RegistrationOptions options = ReportOf(RegistrationOutcome(), plan).options();
  EXPECT_TRUE(options.best_effort());
  EXPECT_TRUE(options.keep_deformation());
  EXPECT_TRUE(options.find_missing_tissue());
  EXPECT_EQ(options.error_limit_mm(), 3);
  ASSERT_EQ(options.landmarks_size(), 1);
  EXPECT_EQ(options.landmarks(0).sigma_mm(), 2);
  const v1::RegistrationOptions defaults = ReportOf(RegistrationOutcome()).options();
  EXPECT_TRUE(defaults.has_best_effort());
  EXPECT_FALSE(defaults.best_effort());
  EXPECT_TRUE(defaults.has_keep_deformation());
  EXPECT_FALSE(defaults.keep_deformation());
  EXPECT_TRUE(defaults.has_error_limit_mm());
}

TEST(MakeReport, ASimilarityThatIsUndefinedIsNotSet) {
  RegistrationOutcome outcome;
  outcome.quality.before = {.mse = 1, .sse = 2, .mae = 3, .ncc = 4, .nmi = 5, .ssim = 6};
  outcome.quality.after.ncc = 0.5;
  const v1::Report report = ReportOf(outcome);
  EXPECT_EQ(report.before().mse(), 1);
  EXPECT_EQ(report.before().sse(), 2);
  EXPECT_EQ(report.before().mae(), 3);
  EXPECT_EQ(report.before().ncc(), 4);
  EXPECT_EQ(report.before().nmi(), 5);
  EXPECT_EQ(report.before().ssim(), 6);
  const v1::Similarity& after = report.after();
  EXPECT_EQ(after.ncc(), 0.5);
  EXPECT_FALSE(after.has_mse() || after.has_sse() || after.has_mae() || after.has_nmi() || after.has_ssim());
  outcome.quality.after = {};
  EXPECT_EQ(ReportOf(outcome).after().ByteSizeLong(), 0) << "without overlap there is none";
}

TEST(MakeReport, EveryFigureOfTheErrorIsInItsPlace) {
  RegistrationOutcome outcome;
  ErrorEstimate& error = outcome.quality.error.emplace();
  error = {.expected_mm = 1, .bound_mm = 2, .bound_p95_mm = 3, .bound_max_mm = 4, .judged_fraction = 5, .agreement = 6};
  error.chance = 7;
  error.reach_mm = 8;
  error.visible_fraction = 9;
  v1::ErrorEstimate got = ReportOf(outcome).error();
  EXPECT_EQ(got.quantile(), kErrorQuantile);
  EXPECT_EQ(got.expected_mm(), 1);
  EXPECT_EQ(got.bound_mm(), 2);
  EXPECT_EQ(got.bound_p95_mm(), 3);
  EXPECT_EQ(got.bound_max_mm(), 4);
  EXPECT_EQ(got.judged_fraction(), 5);
  EXPECT_EQ(got.agreement(), 6);
  EXPECT_EQ(got.chance(), 7);
  EXPECT_EQ(got.reach_mm(), 8);
  EXPECT_EQ(got.visible_fraction(), 9);
  EXPECT_FALSE(got.has_affine_expected_mm() || got.has_affine_agreement() || got.has_deformation_mm() ||
               got.has_worst_region_expected_mm() || got.has_worst_region_agreement() || got.has_rejected_gain());
  error.affine_expected_mm = 10;
  error.affine_agreement = 11;
  error.deformation_mm = 12;
  error.worst_region_expected_mm = 13;
  error.worst_region_agreement = 14;
  outcome.quality.rejected_gain = 15;
  got = ReportOf(outcome).error();
  EXPECT_EQ(got.affine_expected_mm(), 10);
  EXPECT_EQ(got.affine_agreement(), 11);
  EXPECT_EQ(got.deformation_mm(), 12);
  EXPECT_EQ(got.worst_region_expected_mm(), 13);
  EXPECT_EQ(got.worst_region_agreement(), 14);
  EXPECT_EQ(got.rejected_gain(), 15);
}

TEST(MakeReport, AnErrorThatIsUnknownHasNoFigures) {
  RegistrationOutcome outcome;
  outcome.quality.rejected_gain = 1;
  outcome.quality.error_at.resize(2);
  outcome.quality.error_map.emplace();
  const v1::Report report = ReportOf(outcome);
  EXPECT_FALSE(report.has_error());
  EXPECT_FALSE(report.has_error_map());
  EXPECT_EQ(report.error_at_size(), 0);
}

TEST(MakeReport, TheErrorOfPointsAndBlocksIsInTheirOrder) {
  RegistrationOutcome outcome;
  outcome.quality.error.emplace();
  outcome.quality.error_at = {{{.expected_mm = 1, .bound_mm = 2}, 3, false}, {{4, 5}, 6, true}};
  ErrorMap& map = outcome.quality.error_map.emplace();
  map.blocks.size = {3, 1, 1};
  map.expected_mm = {1, std::numeric_limits<float>::quiet_NaN(), 3};
  map.bound_mm = {2, 4, 6};
  const v1::Report report = ReportOf(outcome);
  ASSERT_EQ(report.error_at_size(), 2);
  EXPECT_EQ(report.error_at(0).expected_mm(), 1);
  EXPECT_EQ(report.error_at(0).bound_mm(), 2);
  EXPECT_EQ(report.error_at(0).distance_mm(), 3);
  EXPECT_FALSE(report.error_at(0).no_correspondence());
  EXPECT_TRUE(report.error_at(1).no_correspondence());
  EXPECT_THAT(report.error_map().geometry().size(), ElementsAre(3, 1, 1));
  EXPECT_THAT(report.error_map().bound_mm(), ElementsAre(2, 4, 6));
  EXPECT_EQ(report.error_map().expected_mm(2), 3);
  EXPECT_TRUE(std::isnan(report.error_map().expected_mm(1)));
}

// A bit for each node, the lowest of a byte first.
TEST(MakeReport, MissingTissueIsPackedIntoBits) {
  RegistrationOutcome outcome;
  MissingTissue& missing = outcome.result.missing_tissue.emplace();
  missing.grid.size = {11, 1, 1};
  missing.nodes = {1, 0, 0, 1, 0, 0, 0, 1, 0, 255, 0};
  missing.volume_mm3 = 40;
  missing.fraction = 0.5;
  const v1::MissingTissue got = ReportOf(outcome).missing_tissue();
  EXPECT_EQ(got.nodes(), std::string("\x89\x02"));
  EXPECT_EQ(got.volume_mm3(), 40);
  EXPECT_EQ(got.fraction(), 0.5);
  missing.nodes.clear();
  EXPECT_EQ(ReportOf(outcome).missing_tissue().nodes(), "");
  missing.nodes.assign(8, 1);
  EXPECT_EQ(ReportOf(outcome).missing_tissue().nodes(), "\xff");
}

TEST(MakeReport, StartsHaveTheirKindAndWhatTheKindHas) {
  const std::map<StartKind, v1::StartKind> kinds = {{StartKind::kHeader, v1::START_KIND_HEADER},
                                                    {StartKind::kCenterOfMass, v1::START_KIND_CENTER_OF_MASS},
                                                    {StartKind::kRotation, v1::START_KIND_ROTATION},
                                                    {StartKind::kMirrored, v1::START_KIND_MIRRORED},
                                                    {StartKind::kNearHeader, v1::START_KIND_NEAR_HEADER}};
  ASSERT_EQ(static_cast<int>(kinds.size()) + 1, v1::StartKind_descriptor()->value_count());
  RegistrationOutcome outcome;
  StartReport& starts = outcome.result.starts.emplace();
  for (const auto& [kind, name] : kinds) {
    StartCandidate& candidate = starts.candidates.emplace_back();
    candidate.kind = kind;
    candidate.rotation_deg = 30;
    candidate.offset_mm = 7;
    candidate.score_after = 2;
    candidate.overlap = 0.75;
    candidate.end.m[0][3] = 4;
  }
  starts.candidates[0].score_before = 3;
  const v1::Report report = ReportOf(outcome);
  EXPECT_FALSE(report.has_start_margin());
  int at = 0;
  for (const auto& [kind, name] : kinds) {
    const v1::StartCandidate& start = report.starts(at++);
    EXPECT_EQ(start.kind(), name);
    EXPECT_EQ(start.has_offset_mm(), kind == StartKind::kNearHeader);
    EXPECT_EQ(start.rotation_deg(), 30);
    EXPECT_EQ(start.score_after(), 2);
    EXPECT_EQ(start.overlap(), 0.75);
    EXPECT_EQ(start.end().values(3), 4);
  }
  EXPECT_EQ(report.starts(0).score_before(), 3);
  EXPECT_FALSE(report.starts(1).has_score_before());
  starts.margin = 0.25;
  EXPECT_EQ(ReportOf(outcome).start_margin(), 0.25);
}

TEST(MakeReport, AChoiceTellsItsReasonAndItsTrials) {
  const std::map<ChoiceReason, v1::ChoiceReason> reasons = {
      {ChoiceReason::kLinearIntensities, v1::CHOICE_REASON_LINEAR_INTENSITIES},
      {ChoiceReason::kOtherIntensities, v1::CHOICE_REASON_OTHER_INTENSITIES},
      {ChoiceReason::kPlane, v1::CHOICE_REASON_PLANE},
      {ChoiceReason::kUnknownIntensities, v1::CHOICE_REASON_UNKNOWN_INTENSITIES}};
  ASSERT_EQ(static_cast<int>(reasons.size()) + 1, v1::ChoiceReason_descriptor()->value_count());
  for (const auto& [reason, name] : reasons) {
    RegistrationOutcome outcome;
    Choice& choice = outcome.result.choice.emplace();
    choice.reason = reason;
    choice.affine.resize(2);
    choice.affine[0].metric = MetricKind::kNgf;
    choice.affine[1].metric = MetricKind::kNmi;
    choice.affine[1].has_result = choice.affine[1].is_chosen = true;
    DeformationTrial judged, chosen;
    judged.metric = MetricKind::kLncc;
    judged.bending_weight = 0.5;
    judged.gain = 0.25;
    judged.deformation_mm = 3;
    judged.contradicts = true;
    judged.is_accepted = false;
    judged.is_searched = true;
    chosen.deformation_mm = 3;
    chosen.is_chosen = true;
    choice.deformations = {judged, chosen};
    const v1::Choice got = ReportOf(outcome).choice();
    EXPECT_EQ(got.reason(), name);
    EXPECT_EQ(got.text(), Describe(choice));
    ASSERT_EQ(got.affine_size(), 2);
    EXPECT_EQ(got.affine(0).metric(), v1::METRIC_NGF);
    EXPECT_FALSE(got.affine(0).has_result() || got.affine(0).chosen());
    EXPECT_TRUE(got.affine(1).has_result() && got.affine(1).chosen());
    ASSERT_EQ(got.deformations_size(), 2);
    const v1::DeformationTrial& first = got.deformations(0);
    EXPECT_EQ(first.metric(), v1::METRIC_LNCC);
    EXPECT_EQ(first.bending_weight(), 0.5);
    EXPECT_EQ(first.gain(), 0.25);
    EXPECT_EQ(first.deformation_mm(), 3);
    EXPECT_TRUE(first.contradicts() && first.searched());
    EXPECT_FALSE(first.accepted() || first.chosen());
    const v1::DeformationTrial& second = got.deformations(1);
    EXPECT_FALSE(second.has_gain() || second.has_deformation_mm()) << "it was not judged";
    EXPECT_TRUE(second.accepted() && second.chosen());
  }
}

TEST(MakeReport, WhatWasNotLookedForIsNotSet) {
  const v1::Report report = ReportOf(RegistrationOutcome());
  EXPECT_EQ(report.device(), "cpu");
  EXPECT_FALSE(report.has_choice() || report.has_missing_tissue() || report.has_slice_pose() ||
               report.has_landmarks() || report.has_inverse_consistency() || report.has_error() ||
               report.has_error_map());
  EXPECT_EQ(report.starts_size(), 0);
  EXPECT_EQ(report.affine().values_size(), 16);
}

TEST(MakeReport, ShapeJacobianLandmarksAndPoseAreInTheirPlaces) {
  RegistrationOutcome outcome;
  outcome.quality.overlap = 0.5;
  outcome.quality.affine = {.min_stretch = 0.75, .max_stretch = 1.25, .mirrors = true};
  outcome.quality.jacobian = {.min = -1, .max = 3, .nonpositive_fraction = 0.125};
  outcome.quality.inverse_consistency = {.mean_mm = 1, .max_mm = 2};
  LandmarkFit& fit = outcome.quality.landmarks.emplace();
  fit.distance_mm = {3, 1, 2};
  fit.mean_mm = 2;
  fit.max_mm = 3;
  fit.max_sigmas = 6;
  outcome.result.slice_pose = {.step_mm = 1, .offset_rise = 2, .tilt_rise = 4, .in_plane_rise = 8};
  const v1::Report report = ReportOf(outcome);
  EXPECT_EQ(report.overlap(), 0.5);
  EXPECT_EQ(report.affine_shape().min_stretch(), 0.75);
  EXPECT_EQ(report.affine_shape().max_stretch(), 1.25);
  EXPECT_TRUE(report.affine_shape().mirrors());
  EXPECT_EQ(report.jacobian().min(), -1);
  EXPECT_EQ(report.jacobian().max(), 3);
  EXPECT_EQ(report.jacobian().nonpositive_fraction(), 0.125);
  EXPECT_EQ(report.inverse_consistency().mean_mm(), 1);
  EXPECT_EQ(report.inverse_consistency().max_mm(), 2);
  EXPECT_THAT(report.landmarks().distance_mm(), ElementsAre(3, 1, 2));
  EXPECT_EQ(report.landmarks().mean_mm(), 2);
  EXPECT_EQ(report.landmarks().max_mm(), 3);
  EXPECT_EQ(report.landmarks().max_sigmas(), 6);
  EXPECT_EQ(report.slice_pose().step_mm(), 1);
  EXPECT_EQ(report.slice_pose().offset_rise(), 2);
  EXPECT_EQ(report.slice_pose().tilt_rise(), 4);
  EXPECT_EQ(report.slice_pose().in_plane_rise(), 8);
  EXPECT_EQ(report.slice_pose().observability(), outcome.result.slice_pose->Observability());
}

TEST(AddLateness, MakesTheVerdictReviewAndTellsByHowMuch) {
  v1::Report report = ReportOf(RegistrationOutcome());
  AddLateness(milliseconds(40), std::chrono::microseconds(52500), report);
  EXPECT_EQ(report.verdict(), v1::VERDICT_REVIEW);
  ASSERT_EQ(report.reasons_size(), 1);
  EXPECT_EQ(report.reasons(0).cause(), v1::VERDICT_CAUSE_LATE);
  EXPECT_EQ(report.reasons(0).message(), "late");
  EXPECT_EQ(report.reasons(0).value(), 12.5);
  EXPECT_EQ(report.reasons(0).limit(), 40);
}

TEST(ProgressToProto, EachFieldGoesWhereItBelongs) {
  Progress progress;
  progress.stage = kBeforeStages;
  progress.level = 1;
  progress.levels = 3;
  progress.iteration = 17;
  progress.value = 0.5;
  const v1::Progress to = ProgressToProto(progress);
  EXPECT_EQ(to.stage(), -1);
  EXPECT_EQ(to.level(), 1);
  EXPECT_EQ(to.levels(), 3);
  EXPECT_EQ(to.iteration(), 17);
  EXPECT_EQ(to.value(), 0.5);
}

class FrameRecordTest : public testing::Test {
 protected:
  // How many registrations of the class have the outcome.
  testing::Matcher<std::string> Counts(const std::string& outcome, int count, const std::string& work = "frame") {
    return HasSubstr("intrawarp_registrations_total{class=\"" + work + "\",outcome=\"" + outcome + "\"} " +
                     std::to_string(count) + "\n");
  }

  Registry registry_;
  const RegistrationMetrics metrics_{registry_};
};

TEST_F(FrameRecordTest, WhatNobodyRecordedWasCancelled) {
  { FrameRecord record(metrics_, WorkClass::kFrame); }
  EXPECT_THAT(registry_.Scrape(), Counts("cancelled", 1));
}

TEST_F(FrameRecordTest, OnlyTheFirstRecordCounts) {
  {
    FrameRecord record(metrics_, WorkClass::kRegister);
    record.Failed(absl::InternalError(""));
    record.Failed(absl::DeadlineExceededError(""));
    record.Succeeded(RegistrationOutcome(), LatencyBreakdown());
  }
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, Counts("failed", 1, "register"));
  EXPECT_THAT(text, Counts("deadline_missed", 0, "register"));
  EXPECT_THAT(text, Counts("ok", 0, "register"));
  EXPECT_THAT(text, Counts("cancelled", 0, "register"));
}

TEST_F(FrameRecordTest, ARepetitionIsNotCountedAgain) {
  {
    FrameRecord record(metrics_, WorkClass::kRegister);
    record.Repeated();
  }
  for (const char* outcome : {"ok", "failed", "cancelled"}) {
    EXPECT_THAT(registry_.Scrape(), Counts(outcome, 0, "register"));
  }
}

TEST_F(FrameRecordTest, AnErrorHasTheOutcomeOfItsReasonBeforeThatOfItsCode) {
  const std::vector<std::pair<absl::Status, std::string>> cases = {
      {absl::CancelledError(""), "cancelled"},
      {absl::DeadlineExceededError(""), "deadline_missed"},
      {absl::ResourceExhaustedError(""), "rejected"},
      {absl::InternalError(""), "failed"},
      {absl::InvalidArgumentError(""), "failed"},
      {ExceedsCapacity("pinned_memory", 2, 1), "rejected"},
      {WithReason(absl::DeadlineExceededError(""), v1::DEADLINE_UNREACHABLE), "rejected"},
      {WithReason(absl::CancelledError(""), v1::FRAME_SUPERSEDED), "superseded"}};
  for (const auto& [status, outcome] : cases) {
    Registry registry;
    const RegistrationMetrics metrics(registry);
    FrameRecord(metrics, WorkClass::kFrame).Failed(status);
    EXPECT_THAT(registry.Scrape(), Counts(outcome, 1)) << status;
  }
}

TEST_F(FrameRecordTest, ASuccessTellsWhetherItWasLateHowGoodAndWhyItStopped) {
  RegistrationOutcome outcome;
  FrameRecord(metrics_, WorkClass::kFrame).Succeeded(outcome, LatencyBreakdown());
  outcome.quality.after.ncc = 0.5;
  outcome.result.stop_reason = StopReason::kBudget;
  FrameRecord(metrics_, WorkClass::kFrame).Succeeded(outcome, LatencyBreakdown(), /*late=*/true);
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, Counts("ok", 1));
  EXPECT_THAT(text, Counts("late", 1));
  EXPECT_THAT(text, Counts("cancelled", 0));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_similarity_count 1\n")) << "the first had none";
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"budget\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"iteration_limit\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"no_progress\"} 0\n"));
}

}  // namespace
}  // namespace intrawarp::server
