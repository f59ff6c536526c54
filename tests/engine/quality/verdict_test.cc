// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/verdict.h"

#include <cmath>
#include <vector>

#include "engine/quality/deformation_gate.h"
#include "tests/engine/quality/quality_fixture.h"

namespace intrawarp::quality_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// --- Verdict ---

std::vector<ReviewCause> Causes(const QualityReport& report, bool worse_than_start, bool converged) {
  const Ending ending = converged ? Ending::kConverged : Ending::kUnfinished;
  std::vector<ReviewCause> causes;
  for (const ReviewReason& reason : ReviewReasons(report, worse_than_start, ending)) causes.push_back(reason.cause);
  return causes;
}

TEST(ReviewReasonsTest, AStartWithoutAMarginAndMirroredImages) {
  QualityReport report;
  report.overlap = 1;
  report.start_margin = kLeastStartMargin;
  report.mirror_lead = kMostMirrorLead;
  EXPECT_THAT(Causes(report, false, true), ElementsAre());
  report.start_margin = 0.09;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  report.error = ErrorEstimate{.expected_mm = 1, .bound_mm = 6, .agreement = kCertainAgreement, .reach_mm = 6};
  EXPECT_THAT(Causes(report, false, true), IsEmpty());
  report.error->agreement = 0.7;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  // Blocks that agree, and would agree elsewhere as well.
  report.error->agreement = 1;
  report.error->bound_mm = 6.1;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  // Blocks that a deformation made agree say nothing about its start; its affine part does.
  report.error->bound_mm = 2;
  report.is_deformed = true;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  report.error->affine_agreement = 0.7;
  report.error->affine_bound_mm = 2;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  report.error->affine_agreement = kCertainAgreement;
  EXPECT_THAT(Causes(report, false, true), IsEmpty());
  report.error->affine_bound_mm = 6.1;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  report.error.reset();
  report.mirror_lead = 0.03;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_EQ(reasons[0].value, 0.09);
  EXPECT_EQ(reasons[0].limit, kLeastStartMargin);
  EXPECT_EQ(reasons[1].cause, ReviewCause::kMirrored);
  EXPECT_EQ(reasons[1].value, 0.03);
  EXPECT_EQ(reasons[1].limit, kMostMirrorLead);
  EXPECT_STREQ(ReviewText(ReviewCause::kAmbiguousStart), "ambiguous start");
  EXPECT_STREQ(ReviewText(ReviewCause::kMirrored), "mirrored images");
}

TEST(ReviewReasonsTest, SaysWhyAPersonShouldLook) {
  QualityReport report;
  report.overlap = 0.9;
  EXPECT_THAT(Causes(report, false, true), IsEmpty());
  report.overlap = kLowOverlap;
  EXPECT_THAT(Causes(report, false, true), IsEmpty());
  report.overlap = 0.39;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kLowOverlap));
  report.overlap = NAN;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kLowOverlap));
  report.overlap = 1;
  EXPECT_THAT(Causes(report, true, true), ElementsAre(ReviewCause::kWorseThanStart));
  EXPECT_THAT(Causes(report, false, false), ElementsAre(ReviewCause::kNotConverged));
  report.jacobian.nonpositive_fraction = 1e-6;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kFolding));
  report.overlap = 0;
  EXPECT_THAT(Causes(report, true, false), ElementsAre(ReviewCause::kWorseThanStart, ReviewCause::kFolding,
                                                       ReviewCause::kLowOverlap, ReviewCause::kNotConverged));
}

// A map with stated stretches between two rotations.
AffineMap Stretch(Vec3d stretches, bool mirrored) {
  const auto rotation = [](double angle, int axis) {
    AffineMap r = AffineMap::Identity();
    const int a = (axis + 1) % 3, b = (axis + 2) % 3;
    r.m[a][a] = r.m[b][b] = std::cos(angle);
    r.m[a][b] = -std::sin(angle);
    r.m[b][a] = std::sin(angle);
    return r;
  };
  AffineMap scale = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) scale.m[a][a] = stretches[a];
  if (mirrored) scale.m[1][1] *= -1;
  const AffineMap before = Compose(rotation(0.7, 0), rotation(-1.9, 1));
  AffineMap after = Compose(rotation(2.4, 2), rotation(0.3, 1));
  after.m[0][3] = 300;
  return Compose(after, Compose(scale, before));
}

