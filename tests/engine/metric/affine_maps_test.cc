// SPDX-License-Identifier: Apache-2.0
// Several maps in one call: each map's sums are the bits that the map has by itself.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "engine/metric/affine_objective.h"
#include "engine/metric/stored_images.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

struct Images {
  Geometry fixed, moving;
  const float *fixed_values, *moving_values;
  const uint8_t *fixed_mask, *moving_mask;
};

class AffineMapsTest : public DeviceTest {
 protected:
  std::vector<float> Noise(int64_t count) {
    std::vector<float> values(count);
    float last = 0;
    for (float& value : values) value = last = 0.8f * last + std::normal_distribution<float>()(random_);
    return values;
  }
  std::vector<uint8_t> Mask(int64_t count) {
    std::vector<uint8_t> mask(count);
    for (uint8_t& voxel : mask) voxel = random_() % 5 != 0 ? 1 + random_() % 255 : 0;
    return mask;
  }
  Images MakeImages(Int3 fixed, Int3 moving) {
    const int64_t f = Voxels(fixed), m = Voxels(moving);
    return {Geometry{.size = fixed}, Geometry{.size = moving}, Upload(Noise(f)),
            Upload(Noise(m)),        Upload(Mask(f)),          Upload(Mask(m))};
  }
  static AffineObjective Objective(const Images& images, MetricKind metric, bool masked, float weight_per_unit = 1) {
    AffineObjective objective;
    objective.metric = metric;
    objective.fixed = {images.fixed_values, images.fixed};
    objective.moving = {images.moving_values, images.moving};
    if (masked) {
      objective.fixed_mask = {images.fixed_mask, images.fixed, weight_per_unit};
      objective.moving_mask = {images.moving_mask, images.moving, weight_per_unit};
    }
    objective.fixed_edge = objective.moving_edge = 0.3;
    objective.fixed_minimum = objective.moving_minimum = -5;
    objective.fixed_maximum = objective.moving_maximum = 5;
    objective.nmi_bins = 16;
    objective.lncc_sigma = 1.5;
    return objective;
  }
  // Maps near the one that lays the fixed grid over the moving one, and every fifth one far outside.
  std::vector<AffineMap> Maps(const Images& images, int count) {
    std::normal_distribution<double> normal(0, 0.7);
    std::vector<AffineMap> maps(count);
    for (int i = 0; i < count; ++i) {
      for (int r = 0; r < 3; ++r) {
        const double radius = 0.5 * (images.moving.size[r] - 1);
        for (int c = 0; c < 3; ++c) maps[i].m[r][c] = (r == c ? radius : 0) + (radius > 0 ? normal(random_) : 0);
        maps[i].m[r][3] = radius + (radius > 0 ? normal(random_) : 0) + (i % 5 == 4 ? 1000 : 0);
      }
    }
    return maps;
  }
  void ExpectSameAsAlone(const Images& images, MetricKind metric, bool masked, int count, float weight_per_unit = 1) {
    const AffineObjective objective = Objective(images, metric, masked, weight_per_unit);
    const std::vector<AffineMap> maps = Maps(images, count);
    NormalEquations poison;
    std::fill_n(poison.hessian, kAffineHessianEntries, NAN);
    std::vector<NormalEquations> together(count, poison);
    ASSERT_OK(EvaluateAffineObjectives(ctx(), objective, maps, together.data()));
    int seen = 0;
    for (int i = 0; i < count; ++i) {
      NormalEquations one;
      ASSERT_OK(EvaluateAffineObjective(ctx(), objective, maps[i], &one));
      EXPECT_EQ(std::memcmp(&one, &together[i], sizeof(one)), 0) << MetricName(metric) << " map " << i;
      seen += one.samples > 0;
    }
    EXPECT_GT(seen, 0) << MetricName(metric);
  }

  std::mt19937 random_{2026};
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(AffineMapsTest);

TEST_P(AffineMapsTest, SumsDoNotDependOnTheOtherMaps) {
  const Images images = MakeImages({37, 29, 23}, {31, 33, 27});
  for (const bool masked : {false, true}) {
    ExpectSameAsAlone(images, MetricKind::kSsd, masked, 11);
    ExpectSameAsAlone(images, MetricKind::kNgf, masked, 11);
    ExpectSameAsAlone(images, MetricKind::kNmi, masked, 3);
    ExpectSameAsAlone(images, MetricKind::kLncc, masked, 3);
  }
}

TEST_P(AffineMapsTest, SumsDoNotDependOnTheOtherMapsUnderWeights) {
  const Images volumes = MakeImages({37, 29, 23}, {31, 33, 27}), planes = MakeImages({61, 45, 1}, {52, 58, 1});
  for (const Images& images : {volumes, planes}) {
    ExpectSameAsAlone(images, MetricKind::kSsd, true, 11, kWeightPerUnit);
    ExpectSameAsAlone(images, MetricKind::kNgf, true, 11, kWeightPerUnit);
    ExpectSameAsAlone(images, MetricKind::kNmi, true, 3, kWeightPerUnit);
  }
}

TEST_P(AffineMapsTest, SumsDoNotDependOnTheOtherMapsInThePlane) {
  const Images images = MakeImages({61, 45, 1}, {52, 58, 1});
  for (const MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) ExpectSameAsAlone(images, metric, true, 64);
}

// More blocks than one launch has room for, and the smallest images there are.
TEST_P(AffineMapsTest, AnyNumberOfBlocks) {
  const Images large = MakeImages({66, 50, 48}, {48, 48, 48}), small = MakeImages({5, 4, 3}, {4, 4, 4});
  for (const MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
    ExpectSameAsAlone(large, metric, false, 19);
    ExpectSameAsAlone(small, metric, false, kMaxAffineMaps);
  }
}

TEST_P(AffineMapsTest, NoMapsAreNothingAndTooManyAreRefused) {
  const Images images = MakeImages({8, 8, 8}, {8, 8, 8});
  const AffineObjective objective = Objective(images, MetricKind::kSsd, false);
  std::vector<NormalEquations> sums(kMaxAffineMaps + 1);
  EXPECT_OK(EvaluateAffineObjectives(ctx(), objective, {}, nullptr));
  const std::vector<AffineMap> maps(kMaxAffineMaps + 1);
  EXPECT_EQ(EvaluateAffineObjectives(ctx(), objective, maps, sums.data()).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp
