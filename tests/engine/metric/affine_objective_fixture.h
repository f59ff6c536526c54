// SPDX-License-Identifier: Apache-2.0
// Problems for tests of the affine objective, and the float64 reference that answers them.
#ifndef INTRAWARP_TESTS_ENGINE_METRIC_AFFINE_OBJECTIVE_FIXTURE_H_
#define INTRAWARP_TESTS_ENGINE_METRIC_AFFINE_OBJECTIVE_FIXTURE_H_

#include <tbb/global_control.h>

#include <cstring>
#include <limits>
#include <string>

#include "engine/metric/affine_objective.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/references.h"

namespace intrawarp::affine_objective_test {

// ---- The reference: float64, one voxel after the other. ----

struct HostProblem {
  MetricKind metric = MetricKind::kSsd;
  HostVolume fixed, moving;
  double fixed_edge = 0.03, moving_edge = 0.05;
  double intensity_scale = 1;
  int nmi_bins = 32;
  double lncc_sigma = 2;
};

struct Intensities {
  float minimum = std::numeric_limits<float>::infinity(), maximum = -std::numeric_limits<float>::infinity();
  double stddev = 0;
};

// The voxels that are numbers count.
Intensities IntensitiesOf(const HostVolume& v);

// Relative to the magnitudes of the terms.
inline constexpr double kTolerance = 1e-5;

// The reference's results: the sums, and the sums of the magnitudes that went into them, which scale the tolerance.
struct Reference {
  NormalEquations sums, magnitudes;
};

// `unit` as in NmiReference.
Reference EvaluateReference(const HostProblem& problem, const AffineMap& w, double unit = 1.0 / 4096);

// ---- Problems. ----

enum class Content { kNoisy, kSmooth };

struct MapOptions {
  Vec3d degrees{0, 0, 0};
  Vec3d scale{1, 1, 1};
  Vec3d shift{0, 0, 0};  // moving voxels
};

// Takes the fixed grid onto the moving grid, centre on centre, and then rotates, scales and shifts by voxels.
AffineMap MakeMap(const HostProblem& problem, const MapOptions& options);

std::string Describe(const HostProblem& p);

// A 2-D image stays in its plane.
inline bool IsFlat(const HostProblem& p) { return p.fixed.geometry.is_2d() || p.moving.geometry.is_2d(); }

class AffineObjectiveTest : public DeviceTest {
 protected:
  AffineObjective UploadProblem(const HostProblem& problem) {
    AffineObjective o;
    o.metric = problem.metric;
    o.fixed = {Upload(problem.fixed.data), problem.fixed.geometry};
    o.moving = {Upload(problem.moving.data), problem.moving.geometry};
    if (!problem.fixed.mask.empty()) o.fixed_mask = UploadMask(problem.fixed);
    if (!problem.moving.mask.empty()) o.moving_mask = UploadMask(problem.moving);
    o.fixed_edge = problem.fixed_edge;
    o.moving_edge = problem.moving_edge;
    o.intensity_scale = problem.intensity_scale;
    const Intensities f = IntensitiesOf(problem.fixed), m = IntensitiesOf(problem.moving);
    o.fixed_minimum = f.minimum;
    o.fixed_maximum = f.maximum;
    o.moving_minimum = m.minimum;
    o.moving_maximum = m.maximum;
    o.fixed_stddev = f.stddev;
    o.moving_stddev = m.stddev;
    o.nmi_bins = problem.nmi_bins;
    o.lncc_sigma = problem.lncc_sigma;
    return o;
  }

  ConstMaskView UploadMask(const HostVolume& volume) {
    return {Upload(volume.mask), volume.geometry, volume.weight_per_unit};
  }

  NormalEquations Evaluate(const AffineObjective& objective, const AffineMap& w) {
    NormalEquations sums;
    // The earlier content must not matter.
    std::memset(static_cast<void*>(&sums), 0xff, sizeof(sums));
    const absl::Status status = EvaluateAffineObjective(ctx(), objective, w, &sums);
    EXPECT_TRUE(status.ok()) << status;
    return sums;
  }

  void ExpectTheSameBitsOnAnyNumberOfCores(const HostProblem& p) {
    const AffineObjective o = UploadProblem(p);
    MapOptions map;
    map.degrees = IsFlat(p) ? Vec3d{0, 0, 3} : Vec3d{1, 2, 3};
    const AffineMap w = MakeMap(p, map);
    const NormalEquations first = Evaluate(o, w);
    for (size_t cores : {1, 2, 3, 8}) {
      const tbb::global_control control(tbb::global_control::max_allowed_parallelism, cores);
      for (int run = 0; run < 3; ++run) {
        const NormalEquations again = Evaluate(o, w);
        EXPECT_EQ(std::memcmp(&first, &again, sizeof(first)), 0) << Describe(p) << " cores " << cores;
      }
    }
  }

  static void ExpectClose(const NormalEquations& sums, const Reference& reference) {
    const NormalEquations &r = reference.sums, &m = reference.magnitudes;
    EXPECT_EQ(sums.samples, r.samples);
    EXPECT_NEAR(sums.weight, r.weight, kTolerance * (r.weight + m.weight));
    EXPECT_NEAR(sums.value, r.value, kTolerance * m.value + 1e-30);
    for (int i = 0; i < kAffineParameters; ++i) {
      EXPECT_NEAR(sums.gradient[i], r.gradient[i], kTolerance * m.gradient[i] + 1e-30) << "gradient " << i;
    }
    // NGF of a single row has no second derivatives, but for the rounding errors of contracted cross products.
    const double rounding = 1e-12 * r.samples + 1e-30;
    for (int i = 0; i < kAffineHessianEntries; ++i) {
      EXPECT_NEAR(sums.hessian[i], r.hessian[i], kTolerance * m.hessian[i] + rounding) << "Hessian " << i;
    }
  }

  // Returns the number of samples, so that a test can see that it tested something.
  double Check(const HostProblem& problem, const AffineMap& w) {
    const Reference reference = EvaluateReference(problem, w);
    ExpectClose(Evaluate(UploadProblem(problem), w), reference);
    return reference.sums.samples;
  }
};

inline constexpr MetricKind kMetrics[] = {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc};

HostProblem MakeProblem(MetricKind metric, Int3 fixed, Int3 moving, uint32_t seed, Content content = Content::kNoisy,
                        bool fixed_mask = false, bool moving_mask = false);

// Gives a volume a mask of weights (SlowWeight).
void SetSlowWeights(uint32_t seed, HostVolume* volume);

}  // namespace intrawarp::affine_objective_test

#endif  // INTRAWARP_TESTS_ENGINE_METRIC_AFFINE_OBJECTIVE_FIXTURE_H_