TEST(AffineShapeTest, StretchesAreTheSingularValues) {
  for (const Vec3d expected : {Vec3d{1, 1, 1}, Vec3d{0.01, 1, 1.5}, Vec3d{0.2, 0.5, 3}, Vec3d{0.9, 0.9, 40}}) {
    for (const bool mirrored : {false, true}) {
      const AffineShape shape = ShapeOf(Stretch(expected, mirrored));
      EXPECT_NEAR(shape.min_stretch, expected.x, 1e-7 * (1 + expected.z));
      EXPECT_NEAR(shape.max_stretch, expected.z, 1e-7 * (1 + expected.z));
      EXPECT_EQ(shape.mirrors, mirrored && expected.x > 0);
    }
  }
}

TEST(ReviewReasonsTest, AnAffineMapThatNoBodyNeedsIsForAPersonToSee) {
  QualityReport report;
  report.overlap = 1;
  AffineMap map = AffineMap::Identity();
  const auto judge = [&](double scale) {
    map.m[1][1] = scale;
    report.affine = ShapeOf(map);
    return ReviewReasons(report, false, Ending::kConverged);
  };
  EXPECT_THAT(judge(kLeastStretch), IsEmpty());
  EXPECT_THAT(judge(kMostStretch), IsEmpty());
  for (const double scale : {0.01, 0.49, 2.01, -1.0, 0.0}) {
    const std::vector<ReviewReason> reasons = judge(scale);
    ASSERT_EQ(reasons.size(), 1u) << scale;
    EXPECT_EQ(reasons[0].cause, ReviewCause::kImplausibleAffine);
    EXPECT_STREQ(ReviewText(reasons[0].cause), "implausible affine map");
  }
  EXPECT_NEAR(*judge(0.01)[0].value, 0.01, 1e-12);
  EXPECT_EQ(judge(0.01)[0].limit, kLeastStretch);
  EXPECT_EQ(judge(3)[0].limit, kMostStretch);
  EXPECT_EQ(judge(-1)[0].value, -1.0);
}

TEST(ReviewReasonsTest, SaysWhatItJudgedByWhat) {
  QualityReport report;
  report.overlap = 0.25;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, true, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_FALSE(reasons[0].value || reasons[0].limit);
  EXPECT_EQ(reasons[1].value, 0.25);
  EXPECT_EQ(reasons[1].limit, kLowOverlap);
  EXPECT_STREQ(ReviewText(reasons[1].cause), "low overlap");
}

QualityReport WithError(double expected_mm, double agreement) {
  QualityReport report;
  report.overlap = 1;
  report.error = ErrorEstimate{.expected_mm = expected_mm, .agreement = agreement, .chance = 0.1};
  return report;
}

TEST(ReviewReasonsTest, AnErrorAboveItsLimitIsForAPersonToSee) {
  EXPECT_THAT(ReviewReasons(WithError(5, 1), false, Ending::kConverged), IsEmpty());
  const std::vector<ReviewReason> reasons = ReviewReasons(WithError(5.1, 1), false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kErrorAboveLimit);
  EXPECT_EQ(reasons[0].value, 5.1);
  EXPECT_EQ(reasons[0].limit, kDefaultErrorLimitMm);
  EXPECT_THAT(ReviewReasons(WithError(5.1, 1), false, Ending::kConverged, 6), IsEmpty());
  EXPECT_EQ(ReviewReasons(WithError(NAN, 1), false, Ending::kConverged).size(), 1u);
}

