// SPDX-License-Identifier: Apache-2.0
#include "server/registration/stage_messages.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using google::protobuf::util::MessageDifferencer;

// The metrics that every version has on the wire.
constexpr MetricKind kMetrics[] = {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc};
// No version knows it.
constexpr int kNoSuchValue = 1000;

template <typename Options>
Options Get(const v1::Stage& from) {
  const absl::StatusOr<StageOptions> stage = StageFromProto(from);
  EXPECT_TRUE(stage.ok()) << stage.status();
  EXPECT_TRUE(std::holds_alternative<Options>(*stage));
  return std::get<Options>(*stage);
}

void ExpectUnimplemented(const v1::Stage& from, const std::string& field) {
  const absl::Status status = StageFromProto(from).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_EQ(FieldOf(status), field);
}

// The stage comes back as it was sent, with every field.
void ExpectComesBack(const v1::Stage& sent) {
  const absl::StatusOr<StageOptions> stage = StageFromProto(sent);
  ASSERT_TRUE(stage.ok()) << stage.status();
  const v1::Stage back = StageToProto(*stage);
  EXPECT_TRUE(MessageDifferencer::Equals(back, sent)) << back.DebugString() << "instead of\n" << sent.DebugString();
}

v1::Stage WholeFfd() {
  v1::Stage stage;
  v1::FfdStage& ffd = *stage.mutable_ffd();
  ffd.set_metric(v1::METRIC_LNCC);
  ffd.set_levels(3);
  ffd.set_iterations(70);
  ffd.set_spacing_vox(4.5);
  ffd.set_bending_weight(0.25);
  ffd.set_elasticity_weight(0.5);
  ffd.set_jacobian_weight(0.75);
  ffd.set_total_variation_weight(0.125);
  ffd.set_optimizer(v1::OPTIMIZER_CONJUGATE_GRADIENT);
  ffd.set_sliding(true);
  return stage;
}

v1::Stage WholeLogDemons() {
  v1::Stage stage;
  v1::LogDemonsStage& demons = *stage.mutable_log_demons();
  demons.set_metric(v1::METRIC_SSD);
  demons.set_levels(2);
  demons.set_iterations(30);
  demons.set_fluid_sigma(1.5);
  demons.set_diffusion_sigma(0.5);
  demons.set_max_step(3);
  demons.set_weak_gradient(0.25);
  demons.set_velocity_update(v1::VELOCITY_UPDATE_BCH);
  demons.set_symmetric(true);
  demons.set_match_intensities(false);
  demons.set_velocity_grid(v1::VELOCITY_GRID_HALF);
  demons.set_finest_iterations(11);
  return stage;
}

TEST(StageMessages, EveryFieldOfEveryMethodComesBack) {
  v1::Stage rigid, affine, search;
  rigid.mutable_rigid()->set_metric(v1::METRIC_NMI);
  rigid.mutable_rigid()->set_levels(2);
  rigid.mutable_rigid()->set_iterations(20);
  affine.mutable_affine()->set_metric(v1::METRIC_NGF);
  affine.mutable_affine()->set_levels(4);
  affine.mutable_affine()->set_iterations(40);
  search.mutable_search()->set_node_mm(6);
  search.mutable_search()->set_range_mm(30);
  for (const v1::Stage& stage : {rigid, affine, WholeFfd(), WholeLogDemons(), search}) {
    // A field that is new in the message is missing in this test, if not in the code.
    const google::protobuf::Message& method =
        stage.GetReflection()->GetMessage(stage, v1::Stage::descriptor()->FindFieldByNumber(stage.method_case()));
    const google::protobuf::Descriptor& type = *method.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      EXPECT_TRUE(method.GetReflection()->HasField(method, type.field(i))) << type.field(i)->full_name();
    }
    ExpectComesBack(stage);
  }
}

