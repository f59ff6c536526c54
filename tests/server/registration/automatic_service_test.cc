// SPDX-License-Identifier: Apache-2.0
// Register without stages: the server chooses, and says what and why.
#include "tests/server/deformed_pair.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;

class AutomaticServiceTest : public DeformedPairTest {
 protected:
  static v1::RegisterRequest Request() {
    v1::RegisterRequest request;
    request.set_fixed("volumes/fixed");
    request.set_moving("volumes/moving");
    return request;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(AutomaticServiceTest);

TEST_P(AutomaticServiceTest, SaysWhatItChose) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  const RegisterAnswer answer = Register(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_TRUE(answer.field.has_value());
  const v1::Report& report = answer.result->report();
  ASSERT_EQ(report.options().stages_size(), 2);
  ASSERT_EQ(report.stages_size(), 2);
  ASSERT_TRUE(report.options().stages(0).has_affine());
  ASSERT_TRUE(report.options().stages(1).has_ffd());
  ASSERT_TRUE(report.has_choice());
  const v1::Choice& choice = report.choice();
  EXPECT_THAT(choice.text(), HasSubstr("affine stage"));
  EXPECT_NE(choice.reason(), v1::CHOICE_REASON_UNSPECIFIED);
  EXPECT_TRUE(choice.has_correlation() && choice.has_correlation_ratio());
  int affine = 0, deformations = 0;
  for (const v1::AffineTrial& trial : choice.affine()) {
    EXPECT_TRUE(trial.has_result());
    if (!trial.chosen()) continue;
    ++affine;
    EXPECT_EQ(trial.metric(), report.options().stages(0).affine().metric());
  }
  for (const v1::DeformationTrial& trial : choice.deformations()) {
    if (!trial.chosen()) continue;
    ++deformations;
    EXPECT_EQ(trial.metric(), report.options().stages(1).ffd().metric());
    EXPECT_EQ(trial.bending_weight(), report.options().stages(1).ffd().bending_weight());
  }
  EXPECT_EQ(affine, 1);
  EXPECT_EQ(deformations, 1);
  EXPECT_GT(report.after().ncc(), report.before().ncc());
  EXPECT_GT(report.starts_size(), 0);
  EXPECT_EQ(report.verdict(), report.reasons().empty() ? v1::VERDICT_OK : v1::VERDICT_REVIEW);
}

TEST_P(AutomaticServiceTest, ANamedStageIsNoChoice) {
  PutPair();
  const RegisterAnswer answer = Register(AffineThen(StageKind::kFfd));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_FALSE(answer.result->report().has_choice());
}

TEST_P(AutomaticServiceTest, TakesAStartMasksAndABudget) {
  PutPair();
  PutVolume("mask", FixedGrid(), std::vector<float>(FixedGrid().voxels(), 1.0f));
  v1::RegisterRequest request = Request();
  *request.mutable_options()->mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
  request.mutable_options()->set_fixed_mask("volumes/mask");
  request.mutable_options()->mutable_budget()->set_seconds(600);
  const RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.result->report().starts_size(), 0);
  EXPECT_EQ(answer.result->report().options().fixed_mask(), "volumes/mask");

  request.mutable_options()->clear_budget();
  request.mutable_options()->mutable_budget()->set_nanos(1);
  EXPECT_EQ(Register(request).status.error_code(), grpc::DEADLINE_EXCEEDED);
  request.mutable_options()->set_best_effort(true);
  const RegisterAnswer cut = Register(request);
  ASSERT_TRUE(cut.status.ok()) << cut.status.error_message();
  EXPECT_EQ(cut.result->report().stop_reason(), v1::STOP_REASON_BUDGET);
  EXPECT_TRUE(cut.result->report().has_choice());
}

// The chosen ffd stage goes on from whatever a named one goes on from.
TEST_P(AutomaticServiceTest, GoesOnFromAControlGridAlone) {
  PutPair();
  const RegisterAnswer ffd = Register(AffineThen(StageKind::kFfd));
  ASSERT_TRUE(ffd.status.ok()) << ffd.status.error_message();
  v1::RegisterRequest request = Request();
  request.mutable_options()->set_initial_transform(ffd.result->transform());
  const RegisterAnswer again = Register(request);
  EXPECT_TRUE(again.status.ok()) << again.status.error_message();
  const RegisterAnswer demons = Register(AffineThen(StageKind::kLogDemons));
  ASSERT_TRUE(demons.status.ok()) << demons.status.error_message();
  request.mutable_options()->set_initial_transform(demons.result->transform());
  ExpectRegisterError(request, grpc::UNIMPLEMENTED, "initial_transform", "options.initial_transform");
  request.mutable_options()->clear_initial_transform();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_VELOCITY);
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, "log_demons", "field.encoding");
}

}  // namespace
}  // namespace intrawarp::server