// A probe of 40^3 voxels of 0.4 mm searches 1.2 mm: no error that it could see would be above 5 mm.
TEST(ReviewReasonsTest, AnErrorIsHeldAgainstTheReachOfItsJudge) {
  QualityReport report = WithError(0.6, 1);
  report.error->reach_mm = 1.2;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->expected_mm = 0.61;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kErrorAboveLimit);
  EXPECT_EQ(reasons[0].value, 0.61);
  EXPECT_NEAR(*reasons[0].limit, 0.6, 1e-12);
  // A reach beyond the limit changes nothing.
  report = WithError(5.1, 1);
  report.error->reach_mm = 12;
  EXPECT_EQ(ReviewReasons(report, false, Ending::kConverged).at(0).limit, kDefaultErrorLimitMm);
}

TEST(ReviewReasonsTest, FewerClearMatchesThanFixAMapAreForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.error->clear_matches = 4;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->clear_matches = 3.9;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kErrorUnknown);
  EXPECT_EQ(reasons[0].value, 3.9);
  EXPECT_EQ(reasons[0].limit, 4);
  report.error->fixing_points = 3;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
}

TEST(ReviewReasonsTest, ABoundFarAboveTheLimitIsForAPersonToSee) {
  QualityReport report = WithError(4.9, 1);
  report.error->bound_mm = 40;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->bound_mm = 44.8;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kBoundAboveLimit);
  EXPECT_EQ(reasons[0].value, 44.8);
  EXPECT_EQ(reasons[0].limit, 40);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "bound above the limit");
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged, 6), IsEmpty());
}

TEST(ReviewReasonsTest, ARegionThatMatchesByChanceIsForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.error->reach_mm = 9;
  report.error->worst_region_expected_mm = 9;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->worst_region_expected_mm = 9.5;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kSpatiallyUneven);
  EXPECT_EQ(reasons[0].value, 9.5);
  EXPECT_EQ(reasons[0].limit, 9);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "spatially uneven");
}

TEST(ReviewReasonsTest, ADeformationOfWhatIsNotSeenIsForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.error->visible_fraction = 0.6;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.is_deformed = true;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kPartlyVisible);
  EXPECT_EQ(reasons[0].value, 0.6);
  EXPECT_EQ(reasons[0].limit, kLeastVisible);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "partly visible");
  report.error->visible_fraction = kLeastVisible;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
}

TEST(ReviewReasonsTest, UnitsThatDifferAreForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.extent_ratio = kMostExtentRatio;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.extent_ratio = 1000;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kUnitsDiffer);
  EXPECT_EQ(reasons[0].value, 1000);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "units differ");
}

TEST(ReviewReasonsTest, ImagesThatAreNotCorrelatedAreForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.is_probed = true;
  report.after.ncc = -0.9;
  // Right for metrics of unlike intensities.
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.takes_like_intensities = true;
  for (const double ncc : {-0.9, 0.0, 0.09}) {
    report.after.ncc = ncc;
    const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
    ASSERT_EQ(reasons.size(), 1u) << ncc;
    EXPECT_EQ(reasons[0].cause, ReviewCause::kNotCorrelated);
    EXPECT_EQ(reasons[0].value, ncc);
    EXPECT_STREQ(ReviewText(reasons[0].cause), "not correlated");
  }
  report.after.ncc = kLeastCorrelation;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  // Undefined: one of the images is constant there.
  report.takes_like_intensities = false;
  report.after.ncc.reset();
  EXPECT_EQ(ReviewReasons(report, false, Ending::kConverged).at(0).cause, ReviewCause::kNotCorrelated);
}

TEST(ReviewReasonsTest, AgreementByChanceIsForAPersonToSee) {
  EXPECT_THAT(ReviewReasons(WithError(1, 0.14), false, Ending::kConverged), IsEmpty());
  const std::vector<ReviewReason> reasons = ReviewReasons(WithError(1, 0.12), false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kUnrelatedImages);
  EXPECT_EQ(reasons[0].value, 0.12);
  EXPECT_NEAR(*reasons[0].limit, 0.13, 1e-12);
  // If each of 9 independent blocks agrees by chance 0.1, two standard deviations more are 0.1 + 2 * 0.1.
  QualityReport few = WithError(1, 0.29);
  few.error->independent_blocks = 9;
  EXPECT_NEAR(*ReviewReasons(few, false, Ending::kConverged).at(0).limit, 0.3, 1e-12);
  few.error->agreement = 0.31;
  EXPECT_THAT(ReviewReasons(few, false, Ending::kConverged), IsEmpty());
}

