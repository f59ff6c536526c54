// SPDX-License-Identifier: Apache-2.0
// The rules of the automatic registration on made-up numbers, on either side of every limit.
#include "engine/registration/automatic_rules.h"

#include <cmath>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace intrawarp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNodeMm = 4;
constexpr BoundedMoves kWithinBounds{1000, 50}, kBeyondBounds{1000, 80};

ErrorEstimate Estimate(double expected_mm, double agreement = 0.5) {
  ErrorEstimate estimate;
  estimate.expected_mm = expected_mm;
  estimate.agreement = agreement;
  return estimate;
}

IntensityRelation Relation(double correlation, double correlation_ratio) {
  return {correlation, correlation_ratio, 1000};
}

DeformationTrial Moved(double deformation_mm, std::optional<ErrorEstimate> error) {
  DeformationTrial trial;
  trial.deformation_mm = deformation_mm;
  trial.error = error;
  return trial;
}

TEST(AutomaticRulesTest, NgfNeedsGradients) {
  const Geometry volume{.size = {9, 8, 7}}, plane{.size = {9, 8, 1}}, thin{.size = {9, 2, 7}}, strip{.size = {2, 9, 1}};
  EXPECT_THAT(AffineMetrics(volume), ElementsAre(MetricKind::kNgf, MetricKind::kNmi));
  EXPECT_THAT(AffineMetrics(plane), ElementsAre(MetricKind::kNgf, MetricKind::kNmi, MetricKind::kSsd));
  EXPECT_THAT(AffineMetrics(thin), ElementsAre(MetricKind::kNmi));
  EXPECT_THAT(AffineMetrics(strip), ElementsAre(MetricKind::kNmi, MetricKind::kSsd));
  EXPECT_EQ(SearchMetric(volume), MetricKind::kNgf);
  EXPECT_EQ(SearchMetric(thin), MetricKind::kSsd);
}

TEST(AutomaticRulesTest, ALineIsToldByItsLinearity) {
  const Geometry volume{.size = {9, 8, 7}}, plane{.size = {9, 8, 1}};
  // r^2 / eta^2 is 0.94 and 0.92.
  const IntensityRelation rising = Relation(0.5, 0.25 / 0.94), falling = Relation(-0.5, 0.25 / 0.94);
  const IntensityRelation bent = Relation(0.5, 0.25 / 0.92);
  EXPECT_TRUE(IsOnALine(rising));
  EXPECT_TRUE(IsOnALine(falling));
  EXPECT_FALSE(IsOnALine(bent));
  EXPECT_FALSE(IsOnALine(std::nullopt));
  EXPECT_EQ(ReasonFor(volume, rising), ChoiceReason::kLinearIntensities);
  EXPECT_EQ(ReasonFor(volume, falling), ChoiceReason::kOtherIntensities);
  EXPECT_EQ(ReasonFor(volume, bent), ChoiceReason::kOtherIntensities);
  EXPECT_EQ(ReasonFor(volume, std::nullopt), ChoiceReason::kUnknownIntensities);
  EXPECT_EQ(ReasonFor(plane, rising), ChoiceReason::kPlane);
}

TEST(AutomaticRulesTest, ALineThatFitsLeavesNothingButScatter) {
  // Departures from the line of 0.24 and 0.26 times the scatter, both of linearity 0.99.
  const IntensityRelation fits = Relation(std::sqrt(0.95 - 0.24 * 0.05), 0.95);
  const IntensityRelation departs = Relation(std::sqrt(0.95 - 0.26 * 0.05), 0.95);
  EXPECT_TRUE(FitsALine(fits));
  EXPECT_TRUE(IsOnALine(departs));
  EXPECT_FALSE(FitsALine(departs));
  // Scatter that hides the departure does not make a line.
  EXPECT_FALSE(FitsALine(Relation(0.5, 0.25 / 0.92)));
  EXPECT_FALSE(FitsALine(std::nullopt));
}

TEST(AutomaticRulesTest, AheadIsClearlySmaller) {
  EXPECT_TRUE(IsAhead(Estimate(0.94), Estimate(1)));
  EXPECT_FALSE(IsAhead(Estimate(0.96), Estimate(1)));
  EXPECT_TRUE(IsAhead(Estimate(9), std::nullopt));
  EXPECT_FALSE(IsAhead(std::nullopt, Estimate(9)));
  EXPECT_FALSE(IsAhead(std::nullopt, std::nullopt));
}

