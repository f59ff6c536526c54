// SPDX-License-Identifier: Apache-2.0
#include "engine/image/statistics.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

bool OnFace(Int3 n, int x, int y, int z) {
  const int index[3] = {x, y, z};
  for (int a = 0; a < 3; ++a)
    if (n[a] > 1 && (index[a] == 0 || index[a] == n[a] - 1)) return true;
  return false;
}

VolumeStatistics Reference(const Geometry& g, const std::vector<float>& v) {
  VolumeStatistics s;
  s.minimum = *std::min_element(v.begin(), v.end());
  s.maximum = *std::max_element(v.begin(), v.end());
  s.mean = std::accumulate(v.begin(), v.end(), 0.0) / v.size();
  for (float x : v) s.stddev += (x - s.mean) * (x - s.mean);
  s.stddev = std::sqrt(s.stddev / v.size());
  s.background = s.minimum;
  s.center_of_mass = Center(g);
  const double range = double{s.maximum} - s.minimum;
  if (range == 0) return s;

  std::array<int, 256> histogram{};
  const Int3 n = g.size;
  const auto at = [&](int x, int y, int z) { return v[(size_t{0} + z * n.y + y) * n.x + x]; };
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x)
        if (OnFace(n, x, y, z)) ++histogram[std::min(255, int((double{at(x, y, z)} - s.minimum) * (256 / range)))];
  const int bin = std::max_element(histogram.begin(), histogram.end()) - histogram.begin();
  s.background = static_cast<float>(s.minimum + (bin + 0.5) * range / 256);

  double mass = 0;
  Vec3d moment;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x) {
        const double w = std::abs(double{at(x, y, z)} - s.background);
        if (w <= 0.1 * range) continue;
        mass += w;
        moment = moment + w * Vec3d{double(x), double(y), double(z)};
      }
  if (mass > 0) s.center_of_mass = IndexToPhysical(g)((1 / mass) * moment);
  return s;
}

class StatisticsTest : public DeviceTest {
 protected:
  VolumeStatistics Compute(const Geometry& g, const std::vector<float>& values) {
    OwnedContext owned = *OwnedContext::Create(device(), StatisticsWorkspaceBytes(g));
    const absl::StatusOr<VolumeStatistics> s = ComputeStatistics(owned.context(), {Upload(values), g});
    EXPECT_OK(s) << s.status();
    EXPECT_EQ(owned.context().arena().used(), 0u);
    return s.value_or(VolumeStatistics());
  }
  void ExpectReference(const Geometry& g, const std::vector<float>& values) {
    const VolumeStatistics got = Compute(g, values), want = Reference(g, values);
    EXPECT_EQ(got.nonfinite, 0);
    EXPECT_EQ(got.minimum, want.minimum);
    EXPECT_EQ(got.maximum, want.maximum);
    const double unit = std::max(std::abs(want.minimum), std::abs(want.maximum));
    EXPECT_NEAR(got.mean, want.mean, 1e-12 * unit);
    EXPECT_NEAR(got.stddev, want.stddev, 1e-9 * want.stddev);
    EXPECT_FLOAT_EQ(got.background, want.background);
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(got.center_of_mass[a], want.center_of_mass[a], 1e-5);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(StatisticsTest);

TEST_P(StatisticsTest, RandomVolumesOfManySizes) {
  const Int3 sizes[] = {{7, 5, 3},    {31, 33, 9}, {64, 64, 64}, {257, 3, 2},  {1, 40, 50}, {8193, 2, 1},
                        {130, 67, 1}, {2, 2, 2},   {1, 1, 9},    {5000, 1, 1}, {3, 300, 91}};
  uint32_t seed = 1;
  for (Int3 size : sizes) {
    SCOPED_TRACE(SizeString(ObliqueGeometry(size)));
    const Geometry g = ObliqueGeometry(size, seed % 2 == 0);
    ExpectReference(g, RandomFloats(g.voxels(), seed++, -300, 1200));
  }
}

TEST_P(StatisticsTest, LargeOffsetKeepsTheDeviation) {
  const Geometry g = ObliqueGeometry({100, 90, 20});
  std::vector<float> values = RandomFloats(g.voxels(), 3, 0, 8);
  for (float& v : values) v = 1e6f + std::round(v);
  ExpectReference(g, values);
}

// A blob in surroundings of one value, dark on bright or bright on dark: its centre is found either way.
TEST_P(StatisticsTest, CenterOfMassOfABlob) {
  for (float background : {-1000.0f, 3000.0f}) {
    const Geometry g = ObliqueGeometry({40, 30, 20});
    std::vector<float> values(g.voxels(), background);
    for (int z = 4; z < 9; ++z)
      for (int y = 10; y < 17; ++y)
        for (int x = 20; x < 31; ++x) values[(z * 30 + y) * 40 + x] = 100.0f;
    const VolumeStatistics s = Compute(g, values);
    EXPECT_NEAR(s.background, background, std::abs(background - 100) / 256);
    const Vec3d want = IndexToPhysical(g)({25, 13, 6});
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(s.center_of_mass[a], want[a], 1e-9);
  }
}

TEST_P(StatisticsTest, ConstantVolumeAndSingleVoxel) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{12, 13, 14}, Int3{40, 50, 1}}) {
    const Geometry g = ObliqueGeometry(size);
    const VolumeStatistics s = Compute(g, std::vector<float>(g.voxels(), 42.5f));
    EXPECT_EQ(s.minimum, 42.5f);
    EXPECT_EQ(s.maximum, 42.5f);
    EXPECT_EQ(s.mean, 42.5);
    EXPECT_EQ(s.stddev, 0.0);
    EXPECT_EQ(s.background, 42.5f);
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(s.center_of_mass[a], Center(g)[a], 1e-9);
  }
}

TEST_P(StatisticsTest, CountsWhatIsNotFinite) {
  const Geometry g = ObliqueGeometry({33, 21, 11});
  std::vector<float> values = RandomFloats(g.voxels(), 5);
  for (int i : {0, 17, 4000, 33 * 21 * 11 - 1}) values[i] = std::nanf("");
  for (int i : {1, 5000}) values[i] = INFINITY;
  values[6000] = -INFINITY;
  EXPECT_EQ(Compute(g, values).nonfinite, 7);
}

TEST_P(StatisticsTest, HugeRange) {
  const Geometry g = ObliqueGeometry({20, 20, 20});
  const float most = std::numeric_limits<float>::max();
  std::vector<float> values(g.voxels(), -most);
  for (int i = 3333; i < 3350; ++i) values[i] = most;
  ExpectReference(g, values);
}

TEST_P(StatisticsTest, SameBitsEveryTime) {
  const Geometry g = ObliqueGeometry({150, 140, 30});
  const std::vector<float> values = RandomFloats(g.voxels(), 9, -1, 1);
  const VolumeStatistics a = Compute(g, values);
  for (int run = 0; run < 5; ++run) {
    const VolumeStatistics b = Compute(g, values);
    EXPECT_EQ(a.mean, b.mean);
    EXPECT_EQ(a.stddev, b.stddev);
    EXPECT_EQ(a.center_of_mass, b.center_of_mass);
  }
}

}  // namespace
}  // namespace intrawarp