TEST(ReviewReasonsTest, OutOfIterationsIsNoReasonWhereTheErrorIsSmall) {
  EXPECT_THAT(ReviewReasons(WithError(1, 1), false, Ending::kUnfinished), IsEmpty());
  EXPECT_EQ(ReviewReasons(WithError(1, 1), false, Ending::kCutShort)[0].cause, ReviewCause::kNotConverged);
  EXPECT_EQ(ReviewReasons(WithError(9, 1), false, Ending::kUnfinished).back().cause, ReviewCause::kNotConverged);
  // An estimate that is doubted excuses nothing.
  QualityReport doubted = WithError(1, 1);
  doubted.error->clear_matches = 1;
  EXPECT_EQ(ReviewReasons(doubted, false, Ending::kUnfinished).back().cause, ReviewCause::kNotConverged);
}

TEST(ReviewReasonsTest, ADeformationThatBeganAtNothingInCommonIsForAPersonToSee) {
  QualityReport report = WithError(1, 0.9);
  report.error->bound_mm = 7;
  report.error->reach_mm = 6;
  report.error->affine_agreement = 0.14;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->affine_agreement = 0.09;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kUnrelatedImages);
  EXPECT_EQ(reasons[0].value, 0.09);
  EXPECT_NEAR(*reasons[0].limit, 0.13, 1e-12);
  // Matches that are clear at the end are not an accident.
  report.error->bound_mm = 6;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
}

TEST(ReviewReasonsTest, ADeformationThatWasRejectedIsForAPersonToSeeUnlessTheAffinePartStandsByItself) {
  QualityReport report = WithError(1, kCertainAgreement);
  report.rejected_gain = -0.5;
  // The reason is told in any case.
  const auto expect = [&](bool needs_review) {
    const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
    ASSERT_FALSE(reasons.empty());
    EXPECT_EQ(reasons[0].cause, ReviewCause::kDeformationRejected);
    EXPECT_EQ(reasons[0].value, -0.5);
    EXPECT_EQ(reasons[0].limit, kLeastGain);
    EXPECT_EQ(reasons[0].is_told_only, !needs_review);
    EXPECT_EQ(NeedsReview(reasons), needs_review);
  };
  expect(false);
  report.error->agreement = 0.79;
  expect(true);
  report.error->agreement = 1;
  report.error->clear_matches = 12;
  expect(false);
  report.error->clear_matches = 11;
  expect(true);
  report.error->clear_matches = 100;
  report.error->expected_mm = 5.1;
  expect(true);
}

TEST(ReviewReasonsTest, ARejectedDeformationThatIsKeptIsForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  EXPECT_FALSE(NeedsReview(ReviewReasons(report, false, Ending::kConverged)));
  report.rejected_gain = 0.1;
  report.keeps_rejected = true;
  EXPECT_TRUE(NeedsReview(ReviewReasons(report, false, Ending::kConverged)));
  EXPECT_EQ(ReviewReasons(report, false, Ending::kConverged).size(), 1u);
  // No better than the affine part, and kept.
  report.rejected_gain = 0.0;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_EQ(reasons[1].cause, ReviewCause::kNoGain);
  EXPECT_EQ(reasons[1].value, 0);
  EXPECT_EQ(reasons[1].limit, 0);
}

TEST(ReviewReasonsTest, AnErrorThatCannotBeEstimatedIsForAPersonToSee) {
  QualityReport report;
  report.overlap = 1;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.is_probed = true;
  report.after.ncc = 1;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kErrorUnknown);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "error unknown");
}

}  // namespace
}  // namespace intrawarp::quality_test
