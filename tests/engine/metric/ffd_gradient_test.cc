// SPDX-License-Identifier: Apache-2.0
// Properties of the FFD objective: its gradient, equal bits, its memory, what it refuses.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "engine/metric/ffd_objective.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/ffd_objective_fixture.h"
#include "tests/engine/metric/references.h"

namespace intrawarp::ffd_objective_test {
namespace {

// Against central differences of the reference's value, in float64, where no sample enters or leaves.
TEST_P(FfdObjectiveTest, GradientMatchesFiniteDifferences) {
  for (MetricKind metric : kMetrics) {
    for (int nz : {1, 12}) {
      Options o;
      o.fixed = {23, 18, nz};
      o.moving = {44, 39, nz == 1 ? 1 : 27};
      o.seed = 800 + nz;
      o.content = Content::kSmooth;
      o.scale = 0.6;
      if (nz == 1) o.degrees = {0, 0, 4};
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      const Evaluation e = Evaluate(p);
      double scale = 0;
      for (float g : e.gradient) scale = std::max<double>(scale, std::abs(g));
      EXPECT_GT(scale, 0);
      const std::vector<float> picks = RandomFloats(8, 810);
      for (float pick : picks) {
        const size_t node = static_cast<size_t>(pick * p.grid.voxels());
        for (int c = 0; c < 3; ++c) {
          const double h = 1e-5;
          std::vector<double> plus = Doubles(p.coefficients), minus = plus;
          plus[3 * node + c] += h;
          minus[3 * node + c] -= h;
          const MetricReference a = EvaluateMetric(p, WarpReference(p, plus), 0),
                                b = EvaluateMetric(p, WarpReference(p, minus), 0);
          ASSERT_EQ(a.samples, b.samples);
          // NMI's counts are rounded, its reference's here are not.
          EXPECT_NEAR(e.gradient[3 * node + c], (a.value - b.value) / (2 * h),
                      (metric == MetricKind::kNmi ? 1e-2 : 2e-3) * scale)
              << node << " " << c;
        }
      }
    }
  }
}

// The weights stay those of the samples' places before the step.
TEST_P(FfdObjectiveTest, GradientWithSoftMasksMatchesFiniteDifferences) {
  for (MetricKind metric : kMetrics) {
    for (int nz : {1, 12}) {
      Options o;
      o.fixed = {23, 18, nz};
      o.moving = {44, 39, nz == 1 ? 1 : 27};
      o.seed = 830 + nz;
      o.content = Content::kSmooth;
      o.scale = 0.6;
      o.fixed_mask = o.moving_mask = o.soft = true;
      if (nz == 1) o.degrees = {0, 0, 4};
      HostProblem p = MakeProblem(metric, o);
      // No sample enters or leaves.
      for (uint8_t& byte : p.moving.mask) byte = std::max<uint8_t>(byte, 1);
      SCOPED_TRACE(Describe(p));
      const Evaluation e = Evaluate(p);
      double scale = 0;
      for (float g : e.gradient) scale = std::max<double>(scale, std::abs(g));
      EXPECT_GT(scale, 0);
      const std::vector<Sample> here = WarpReference(p, Doubles(p.coefficients));
      const auto value_at = [&](const std::vector<double>& coefficients) {
        std::vector<Sample> samples = WarpReference(p, coefficients);
        for (size_t i = 0; i < samples.size(); ++i) samples[i].weight = here[i].weight;
        return EvaluateMetric(p, samples, 0).value;
      };
      for (float pick : RandomFloats(8, 840)) {
        const size_t node = static_cast<size_t>(pick * p.grid.voxels());
        for (int c = 0; c < 3; ++c) {
          const double h = 1e-5;
          std::vector<double> plus = Doubles(p.coefficients), minus = plus;
          plus[3 * node + c] += h;
          minus[3 * node + c] -= h;
          // NMI's counts are rounded, its reference's here are not.
          EXPECT_NEAR(e.gradient[3 * node + c], (value_at(plus) - value_at(minus)) / (2 * h),
                      (metric == MetricKind::kNmi ? 2e-2 : 2e-3) * scale)
              << node << " " << c;
        }
      }
    }
  }
}

TEST_P(FfdObjectiveTest, FullWeightsAreABinaryMask) {
  for (MetricKind metric :
       {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc, MetricKind::kMind}) {
    for (Int3 size : {Int3{45, 23, 19}, Int3{50, 35, 1}}) {
      Options o;
      o.fixed = size;
      o.moving = {37, 24, size.z};
      o.seed = 860;
      o.fixed_mask = o.moving_mask = true;
      if (size.z == 1) o.degrees = {0, 0, 3.1};
      HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      const Evaluation binary = Evaluate(p);
      for (HostVolume* v : {&p.fixed, &p.moving}) {
        for (uint8_t& byte : v->mask) byte = byte == 0 ? 0 : 255;
        v->weight_per_unit = kWeightPerUnit;
      }
      const Evaluation full = Evaluate(p);
      EXPECT_GT(binary.value.samples, 100);
      EXPECT_EQ(std::memcmp(&binary.value, &full.value, sizeof(MetricValue)), 0);
      EXPECT_EQ(binary.gradient, full.gradient);
      // And other weights are something else.
      p.fixed.mask[p.fixed.mask.size() / 2] = 99;
      for (size_t i = 0; i < p.fixed.mask.size(); i += 3) p.fixed.mask[i] /= 2;
      const Evaluation weighted = Evaluate(p);
      EXPECT_NE(binary.value.metric, weighted.value.metric);
    }
  }
}

// The order of evaluations does not matter, nor the value alone.
TEST_P(FfdObjectiveTest, EvaluationsWithSoftMasksAreBitIdentical) {
  for (MetricKind metric :
       {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc, MetricKind::kMind}) {
    Options o;
    o.fixed = {70, 41, 21};
    o.moving = {66, 45, 23};
    o.seed = 880;
    o.fixed_mask = o.moving_mask = o.soft = true;
    const HostProblem p = MakeProblem(metric, o);
    SCOPED_TRACE(Describe(p));
    const int64_t bytes = FfdEvaluatorBytes(device(), metric, p.fixed.geometry, p.moving.geometry, p.grid);
    OwnedContext owned = *OwnedContext::Create(device(), bytes);
    const ExecContext context = owned.context();
    auto evaluator = MakeFfdEvaluator(context, UploadProblem(p));
    ASSERT_OK(evaluator.status());
    const auto evaluate = [&](bool with_gradient) {
      Evaluation e;
      MetricValue* const value = Poisoned<MetricValue>(1);
      float* const gradient = Poisoned<float>(p.coefficients.size());
      EXPECT_OK(
          (*evaluator)->Evaluate(context, Upload(p.coefficients), nullptr, with_gradient ? gradient : nullptr, value));
      EXPECT_OK(device().Synchronize(context.stream()));
      e.value = Download(value, 1)[0];
      if (with_gradient) e.gradient = Download(gradient, p.coefficients.size());
      return e;
    };
    const Evaluation first = evaluate(true), alone = evaluate(false), again = evaluate(true);
    EXPECT_EQ(std::memcmp(&first.value, &alone.value, sizeof(MetricValue)), 0);
    EXPECT_EQ(std::memcmp(&first.value, &again.value, sizeof(MetricValue)), 0);
    EXPECT_EQ(first.gradient, again.gradient);
  }
}

TEST_P(FfdObjectiveTest, EqualImagesMatchPerfectly) {
  for (Int3 size : {Int3{33, 17, 9}, Int3{35, 18, 1}, Int3{128, 6, 5}}) {
    Options o;
    o.fixed = o.moving = size;
    o.seed = 900;
    HostProblem p = MakeProblem(MetricKind::kSsd, o);
    p.moving = p.fixed;
    p.affine = AffineMap::Identity();
    std::fill(p.coefficients.begin(), p.coefficients.end(), 0.0f);
    const Evaluation e = Evaluate(p);
    EXPECT_EQ(e.value.samples, p.fixed.geometry.voxels());
    EXPECT_LE(e.value.metric, 1e-9);
    for (float g : e.gradient) ASSERT_LE(std::abs(g), 1e-6);
  }
}

TEST_P(FfdObjectiveTest, ConstantImages) {
  for (MetricKind metric : kMetrics) {
    for (int which = 1; which < 4; ++which) {
      Options o;
      o.seed = 950;
      HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p) + " constant " + std::to_string(which));
      if (which & 1) {
        std::fill(p.fixed.data.begin(), p.fixed.data.end(), 3.0f);
        p.fixed_minimum = p.fixed_maximum = 3;
        p.fixed_stddev = 0.1;
      }
      if (which & 2) {
        std::fill(p.moving.data.begin(), p.moving.data.end(), -2.0f);
        p.moving_minimum = p.moving_maximum = -2;
        p.moving_stddev = 0.1;
      }
      const Evaluation e = Evaluate(p);
      EXPECT_GT(e.value.samples, 1000);
      EXPECT_FALSE(std::isinf(e.value.metric));
      if (metric == MetricKind::kNmi || metric == MetricKind::kLncc) {
        EXPECT_NEAR(e.value.metric, 1, 1e-9);
      }
      for (float g : e.gradient) {
        ASSERT_TRUE(std::isfinite(g));
        // Nothing of the moving image changes.
        const bool flat = (which & 2) != 0;
        ASSERT_LE(std::abs(g), flat ? 0 : metric == MetricKind::kSsd ? 1e9 : 1e-7);
      }
    }
  }
}