TEST(AutomaticRulesTest, AMeanOfMapsIsTheirMatricesMean) {
  AffineMap a = AffineMap::Identity(), b = AffineMap::Identity(), c = AffineMap::Identity();
  a.m[0][0] = 1.3;
  b.m[2][3] = -6;
  c.m[1][0] = 0.9;
  const AffineMap mean = MeanOf({a, b, c});
  EXPECT_DOUBLE_EQ(mean.m[0][0], 1.1);
  EXPECT_DOUBLE_EQ(mean.m[2][3], -2);
  EXPECT_DOUBLE_EQ(mean.m[1][0], 0.3);
  EXPECT_DOUBLE_EQ(mean.m[2][2], 1);
  EXPECT_DOUBLE_EQ(mean.m[0][1], 0);
}

// 5 mm of way that take 2.6 and 2.4 mm off the error: gains of 0.52 and 0.48.
TEST(AutomaticRulesTest, ADeformationHasToGain) {
  const AffineEvidence affine{Estimate(4), /*fits_a_line=*/true, kNodeMm};
  const DeformationTrial worth = Judged(Moved(5, Estimate(1.4)), kWithinBounds, affine),
                         vain = Judged(Moved(5, Estimate(1.6)), kWithinBounds, affine);
  EXPECT_NEAR(*worth.gain, 0.52, 1e-12);
  EXPECT_TRUE(worth.is_accepted);
  EXPECT_NEAR(*vain.gain, 0.48, 1e-12);
  EXPECT_FALSE(vain.is_accepted);
  EXPECT_FALSE(vain.contradicts);
  // A way of less than half a node does little harm.
  EXPECT_TRUE(Judged(Moved(1.9, Estimate(4.5)), kWithinBounds, affine).is_accepted);
}

// The limits are an agreement of 0.9 and a way of 0.8 nodes, 3.2 mm.
TEST(AutomaticRulesTest, ADeformationMayNotContradictAnAffineResultThatAgrees) {
  const auto judged = [](double deformation_mm, double agreement, bool fits_a_line) {
    return Judged(Moved(deformation_mm, Estimate(1)), kWithinBounds, {Estimate(9, agreement), fits_a_line, kNodeMm});
  };
  const DeformationTrial contradiction = judged(3.3, 0.91, false);
  EXPECT_TRUE(contradiction.contradicts);
  EXPECT_FALSE(contradiction.is_accepted);
  EXPECT_GT(*contradiction.gain, 1);
  for (const DeformationTrial& trial : {judged(3.1, 0.91, false), judged(3.3, 0.89, false), judged(3.3, 0.91, true)}) {
    EXPECT_FALSE(trial.contradicts);
    EXPECT_TRUE(trial.is_accepted);
  }
}

TEST(AutomaticRulesTest, ADeformationMayNotLeaveTheBoundsOfTheAffineErrors) {
  for (const double agreement : {0.3, 0.95}) {
    const AffineEvidence affine{Estimate(9, agreement), true, kNodeMm};
    const DeformationTrial beyond = Judged(Moved(6, Estimate(1)), kBeyondBounds, affine);
    EXPECT_TRUE(beyond.contradicts);
    EXPECT_FALSE(beyond.is_accepted);
    EXPECT_GT(*beyond.gain, 1);
    EXPECT_TRUE(Judged(Moved(6, Estimate(1)), kWithinBounds, affine).is_accepted);
  }
}

// A deformation can make any two images alike: its own estimate alone judges nothing.
TEST(AutomaticRulesTest, WithoutBothEstimatesThereIsNoJudgement) {
  for (const DeformationTrial& trial :
       {Judged(Moved(9, Estimate(1)), kWithinBounds, {std::nullopt, false, kNodeMm}),
        Judged(Moved(9, std::nullopt), kWithinBounds, {Estimate(1, 0.95), false, kNodeMm})}) {
    EXPECT_FALSE(trial.gain.has_value());
    EXPECT_TRUE(trial.is_accepted);
    EXPECT_FALSE(trial.contradicts);
  }
}

TEST(AutomaticRulesTest, StrongBendingFollowsWhereTheAffineResultDoesNotAgree) {
  EXPECT_TRUE(TakesStrongBending(Estimate(1, 0.89)));
  EXPECT_FALSE(TakesStrongBending(Estimate(1, 0.91)));
  EXPECT_FALSE(TakesStrongBending(std::nullopt));
}

TEST(AutomaticRulesTest, ATrialWithoutAResultIsDescribed) {
  Choice choice;
  choice.affine.push_back({MetricKind::kNgf, std::nullopt, true, true});
  choice.deformations.resize(2);
  choice.deformations[1].metric = MetricKind::kLncc;
  choice.deformations[1].has_result = choice.deformations[1].is_accepted = false;
  EXPECT_THAT(Describe(choice), HasSubstr("The deformation of nmi with bending weight 0 could not be judged."));
  EXPECT_THAT(Describe(choice), HasSubstr("The deformation of lncc with bending weight 0 has no result."));
}

}  // namespace
}  // namespace intrawarp