TEST(StageMessages, EachFieldOfAnFfdGoesWhereItBelongs) {
  const FfdOptions options = Get<FfdOptions>(WholeFfd());
  EXPECT_EQ(options.metric, MetricKind::kLncc);
  EXPECT_EQ(options.levels, 3);
  EXPECT_EQ(options.iterations, 70);
  EXPECT_EQ(options.spacing_vox, 4.5);
  EXPECT_EQ(options.bending_weight, 0.25);
  EXPECT_EQ(options.elasticity_weight, 0.5);
  EXPECT_EQ(options.jacobian_weight, 0.75);
  EXPECT_EQ(options.total_variation_weight, 0.125);
  EXPECT_EQ(options.optimizer, DescentMethod::kConjugateGradient);
  EXPECT_TRUE(options.sliding);
}

TEST(StageMessages, EachFieldOfLogDemonsGoesWhereItBelongs) {
  const LogDemonsOptions options = Get<LogDemonsOptions>(WholeLogDemons());
  EXPECT_EQ(options.levels, 2);
  EXPECT_EQ(options.iterations, 30);
  EXPECT_EQ(options.fluid_sigma, 1.5);
  EXPECT_EQ(options.diffusion_sigma, 0.5);
  EXPECT_EQ(options.max_step, 3);
  EXPECT_EQ(options.weak_gradient, 0.25);
  EXPECT_EQ(options.update, VelocityUpdate::kBch);
  EXPECT_TRUE(options.symmetric);
  EXPECT_EQ(options.match_intensities, false);
  EXPECT_EQ(options.velocity_grid, VelocityGrid::kHalf);
  EXPECT_EQ(options.finest_iterations, 11);
  v1::Stage full = WholeLogDemons();
  full.mutable_log_demons()->set_velocity_grid(v1::VELOCITY_GRID_FULL);
  EXPECT_EQ(Get<LogDemonsOptions>(full).velocity_grid, VelocityGrid::kFull);
  ExpectComesBack(full);
}

TEST(StageMessages, WhatIsNotSetIsLeftToTheMethod) {
  v1::Stage stage;
  stage.mutable_rigid();
  const auto rigid = Get<RigidOptions>(stage);
  EXPECT_FALSE(rigid.metric || rigid.levels || rigid.iterations);
  stage.mutable_affine();
  const auto affine = Get<AffineOptions>(stage);
  EXPECT_FALSE(affine.metric || affine.levels || affine.iterations);
  stage.mutable_ffd();
  const auto ffd = Get<FfdOptions>(stage);
  EXPECT_FALSE(ffd.metric || ffd.levels || ffd.iterations || ffd.spacing_vox || ffd.bending_weight ||
               ffd.elasticity_weight || ffd.jacobian_weight || ffd.total_variation_weight);
  EXPECT_EQ(ffd.optimizer, DescentMethod::kLbfgs);
  EXPECT_FALSE(ffd.sliding);
  stage.mutable_log_demons();
  const auto demons = Get<LogDemonsOptions>(stage);
  EXPECT_FALSE(demons.levels || demons.iterations || demons.fluid_sigma || demons.diffusion_sigma || demons.max_step ||
               demons.weak_gradient || demons.match_intensities.has_value() || demons.velocity_grid ||
               demons.finest_iterations);
  EXPECT_EQ(demons.update, VelocityUpdate::kCompose);
  EXPECT_FALSE(demons.symmetric);
  stage.mutable_search();
  const auto search = Get<SearchOptions>(stage);
  EXPECT_FALSE(search.node_mm || search.range_mm);
}

// A zero that was asked for is not a field that is not set.
TEST(StageMessages, AZeroIsSet) {
  v1::Stage stage;
  stage.mutable_ffd()->set_bending_weight(0);
  EXPECT_EQ(Get<FfdOptions>(stage).bending_weight, 0);
  stage.mutable_log_demons()->set_fluid_sigma(0);
  EXPECT_EQ(Get<LogDemonsOptions>(stage).fluid_sigma, 0);
  stage.mutable_rigid()->set_levels(0);
  EXPECT_EQ(Get<RigidOptions>(stage).levels, 0) << "the range is for others to check";
}

