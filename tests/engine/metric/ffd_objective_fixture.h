// SPDX-License-Identifier: Apache-2.0
// Problems for tests of the FFD objective, and the float64 reference that answers them.
#ifndef INTRAWARP_TESTS_ENGINE_METRIC_FFD_OBJECTIVE_FIXTURE_H_
#define INTRAWARP_TESTS_ENGINE_METRIC_FFD_OBJECTIVE_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "engine/metric/ffd_objective.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/references.h"

namespace intrawarp::ffd_objective_test {

// ---- The reference: float64, one voxel after the other. ----

struct HostProblem {
  MetricKind metric = MetricKind::kSsd;
  HostVolume fixed, moving;
  AffineMap affine = AffineMap::Identity();
  Geometry grid;
  std::vector<float> coefficients;
  double intensity_scale = 1;
  float fixed_minimum = 0, fixed_maximum = 1, moving_minimum = 0, moving_maximum = 1;
  double fixed_stddev = 1, moving_stddev = 1;
  double lncc_sigma = 1.5;
  double fixed_edge = 0.03, moving_edge = 0.05;
};

template <typename Visit>
void ForEachVoxel(Int3 n, const Visit& visit) {
  size_t i = 0;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x, ++i) visit(i, Int3{x, y, z});
}

std::vector<Sample> WarpReference(const HostProblem& problem, const std::vector<double>& coefficients);

// A metric of the samples and its derivative in each sample's value. `uncertainty`: what float32 may make of the
// derivative.
struct MetricReference {
  double value = std::numeric_limits<double>::quiet_NaN();
  double samples = 0;
  std::vector<double> voxel_gradient, uncertainty;
};

MetricReference EvaluateMetric(const HostProblem& problem, const std::vector<Sample>& samples, double unit);

struct Reference {
  double value = 0, samples = 0;
  std::vector<double> gradient, uncertainty;
};

inline std::vector<double> Doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

Reference EvaluateReference(const HostProblem& problem);

// ---- Problems. ----

// Node 1 on the lower corner of the image's domain, `spacing` in voxels; what MakeControlGrid lays out.
Geometry MakeGrid(const Geometry& image, Vec3d spacing);

enum class Content { kNoisy, kSmooth };

struct Options {
  Int3 fixed{33, 17, 12};
  Int3 moving{31, 19, 14};
  Vec3d spacing{5, 5, 5};  // voxels
  uint32_t seed = 1;
  Content content = Content::kNoisy;
  bool fixed_mask = false, moving_mask = false, left_handed = false;
  // The masks are of weights.
  bool soft = false;
  Vec3d degrees{1.3, -2.2, 2.9};
  double scale = 0.93;
  Vec3d shift;             // moving voxels
  double amplitude = 0.8;  // of u, in voxels of the fixed image
};

HostProblem MakeProblem(MetricKind metric, const Options& o);

inline constexpr MetricKind kMetrics[] = {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc, MetricKind::kNgf};

std::string Describe(const HostProblem& p);

struct Evaluation {
  MetricValue value;
  std::vector<float> gradient;
};

class FfdObjectiveTest : public DeviceTest {
 protected:
  FfdObjective UploadProblem(const HostProblem& p) {
    FfdObjective o;
    o.metric = p.metric;
    o.fixed = {Upload(p.fixed.data), p.fixed.geometry};
    o.moving = {Upload(p.moving.data), p.moving.geometry};
    if (!p.fixed.mask.empty()) o.fixed_mask = {Upload(p.fixed.mask), p.fixed.geometry, p.fixed.weight_per_unit};
    if (!p.moving.mask.empty()) o.moving_mask = {Upload(p.moving.mask), p.moving.geometry, p.moving.weight_per_unit};
    o.affine = p.affine;
    o.grid = p.grid;
    o.intensity_scale = p.intensity_scale;
    o.fixed_minimum = p.fixed_minimum;
    o.fixed_maximum = p.fixed_maximum;
    o.moving_minimum = p.moving_minimum;
    o.moving_maximum = p.moving_maximum;
    o.fixed_stddev = p.fixed_stddev;
    o.moving_stddev = p.moving_stddev;
    o.lncc_sigma = p.lncc_sigma;
    o.fixed_edge = p.fixed_edge;
    o.moving_edge = p.moving_edge;
    return o;
  }

  std::unique_ptr<FfdEvaluator> Make(const FfdObjective& objective) {
    auto evaluator = MakeFfdEvaluator(ctx(), objective);
    EXPECT_TRUE(evaluator.ok()) << evaluator.status();
    return evaluator.ok() ? *std::move(evaluator) : nullptr;
  }

  Evaluation Evaluate(FfdEvaluator& evaluator, const std::vector<float>& coefficients) {
    MetricValue* const value = Poisoned<MetricValue>(1);
    float* const gradient = Poisoned<float>(coefficients.size());
    const absl::Status status = evaluator.Evaluate(ctx(), Upload(coefficients), nullptr, gradient, value);
    EXPECT_TRUE(status.ok()) << status;
    return {Download(value, 1)[0], Download(gradient, coefficients.size())};
  }

  Evaluation Evaluate(const HostProblem& p) {
    ArenaScope scope(owned_.context().arena());
    const auto evaluator = Make(UploadProblem(p));
    if (evaluator == nullptr) return {};
    return Evaluate(*evaluator, p.coefficients);
  }

  static void ExpectClose(const Evaluation& e, const Reference& r) {
    EXPECT_EQ(e.value.samples, r.samples);
    if (std::isnan(r.value)) {
      EXPECT_TRUE(std::isnan(e.value.metric));
    } else {
      EXPECT_NEAR(e.value.metric, r.value, 2e-5 * std::max(1.0, std::abs(r.value)));
    }
    ASSERT_EQ(e.gradient.size(), r.gradient.size());
    double largest = 0;
    for (double g : r.gradient) largest = std::max(largest, std::abs(g));
    int wrong = 0;
    for (size_t i = 0; i < r.gradient.size() && wrong < 5; ++i) {
      const double tolerance = r.uncertainty[i] + 1e-5 * largest + 1e-30;
      // Written so that NaN is wrong.
      if (std::abs(e.gradient[i] - r.gradient[i]) <= tolerance) continue;
      ++wrong;
      ADD_FAILURE() << "gradient " << i << ": " << e.gradient[i] << ", must be " << r.gradient[i] << " to within "
                    << tolerance << "; the largest is " << largest;
    }
  }

  // Returns the number of samples, so that a test can see that it tested something.
  double Check(const HostProblem& problem) {
    const Reference reference = EvaluateReference(problem);
    ExpectClose(Evaluate(problem), reference);
    return reference.samples;
  }
};

}  // namespace intrawarp::ffd_objective_test

#endif  // INTRAWARP_TESTS_ENGINE_METRIC_FFD_OBJECTIVE_FIXTURE_H_