TEST_P(FfdObjectiveTest, NotANumberOutsideTheMasksDoesNotCount) {
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi}) {
    Options o;
    o.fixed = o.moving = {24, 22, 20};
    o.seed = 960;
    HostProblem p = MakeProblem(metric, o);
    p.fixed.mask.assign(p.fixed.data.size(), 1);
    p.moving.mask.assign(p.moving.data.size(), 1);
    // The corner octant of each image has no data; the mask leaves a margin for what neighbours reach.
    ForEachVoxel(o.fixed, [&](size_t i, Int3 v) {
      if (v.x < 6 && v.y < 6 && v.z < 6) p.fixed.data[i] = p.moving.data[i] = NAN;
      if (v.x < 9 && v.y < 9 && v.z < 9) p.fixed.mask[i] = p.moving.mask[i] = 0;
    });
    SCOPED_TRACE(Describe(p));
    EXPECT_GT(Check(p), 3000);
  }
}

TEST_P(FfdObjectiveTest, RepeatedEvaluationsAreBitIdentical) {
  for (MetricKind metric : kMetrics) {
    Options o;
    o.fixed = {70, 41, 50};
    o.moving = {66, 45, 47};
    o.seed = 970;
    const HostProblem p = MakeProblem(metric, o);
    SCOPED_TRACE(Describe(p));
    ArenaScope scope(owned_.context().arena());
    const auto evaluator = Make(UploadProblem(p));
    ASSERT_NE(evaluator, nullptr);
    const Evaluation first = Evaluate(*evaluator, p.coefficients);
    std::vector<float> other = p.coefficients;
    for (float& c : other) c *= -0.5f;
    EXPECT_NE(Evaluate(*evaluator, other).value.metric, first.value.metric);
    for (int run = 0; run < 3; ++run) {
      const Evaluation again = Evaluate(*evaluator, p.coefficients);
      EXPECT_EQ(std::memcmp(&first.value, &again.value, sizeof(MetricValue)), 0);
      EXPECT_EQ(first.gradient, again.gradient);
    }
    // The value alone.
    MetricValue* const value = Poisoned<MetricValue>(1);
    ASSERT_OK(evaluator->Evaluate(ctx(), Upload(p.coefficients), nullptr, nullptr, value));
    const MetricValue alone = Download(value, 1)[0];
    EXPECT_EQ(std::memcmp(&first.value, &alone, sizeof(MetricValue)), 0);
  }
}

