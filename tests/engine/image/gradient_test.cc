// SPDX-License-Identifier: Apache-2.0
#include "engine/image/gradient.h"

#include <cmath>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

struct HostVolume {
  Geometry geometry;
  std::vector<float> values;

  double at(Int3 i) const { return values[(size_t{0} + i.z * geometry.size.y + i.y) * geometry.size.x + i.x]; }
  // Physical gradient by differences over the neighbours that exist, along the unit vectors of the axes.
  Vec3d Gradient(Int3 i) const {
    Vec3d g;
    for (int a = 0; a < 3; ++a) {
      Int3 low = i, high = i;
      if (i[a] > 0) --low[a];
      if (i[a] < geometry.size[a] - 1) ++high[a];
      if (low[a] == high[a]) continue;
      const double d = (at(high) - at(low)) / ((high[a] - low[a]) * geometry.spacing[a]);
      for (int r = 0; r < 3; ++r) g[r] += geometry.direction[r][a] * d;
    }
    return g;
  }
};

HostVolume RandomVolume(Int3 size, uint32_t seed) {
  const Geometry g = ObliqueGeometry(size, seed % 2 == 0);
  return {g, RandomFloats(g.voxels(), seed, -50, 200)};
}

template <typename Visit>
void ForVoxels(Int3 n, const Visit& visit) {
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x) visit(Int3{x, y, z});
}

constexpr Int3 kSizes[] = {{1, 1, 1},   {2, 2, 2},   {3, 3, 3},   {17, 5, 9},  {127, 3, 4}, {128, 7, 3},
                           {129, 8, 8}, {40, 30, 1}, {1, 20, 30}, {20, 1, 30}, {300, 1, 1}, {9, 2, 9}};

class GradientTest : public DeviceTest {
 protected:
  double Mean(const HostVolume& v) {
    OwnedContext owned = *OwnedContext::Create(device(), MeanGradientWorkspaceBytes(v.geometry));
    const absl::StatusOr<double> mean = MeanGradientMagnitude(owned.context(), {Upload(v.values), v.geometry});
    EXPECT_OK(mean) << mean.status();
    return mean.value_or(-1);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(GradientTest);

TEST_P(GradientTest, MatchesDifferences) {
  uint32_t seed = 1;
  for (Int3 size : kSizes) {
    const HostVolume v = RandomVolume(size, seed++);
    SCOPED_TRACE(SizeString(v.geometry));
    const FieldView out{Poisoned<float>(3 * v.values.size()), v.geometry};
    ASSERT_OK(Gradient(ctx(), {Upload(v.values), v.geometry}, out));
    const std::vector<float> got = Download(out.data, 3 * v.values.size());
    size_t i = 0;
    ForVoxels(size, [&](Int3 index) {
      const Vec3d want = v.Gradient(index);
      for (int r = 0; r < 3; ++r) ASSERT_NEAR(got[i++], want[r], 3e-4) << index.x << " " << index.y << " " << index.z;
    });
  }
}

// A linear function of the physical point has its coefficients as gradient, faces included.
TEST_P(GradientTest, IsPhysical) {
  for (bool left_handed : {false, true}) {
    const Geometry g = ObliqueGeometry({12, 9, 7}, left_handed);
    const Vec3d slope{0.5, -2.0, 3.0};
    HostVolume v{g, {}};
    ForVoxels(g.size, [&](Int3 i) {
      v.values.push_back(Dot(slope, IndexToPhysical(g)({double(i.x), double(i.y), double(i.z)}) - g.origin));
    });
    const FieldView out{Poisoned<float>(3 * v.values.size()), g};
    ASSERT_OK(Gradient(ctx(), {Upload(v.values), g}, out));
    const std::vector<float> got = Download(out.data, 3 * v.values.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], slope[i % 3], 1e-4);
    EXPECT_NEAR(Mean(v), std::sqrt(Dot(slope, slope)), 1e-5);
  }
}

TEST_P(GradientTest, RefusesAnotherGrid) {
  Geometry other = ObliqueGeometry({4, 4, 4});
  other.spacing.x *= 2;
  EXPECT_EQ(Gradient(ctx(), {nullptr, ObliqueGeometry({4, 4, 4})}, {nullptr, other}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(GradientTest, MeanMagnitudeOverTheInterior) {
  uint32_t seed = 50;
  std::vector<Int3> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.push_back({70, 90, 40});
  sizes.push_back({9000, 5, 1});
  for (Int3 size : sizes) {
    const HostVolume v = RandomVolume(size, seed++);
    SCOPED_TRACE(SizeString(v.geometry));
    double sum = 0;
    int64_t count = 0;
    ForVoxels(size, [&](Int3 i) {
      for (int a = 0; a < 3; ++a)
        if (size[a] > 1 && (i[a] == 0 || i[a] == size[a] - 1)) return;
      const Vec3d g = v.Gradient(i);
      sum += std::sqrt(Dot(g, g));
      ++count;
    });
    const double want = count > 0 ? sum / count : 0;
    const double got = Mean(v);
    EXPECT_NEAR(got, want, 1e-5 * want);
    EXPECT_EQ(got, Mean(v));
  }
}

}  // namespace
}  // namespace intrawarp
