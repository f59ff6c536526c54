// SPDX-License-Identifier: Apache-2.0
// The rules of the automatic registration on made-up numbers, on either side of every limit.
#include "engine/registration/choose/automatic_rules.h"

#include <cmath>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace intrawarp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ErrorEstimate Estimate(double expected_mm, double agreement = 0.5) {
  ErrorEstimate estimate;
  estimate.expected_mm = expected_mm;
  estimate.agreement = agreement;
  return estimate;
}

IntensityRelation Relation(double correlation, double correlation_ratio) {
  return {correlation, correlation_ratio, 1000};
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

// Among trials of one fate the one that is ahead leads, and an accepted one leads before a rejected one. Among rejected
// ones, which the affine part replaces, the last stays.
TEST(AutomaticRulesTest, TheBestDeformationLeads) {
  const auto trial = [](double expected_mm, bool is_accepted) {
    DeformationTrial made;
    made.error = Estimate(expected_mm);
    made.is_accepted = is_accepted;
    return made;
  };
  for (const bool keeps : {false, true}) {
    EXPECT_TRUE(TakesTheLead(trial(1, true), trial(2, true), keeps));
    EXPECT_FALSE(TakesTheLead(trial(2, true), trial(1, true), keeps));
    EXPECT_TRUE(TakesTheLead(trial(9, true), trial(1, false), keeps));
    EXPECT_FALSE(TakesTheLead(trial(1, false), trial(9, true), keeps));
    EXPECT_TRUE(TakesTheLead(trial(1, false), trial(2, false), keeps));
  }
  EXPECT_TRUE(TakesTheLead(trial(2, false), trial(1, false), false));
  EXPECT_FALSE(TakesTheLead(trial(2, false), trial(1, false), true));
}

TEST(AutomaticRulesTest, ASearchFollowsWhereTheAffineResultDoesNotAgreeAndADeformationLeavesMuch) {
  const auto first = [](double expected_mm, bool is_accepted = true) {
    DeformationTrial made;
    made.error = Estimate(expected_mm);
    made.is_accepted = is_accepted;
    return made;
  };
  EXPECT_TRUE(TakesSearch(Estimate(10, 0.89), first(1.01)));
  EXPECT_FALSE(TakesSearch(Estimate(10, 0.89), first(0.99)));
  EXPECT_FALSE(TakesSearch(Estimate(10, 0.91), first(1.01)));
  EXPECT_FALSE(TakesSearch(Estimate(10, 0.89), first(1.01, false)));
  EXPECT_FALSE(TakesSearch(Estimate(10, 0.89), DeformationTrial()));
  EXPECT_FALSE(TakesSearch(std::nullopt, first(1.01)));
}

TEST(AutomaticRulesTest, ASearchLeadsWhereItIsFarAheadAndGainsNearlyAsMuchOfItsWay) {
  const auto trial = [](double expected_mm, double gain, bool is_accepted = true) {
    DeformationTrial made;
    made.error = Estimate(expected_mm);
    made.gain = gain;
    made.is_accepted = is_accepted;
    return made;
  };
  EXPECT_TRUE(SearchLeads(trial(1.4, 1.2), trial(2, 1.2)));
  EXPECT_FALSE(SearchLeads(trial(1.8, 1.3), trial(2, 1.2)));
  EXPECT_TRUE(SearchLeads(trial(1, 1.1), trial(2, 1.2)));
  EXPECT_FALSE(SearchLeads(trial(1, 1.0), trial(2, 1.2)));
  EXPECT_FALSE(SearchLeads(trial(1, 1.3, false), trial(2, 1.2)));
  // Nobody judged it.
  EXPECT_FALSE(SearchLeads(DeformationTrial(), trial(2, 1.2)));
}

TEST(AutomaticRulesTest, ARefinementLeadsUnlessTheOtherIsClearlyBetter) {
  const auto trial = [](double expected_mm, bool is_accepted = true) {
    DeformationTrial made;
    made.error = Estimate(expected_mm);
    made.is_accepted = is_accepted;
    return made;
  };
  EXPECT_TRUE(RefinementLeads(trial(2), trial(2.1)));
  EXPECT_TRUE(RefinementLeads(trial(2.1), trial(2.02)));
  EXPECT_FALSE(RefinementLeads(trial(2.2), trial(2)));
  EXPECT_FALSE(RefinementLeads(trial(1, false), trial(2)));
  EXPECT_FALSE(RefinementLeads(DeformationTrial(), trial(2)));
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
