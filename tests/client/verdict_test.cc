// SPDX-License-Identifier: Apache-2.0
#include "client/cli/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/protobuf/text_format.h"

namespace intrawarp::cli {
namespace {

using ::testing::HasSubstr;

v1::Report Parse(const std::string& text) {
  v1::Report report;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &report));
  return report;
}

TEST(VerdictTest, AnOkVerdictTellsTheExpectedError) {
  const v1::Report report = Parse(R"pb(verdict: VERDICT_OK
                                       error { expected_mm: 0.5625 bound_mm: 1.875 }
                                       options { error_limit_mm: 5 })pb");
  EXPECT_TRUE(IsOk(report));
  EXPECT_EQ(VerdictLine(report), "verdict: ok; expected error 0.562 mm, bound 1.88 mm, limit 5 mm");
}

TEST(VerdictTest, EachReasonHasItsNumbersAndUnits) {
  const v1::Report report = Parse(
      R"pb(verdict: VERDICT_REVIEW
           error { expected_mm: 7.125 bound_mm: 9 agreement: 0.01 chance: 0.08 }
           options { error_limit_mm: 5 }
           reasons { cause: VERDICT_CAUSE_UNRELATED_IMAGES message: "unrelated images" value: 0.01 limit: 0.104 }
           reasons { cause: VERDICT_CAUSE_ERROR_ABOVE_LIMIT message: "error above the limit" value: 7.125 limit: 5 }
           reasons { cause: VERDICT_CAUSE_LATE message: "late" value: 12 limit: 150 }
           reasons { cause: VERDICT_CAUSE_NOT_CONVERGED message: "not converged" })pb");
  EXPECT_FALSE(IsOk(report));
  EXPECT_EQ(
      VerdictLine(report),
      "verdict: review: unrelated images (agreement 0.01, chance 0.08, limit 0.104); error above the limit "
      "(expected 7.12 mm, limit 5 mm); late (late by 12 ms, allowed 150 ms); not converged; expected error 7.12 mm, "
      "bound 9 mm, limit 5 mm");
}

// An undone deformation is told whatever the verdict.
TEST(VerdictTest, AReasonBesideOkIsTold) {
  const v1::Report report =
      Parse(
          R"pb(verdict: VERDICT_OK
               reasons {
                 cause: VERDICT_CAUSE_DEFORMATION_REJECTED
                 message: "deformation rejected"
                 value: 0.125
                 limit: 0.5
               })pb");
  EXPECT_TRUE(IsOk(report));
  EXPECT_EQ(VerdictLine(report),
            "verdict: ok: deformation rejected (gained part of its way 0.125, needed 0.5); expected error unknown");
}

// Two causes judge one of two numbers, and the name says which.
TEST(VerdictTest, TheNumberSaysWhatItIs) {
  const std::string error =
      "error { agreement: 0.75 chance: 0.25 affine_agreement: 0.125 worst_region_expected_mm: 8 "
      "worst_region_agreement: 0.25 } ";
  const auto text = [&](const std::string& reason) {
    const v1::Report report = Parse(error + "reasons { " + reason + " }");
    return ReasonText(report.reasons(0), report);
  };
  EXPECT_THAT(text("cause: VERDICT_CAUSE_UNRELATED_IMAGES value: 0.75"), HasSubstr("(agreement 0.75, chance 0.25"));
  EXPECT_THAT(text("cause: VERDICT_CAUSE_UNRELATED_IMAGES value: 0.125"),
              HasSubstr("(agreement of the affine part 0.125, chance 0.25"));
  EXPECT_THAT(text("cause: VERDICT_CAUSE_SPATIALLY_UNEVEN value: 8 limit: 5"),
              HasSubstr("(expected in the worst region 8 mm, limit 5 mm)"));
  EXPECT_THAT(text("cause: VERDICT_CAUSE_SPATIALLY_UNEVEN value: 0.25 limit: 0.5"),
              HasSubstr("(agreement of the worst region 0.25, limit 0.5)"));
}

TEST(VerdictTest, WhetherAnythingSlidIsTold) {
  EXPECT_EQ(SlidingText(Parse("stages { stop_reason: STOP_REASON_CONVERGED }")), "");
  EXPECT_EQ(SlidingText(Parse("stages { } stages { second_layer_fraction: 0.3125 }")),
            "two layers; the second one has 31.2 % of the voxels");
  EXPECT_EQ(SlidingText(Parse("stages { second_layer_fraction: 0.3125 } stages { second_layer_fraction: 0 }")),
            "one layer; ffd without --sliding has the same result");
}

// Every cause of the proto has a word, and every one that comes without a message is still told.
TEST(VerdictTest, EveryCauseHasAWord) {
  const google::protobuf::EnumDescriptor& causes = *v1::VerdictCause_descriptor();
  for (int i = 1; i < causes.value_count(); ++i) {
    v1::Report report;
    v1::VerdictReason& reason = *report.add_reasons();
    reason.set_cause(static_cast<v1::VerdictCause>(causes.value(i)->number()));
    reason.set_value(0.5);
    EXPECT_NE(CauseWord(reason.cause()), "") << causes.value(i)->name();
    EXPECT_THAT(ReasonTexts(report)[0], testing::StartsWith(CauseWord(reason.cause()) + " ("));
    EXPECT_THAT(ReasonTexts(report)[0], HasSubstr(" 0.5"));
  }
}

TEST(VerdictTest, NoVerdictIsNotOk) {
  EXPECT_FALSE(IsOk({}));
  EXPECT_EQ(VerdictLine({}), "verdict: unknown; expected error unknown");
}

}  // namespace
}  // namespace intrawarp::cli