TEST_P(FfdObjectiveTest, SkippedEvaluationsWriteNothing) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {});
    SCOPED_TRACE(Describe(p));
    ArenaScope scope(owned_.context().arena());
    const auto evaluator = Make(UploadProblem(p));
    ASSERT_NE(evaluator, nullptr);
    const float* const grid = Upload(p.coefficients);
    const std::vector<double> before_value = {17, 18};
    const std::vector<float> before_gradient(p.coefficients.size(), 19.0f);
    MetricValue* const value = reinterpret_cast<MetricValue*>(Upload(before_value));
    float* const gradient = Upload(before_gradient);
    ASSERT_OK(evaluator->Evaluate(ctx(), grid, Upload(std::vector<int>{5}), gradient, value));
    EXPECT_EQ(Download(value, 1)[0].metric, 17);
    EXPECT_EQ(Download(value, 1)[0].samples, 18);
    EXPECT_EQ(Download(gradient, before_gradient.size()), before_gradient);
    // And a skipped one leaves the next as it would have been.
    ASSERT_OK(evaluator->Evaluate(ctx(), grid, Upload(std::vector<int>{0}), gradient, value));
    const Evaluation fresh = Evaluate(p);
    EXPECT_EQ(Download(value, 1)[0].metric, fresh.value.metric);
    EXPECT_EQ(Download(gradient, before_gradient.size()), fresh.gradient);
  }
}