TEST(StageMessages, EveryMetricComesBackFromEveryMethodThatTakesIt) {
  for (const MetricKind metric : kMetrics) {
    const v1::Metric value = MetricToProto(metric);
    EXPECT_NE(value, v1::METRIC_UNSPECIFIED);
    v1::Stage stage;
    stage.mutable_rigid()->set_metric(value);
    EXPECT_EQ(Get<RigidOptions>(stage).metric, metric);
    stage.mutable_affine()->set_metric(value);
    EXPECT_EQ(Get<AffineOptions>(stage).metric, metric);
    stage.mutable_ffd()->set_metric(value);
    EXPECT_EQ(Get<FfdOptions>(stage).metric, metric);
  }
}

TEST(StageMessages, TheMetricsOfTheWireAreThoseOfTheEngineByName) {
  EXPECT_EQ(MetricToProto(MetricKind::kSsd), v1::METRIC_SSD);
  EXPECT_EQ(MetricToProto(MetricKind::kNgf), v1::METRIC_NGF);
  EXPECT_EQ(MetricToProto(MetricKind::kNmi), v1::METRIC_NMI);
  EXPECT_EQ(MetricToProto(MetricKind::kLncc), v1::METRIC_LNCC);
}

TEST(StageMessages, EveryOptimizerAndUpdateComesBack) {
  for (const v1::Optimizer optimizer : {v1::OPTIMIZER_LBFGS, v1::OPTIMIZER_CONJUGATE_GRADIENT}) {
    v1::Stage stage = WholeFfd();
    stage.mutable_ffd()->set_optimizer(optimizer);
    ExpectComesBack(stage);
  }
  for (const v1::VelocityUpdate update :
       {v1::VELOCITY_UPDATE_ADD, v1::VELOCITY_UPDATE_COMPOSE, v1::VELOCITY_UPDATE_BCH}) {
    v1::Stage stage = WholeLogDemons();
    stage.mutable_log_demons()->set_velocity_update(update);
    ExpectComesBack(stage);
  }
}

TEST(StageMessages, LogDemonsTakesSsdAndNoOtherMetric) {
  v1::Stage stage;
  stage.mutable_log_demons()->set_metric(v1::METRIC_SSD);
  Get<LogDemonsOptions>(stage);
  for (const v1::Metric metric : {v1::METRIC_NGF, v1::METRIC_NMI, v1::METRIC_LNCC}) {
    stage.mutable_log_demons()->set_metric(metric);
    ExpectUnimplemented(stage, "log_demons.metric");
  }
}

TEST(StageMessages, ValuesOfAnotherVersionAreNotGuessed) {
  for (const int value : {kNoSuchValue, -1}) {
    const auto metric = static_cast<v1::Metric>(value);
    v1::Stage stage;
    stage.mutable_rigid()->set_metric(metric);
    ExpectUnimplemented(stage, "rigid.metric");
    stage.mutable_affine()->set_metric(metric);
    ExpectUnimplemented(stage, "affine.metric");
    stage.mutable_ffd()->set_metric(metric);
    ExpectUnimplemented(stage, "ffd.metric");
    stage.mutable_ffd()->set_metric(v1::METRIC_NMI);
    stage.mutable_ffd()->set_optimizer(static_cast<v1::Optimizer>(value));
    ExpectUnimplemented(stage, "ffd.optimizer");
    stage.mutable_log_demons()->set_metric(metric);
    ExpectUnimplemented(stage, "log_demons.metric");
    stage.mutable_log_demons()->set_metric(v1::METRIC_UNSPECIFIED);
    stage.mutable_log_demons()->set_velocity_update(static_cast<v1::VelocityUpdate>(value));
    ExpectUnimplemented(stage, "log_demons.velocity_update");
  }
}

TEST(StageMessages, AStageWithoutAMethodIsRefused) {
  const absl::Status status = StageFromProto(v1::Stage()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(status), "method");
}

}  // namespace
}  // namespace intrawarp::server
