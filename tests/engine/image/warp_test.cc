// SPDX-License-Identifier: Apache-2.0
#include "engine/image/warp.h"

#include <cmath>
#include <limits>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr float kFill = -77;

struct HostVolume {
  Geometry geometry;
  std::vector<float> values;

  // Distance, in voxels, of an index from the edge of the domain or, for the nearest voxel, of the decision between
  // two: where it is tiny, float32 may decide either way.
  bool Ambiguous(Vec3d i, Interpolation interpolation) const {
    for (int a = 0; a < 3; ++a) {
      const double edge = std::min(std::abs(i[a] + 0.5), std::abs(i[a] - (geometry.size[a] - 0.5)));
      const double half = std::abs(i[a] - std::floor(i[a]) - 0.5);
      if (edge < 1e-3 || (interpolation == Interpolation::kNearest && half < 1e-3)) return true;
    }
    return false;
  }
  float at(int x, int y, int z) const {
    const Int3 n = geometry.size;
    x = std::clamp(x, 0, n.x - 1), y = std::clamp(y, 0, n.y - 1), z = std::clamp(z, 0, n.z - 1);
    return values[(size_t{0} + z * n.y + y) * n.x + x];
  }
  double Sample(Vec3d i, Interpolation interpolation) const {
    for (int a = 0; a < 3; ++a)
      if (!(i[a] >= -0.5 && i[a] <= geometry.size[a] - 0.5)) return kFill;
    if (interpolation == Interpolation::kNearest) {
      return at(std::floor(i.x + 0.5), std::floor(i.y + 0.5), std::floor(i.z + 0.5));
    }
    double sum = 0;
    const int x = std::floor(i.x), y = std::floor(i.y), z = std::floor(i.z);
    for (int corner = 0; corner < 8; ++corner) {
      const int dx = corner & 1, dy = corner >> 1 & 1, dz = corner >> 2;
      const double wx = dx ? i.x - x : 1 - (i.x - x), wy = dy ? i.y - y : 1 - (i.y - y);
      const double wz = dz ? i.z - z : 1 - (i.z - z);
      sum += wx * wy * wz * at(x + dx, y + dy, z + dz);
    }
    return sum;
  }
};

HostVolume RandomVolume(Int3 size, uint32_t seed, bool left_handed = false) {
  const Geometry g = ObliqueGeometry(size, left_handed);
  return {g, RandomFloats(g.voxels(), seed, -1, 1)};
}

// Rotates about a point, scales a little and shifts.
AffineMap AboutPoint(Vec3d point, double angle, double scale, Vec3d shift) {
  const double c = scale * std::cos(angle), s = scale * std::sin(angle);
  AffineMap a;
  const double m[3][3] = {{c, -s, 0.05}, {s, c, -0.02}, {0.03, 0.01, scale}};
  for (int r = 0; r < 3; ++r)
    for (int k = 0; k < 3; ++k) a.m[r][k] = m[r][k];
  const Vec3d t = point + shift - a(point);
  for (int r = 0; r < 3; ++r) a.m[r][3] = t[r];
  return a;
}