TEST_P(FfdObjectiveTest, TakesTheMemoryThatItSays) {
  for (MetricKind metric : kMetrics) {
    for (Int3 size : {Int3{33, 17, 12}, Int3{50, 30, 1}, Int3{70, 40, 60}}) {
      Options o;
      o.fixed = size;
      o.degrees = {0, 0, 0};
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      const int64_t bytes = FfdEvaluatorBytes(device(), metric, p.fixed.geometry, p.moving.geometry, p.grid);
      OwnedContext owned = *OwnedContext::Create(device(), bytes);
      const ExecContext context = owned.context();
      auto evaluator = MakeFfdEvaluator(context, UploadProblem(p));
      ASSERT_TRUE(evaluator.ok()) << evaluator.status();
      MetricValue* const value = Poisoned<MetricValue>(1);
      float* const gradient = Poisoned<float>(p.coefficients.size());
      const absl::Status status = (*evaluator)->Evaluate(context, Upload(p.coefficients), nullptr, gradient, value);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_OK(device().Synchronize(context.stream()));
    }
  }
}

TEST_P(FfdObjectiveTest, RefusesWhatDoesNotFit) {
  Options options;
  options.fixed_mask = options.moving_mask = true;
  const HostProblem p = MakeProblem(MetricKind::kSsd, options);
  const FfdObjective good = UploadProblem(p);
  const auto message = [&](const FfdObjective& o) {
    const auto evaluator = MakeFfdEvaluator(ctx(), o);
    EXPECT_EQ(evaluator.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(evaluator.status().message());
  };
  EXPECT_OK(MakeFfdEvaluator(ctx(), good).status());
  FfdObjective o = good;
  o.fixed_mask.geometry.size.x -= 1;
  EXPECT_THAT(message(o), testing::StartsWith("fixed_mask: "));
  o = good;
  o.moving_mask.geometry.origin.y += 1;
  EXPECT_THAT(message(o), testing::StartsWith("moving_mask: "));
  for (int a = 0; a < 3; ++a) {
    o = good;
    o.grid.size[a] -= 2;
    EXPECT_THAT(message(o), testing::StartsWith("grid: "));
    o = good;
    o.grid.origin = IndexToPhysical(good.grid)({a == 0 ? 1.0 : 0, a == 1 ? 1.0 : 0, a == 2 ? 1.0 : 0});
    EXPECT_THAT(message(o), testing::StartsWith("grid: "));
  }
  o = good;
  o.grid.origin.x = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(message(o), testing::StartsWith("grid: "));
  o = good;
  const AffineMap turn = Rotation({0, 0, 2});
  for (int c = 0; c < 3; ++c) {
    const Vec3d d = turn.Linear({o.grid.direction[0][c], o.grid.direction[1][c], o.grid.direction[2][c]});
    for (int r = 0; r < 3; ++r) o.grid.direction[r][c] = d[r];
  }
  EXPECT_THAT(message(o), testing::StartsWith("grid: "));
  o = good;
  o.grid = MakeGrid(p.fixed.geometry, {0.5, 5, 5});
  EXPECT_THAT(message(o), testing::StartsWith("grid: "));
}

}  // namespace
}  // namespace intrawarp::ffd_objective_test
