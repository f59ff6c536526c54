// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/method.h"

#include <gtest/gtest.h>

#include <variant>

#include "engine/base/field_error.h"

namespace intrawarp {
namespace {

const Geometry kGrid{.size = {40, 36, 32}};

TEST(RegistrationMethods, EveryAlternativeHasItsWholeTable) {
  ASSERT_EQ(Methods().size(), std::variant_size_v<StageOptions>);
  for (size_t i = 0; i < Methods().size(); ++i) {
    const Method& method = *Methods()[i];
    SCOPED_TRACE(method.name);
    EXPECT_EQ(method.unset.index(), i);
    EXPECT_EQ(&MethodOf(method.unset), &method);
    EXPECT_NE(method.starts_from, nullptr);
    EXPECT_NE(method.validate, nullptr);
    EXPECT_NE(method.resolved, nullptr);
    EXPECT_NE(method.workspace_bytes, nullptr);
    EXPECT_NE(method.result_bytes, nullptr);
    EXPECT_NE(method.held_bytes, nullptr);
    EXPECT_NE(method.run, nullptr);
    EXPECT_NE(method.objective, nullptr);
  }
}

TEST(RegistrationMethods, NamesGoThereAndBack) {
  for (const Method* method : Methods()) {
    ASSERT_TRUE(StageNamed(method->name).has_value()) << method->name;
    EXPECT_EQ(MethodName(*StageNamed(method->name)), method->name);
  }
  EXPECT_EQ(MethodName(RigidOptions{}), "rigid");
  EXPECT_EQ(MethodName(AffineOptions{}), "affine");
  EXPECT_EQ(MethodName(FfdOptions{}), "ffd");
  EXPECT_EQ(MethodName(LogDemonsOptions{}), "log-demons");
  EXPECT_EQ(MethodName(SearchOptions{}), "search");
  for (const char* name : {"", "demons", "FFD"}) EXPECT_FALSE(StageNamed(name).has_value()) << name;
}

TEST(RegistrationMethods, OnlyDeformableOnesHoldMemory) {
  for (const Method* method : Methods()) {
    const int64_t bytes = method->result_bytes(kGrid, Resolved(method->unset, kGrid));
    EXPECT_EQ(bytes > 0, method->is_deformable) << method->name;
    EXPECT_GE(method->held_bytes(kGrid, Resolved(method->unset, kGrid)), bytes) << method->name;
  }
}

TEST(RegistrationMethods, DefaultsAreValid) {
  for (const Method* method : Methods()) {
    EXPECT_EQ(method->validate(method->unset, kGrid), absl::OkStatus()) << method->name;
    EXPECT_EQ(method->validate(Resolved(method->unset, kGrid), kGrid), absl::OkStatus()) << method->name;
  }
}

TEST(RegistrationMethods, LevelsAndIterationsHaveTheSameLimits) {
  for (const Method* method : Methods()) {
    SCOPED_TRACE(method->name);
    // A search has neither.
    if (method->name == "search") continue;
    for (int levels : {-1, 0, kMaxLevels + 1}) {
      const absl::Status status = method->validate(WithLevels(method->unset, levels), kGrid);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(FieldOf(status), "levels");
    }
    for (int iterations : {-1, 0, kMaxIterations + 1}) {
      StageOptions options = method->unset;
      const auto set = [&](auto& of_method) {
        if constexpr (requires { of_method.iterations; }) of_method.iterations = iterations;
      };
      std::visit(set, options);
      EXPECT_EQ(FieldOf(method->validate(options, kGrid)), "iterations");
    }
    EXPECT_EQ(method->validate(WithLevels(method->unset, kMaxLevels), kGrid), absl::OkStatus());
  }
}

TEST(RegistrationMethods, ResolvedFillsInEveryDefaultButLevels) {
  const auto affine = std::get<AffineOptions>(Resolved(AffineOptions{}, kGrid));
  EXPECT_EQ(affine.metric, MetricKind::kSsd);
  EXPECT_EQ(affine.iterations, 50);
  EXPECT_EQ(affine.levels, std::nullopt);
  const auto rigid = std::get<RigidOptions>(Resolved(RigidOptions{}, kGrid));
  EXPECT_EQ(rigid.metric, MetricKind::kSsd);
  EXPECT_EQ(rigid.iterations, 50);
  const auto ffd = std::get<FfdOptions>(Resolved(FfdOptions{}, kGrid));
  EXPECT_EQ(ffd.metric, MetricKind::kNmi);
  EXPECT_EQ(ffd.iterations, 150);
  EXPECT_EQ(ffd.levels, std::nullopt);
  EXPECT_EQ(ffd.spacing_vox, 5);
  EXPECT_EQ(ffd.bending_weight, 0.5);
  EXPECT_EQ(ffd.elasticity_weight, 0);
  EXPECT_EQ(ffd.jacobian_weight, 0.1);
  const auto demons = std::get<LogDemonsOptions>(Resolved(LogDemonsOptions{}, kGrid));
  EXPECT_EQ(demons.iterations, std::nullopt);
  EXPECT_EQ(demons.levels, std::nullopt);
  EXPECT_EQ(demons.fluid_sigma, 2);
  EXPECT_EQ(demons.diffusion_sigma, 0.7);
  EXPECT_EQ(demons.max_step, 2);
  EXPECT_EQ(demons.weak_gradient, 0.05);
  EXPECT_EQ(demons.tolerance, 1e-3);
  // No node is smaller than a voxel, and none is tried farther away than 8 of them.
  const auto search = std::get<SearchOptions>(Resolved(SearchOptions{}, Geometry{.size = {320, 320, 320}}));
  EXPECT_NEAR(*search.node_mm, 10, 0.1);
  EXPECT_NEAR(*search.range_mm, 50, 0.5);
}

TEST(RegistrationMethods, ResolvedKeepsWhatIsSet) {
  const FfdOptions given{.metric = MetricKind::kNgf, .levels = 2, .spacing_vox = 7.5, .jacobian_weight = 0};
  const auto ffd = std::get<FfdOptions>(Resolved(given, kGrid));
  EXPECT_EQ(ffd.metric, MetricKind::kNgf);
  EXPECT_EQ(ffd.levels, 2);
  EXPECT_EQ(ffd.spacing_vox, 7.5);
  EXPECT_EQ(ffd.jacobian_weight, 0);
  // The default of a weight is that of the stage's metric.
  EXPECT_EQ(ffd.bending_weight, 0.05);
}

TEST(RegistrationMethods, DefaultSpacingIsNoCoarserThanTheImage) {
  const auto ffd = std::get<FfdOptions>(Resolved(FfdOptions{}, Geometry{.size = {3, 4, 1}}));
  EXPECT_EQ(ffd.spacing_vox, 4);
}

TEST(RegistrationMethods, MetricIsTheDefaultUnlessSet) {
  EXPECT_EQ(MetricOf(AffineOptions{}), MetricKind::kSsd);
  EXPECT_EQ(MetricOf(RigidOptions{.metric = MetricKind::kNgf}), MetricKind::kNgf);
  EXPECT_EQ(MetricOf(FfdOptions{}), MetricKind::kNmi);
  EXPECT_EQ(MetricOf(LogDemonsOptions{}), MetricKind::kSsd);
  EXPECT_EQ(MetricOf(SearchOptions{}), MetricKind::kMind);
}

}  // namespace
}  // namespace intrawarp