class WarpTest : public DeviceTest {
 protected:
  // Compares with the moving volume sampled at map(p) for each voxel's physical point p.
  template <typename Map>
  void ExpectSampled(const HostVolume& moving, const Geometry& out, Interpolation interpolation,
                     const std::vector<float>& got, const Map& map) {
    const AffineMap to_point = IndexToPhysical(out), to_index = PhysicalToIndex(moving.geometry);
    size_t i = 0;
    int inside = 0, ambiguous = 0;
    for (int z = 0; z < out.size.z; ++z)
      for (int y = 0; y < out.size.y; ++y)
        for (int x = 0; x < out.size.x; ++x, ++i) {
          const Vec3d index = to_index(map(to_point({double(x), double(y), double(z)}), i));
          ambiguous += moving.Ambiguous(index, interpolation);
          if (moving.Ambiguous(index, interpolation)) continue;
          const double want = moving.Sample(index, interpolation);
          inside += want != kFill;
          ASSERT_NEAR(got[i], want, 2e-4) << x << " " << y << " " << z;
        }
    EXPECT_GT(inside, 0);
    EXPECT_LT(ambiguous, 0.1 * i + 1);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(WarpTest);

TEST_P(WarpTest, AffineMatchesTheDefinition) {
  const Int3 sizes[] = {{63, 9, 5}, {64, 4, 3}, {65, 17, 6}, {257, 5, 4}, {30, 31, 1}, {3, 3, 40}};
  uint32_t seed = 1;
  for (Int3 size : sizes) {
    for (Interpolation interpolation : {Interpolation::kLinear, Interpolation::kNearest}) {
      ++seed;
      const HostVolume moving = RandomVolume({41, 37, size.z == 1 ? 1 : 23}, seed, seed % 2 == 0);
      Geometry out = ObliqueGeometry(size, seed % 3 == 0);
      out.origin = out.origin + (Center(moving.geometry) - Center(out));
      SCOPED_TRACE(SizeString(out));
      // In 2-D the map stays in the plane: a shift along its axes.
      const Vec3d in_plane = IndexToPhysical(out).Linear({2.3, -3.1, 0});
      AffineMap map = AboutPoint(Center(out), 0.2, 0.95, {2, -3, 1});
      if (size.z == 1) {
        map = AffineMap::Identity();
        for (int r = 0; r < 3; ++r) map.m[r][3] = in_plane[r];
      }
      const VolumeView view{Poisoned<float>(out.voxels()), out};
      ASSERT_OK(WarpAffine(ctx(), {Upload(moving.values), moving.geometry}, map, interpolation, kFill, view));
      ExpectSampled(moving, out, interpolation, Download(view.data, out.voxels()),
                    [&](Vec3d p, size_t) { return map(p); });
    }
  }
}

TEST_P(WarpTest, IdentityIsExact) {
  const HostVolume moving = RandomVolume({50, 41, 13}, 3, true);
  const VolumeView view{Poisoned<float>(moving.values.size()), moving.geometry};
  for (Interpolation interpolation : {Interpolation::kLinear, Interpolation::kNearest}) {
    ASSERT_OK(
        WarpAffine(ctx(), {Upload(moving.values), moving.geometry}, AffineMap::Identity(), interpolation, kFill, view));
    const std::vector<float> got = Download(view.data, moving.values.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], moving.values[i], 2e-5) << i;
  }
}

TEST_P(WarpTest, FarFromTheOriginStaysPrecise) {
  HostVolume moving = RandomVolume({60, 50, 40}, 4);
  Geometry out = moving.geometry;
  moving.geometry.origin = moving.geometry.origin + Vec3d{9e6, -8e6, 9.5e6};
  AffineMap map = AffineMap::Identity();
  const Vec3d shift = moving.geometry.origin - out.origin + Vec3d{0.31, 0.17, 0.77};
  for (int r = 0; r < 3; ++r) map.m[r][3] = shift[r];
  const VolumeView view{Poisoned<float>(out.voxels()), out};
  ASSERT_OK(WarpAffine(ctx(), {Upload(moving.values), moving.geometry}, map, Interpolation::kLinear, kFill, view));
  ExpectSampled(moving, out, Interpolation::kLinear, Download(view.data, out.voxels()),
                [&](Vec3d p, size_t) { return map(p); });
}

TEST_P(WarpTest, NothingOfTheMovingImageGivesTheFill) {
  const HostVolume moving = RandomVolume({9, 8, 7}, 5);
  AffineMap map = AffineMap::Identity();
  map.m[2][3] = 1e6;
  const VolumeView view{Poisoned<float>(504), moving.geometry};
  ASSERT_OK(WarpAffine(ctx(), {Upload(moving.values), moving.geometry}, map, Interpolation::kLinear, kFill, view));
  EXPECT_EQ(Download(view.data, 504), std::vector<float>(504, kFill));
}

TEST_P(WarpTest, FieldMatchesTheDefinition) {
  const Int3 sizes[] = {{1, 1, 1}, {33, 7, 9}, {255, 6, 3}, {256, 5, 2}, {40, 29, 1}};
  uint32_t seed = 20;
  for (Int3 size : sizes) {
    for (Interpolation interpolation : {Interpolation::kLinear, Interpolation::kNearest}) {
      const HostVolume moving = RandomVolume({45, 38, 11}, seed++, true);
      Geometry out = ObliqueGeometry(size);
      out.origin = out.origin + (Center(moving.geometry) - Center(out));
      SCOPED_TRACE(SizeString(out));
      const std::vector<float> u = RandomFloats(3 * out.voxels(), seed++, -6, 6);
      const VolumeView view{Poisoned<float>(out.voxels()), out};
      ASSERT_OK(
          WarpField(ctx(), {Upload(moving.values), moving.geometry}, {Upload(u), out}, interpolation, kFill, view));
      ExpectSampled(moving, out, interpolation, Download(view.data, out.voxels()), [&](Vec3d p, size_t i) {
        return p + Vec3d{u[3 * i], u[3 * i + 1], u[3 * i + 2]};
      });
    }
  }
}

TEST_P(WarpTest, DisplacementThatIsNotFiniteGivesTheFill) {
  const HostVolume moving = RandomVolume({20, 10, 5}, 6);
  std::vector<float> u(3000);
  const float bad[] = {std::nanf(""), INFINITY, -INFINITY, 3e38f};
  for (int k = 0; k < 4; ++k)
    for (int a = 0; a < 3; ++a) u[3 * (100 + 10 * k + a) + a] = bad[k];
  const VolumeView view{Poisoned<float>(1000), moving.geometry};
  for (Interpolation interpolation : {Interpolation::kLinear, Interpolation::kNearest}) {
    ASSERT_OK(WarpField(ctx(), {Upload(moving.values), moving.geometry}, {Upload(u), moving.geometry}, interpolation,
                        kFill, view));
    const std::vector<float> got = Download(view.data, 1000);
    for (int i = 0; i < 1000; ++i) {
      const bool is_bad = i >= 100 && i < 140 && i % 10 < 3;
      ASSERT_NEAR(got[i], is_bad ? kFill : moving.values[i], 2e-5) << i;
    }
  }
}

TEST_P(WarpTest, RefusesAFieldOnAnotherGrid) {
  const Geometry g = ObliqueGeometry({8, 8, 8});
  Geometry other = g;
  other.origin.x += 1;
  EXPECT_EQ(WarpField(ctx(), {nullptr, g}, {nullptr, g}, Interpolation::kLinear, 0, {nullptr, other}).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp
