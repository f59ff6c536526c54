// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/transform.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/transform/control_grid.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr float kPoison = -12345.0f;

AffineMap TestAffine() {
  AffineMap a;
  const double m[3][4] = {{0.97, -0.21, 0.05, 4.5}, {0.18, 1.04, -0.11, -7.25}, {-0.02, 0.13, 0.92, 3.0}};
  std::copy(&m[0][0], &m[0][0] + 12, &a.m[0][0]);
  return a;
}

// A rotation by 0.1 rad about z through `center`.
AffineMap RotationAbout(Vec3d center) {
  AffineMap a = AffineMap::Identity();
  a.m[0][0] = a.m[1][1] = std::cos(0.1);
  a.m[0][1] = -(a.m[1][0] = std::sin(0.1));
  const Vec3d moved = a.Linear(center);
  for (int r = 0; r < 3; ++r) a.m[r][3] = center[r] - moved[r];
  return a;
}

int64_t Place(Int3 size, int x, int y, int z) { return (int64_t{z} * size.y + y) * size.x + x; }

// Value of `components` interleaved floats at an index by the eight corners and their weights; false outside.
bool ReferenceSample(const std::vector<float>& data, int components, Int3 size, Vec3d index, double* value) {
  for (int a = 0; a < 3; ++a) {
    if (index[a] < -0.5 || index[a] > size[a] - 0.5) return false;
    index[a] = std::clamp(index[a], 0.0, size[a] - 1.0);
  }
  for (int c = 0; c < components; ++c) value[c] = 0;
  for (int z = 0; z < size.z; ++z) {
    for (int y = 0; y < size.y; ++y) {
      const double wzy = std::max(0.0, 1 - std::abs(index.z - z)) * std::max(0.0, 1 - std::abs(index.y - y));
      if (wzy == 0) continue;
      for (int x = 0; x < size.x; ++x) {
        const double w = wzy * std::max(0.0, 1 - std::abs(index.x - x));
        for (int c = 0; c < components; ++c) value[c] += w * data[components * Place(size, x, y, z) + c];
      }
    }
  }
  return true;
}

Vec3d ReferenceMap(const std::vector<float>& displacement, const Geometry& domain, Vec3d p) {
  double u[3];
  if (!ReferenceSample(displacement, 3, domain.size, PhysicalToIndex(domain)(p), u)) return p;
  return p + Vec3d{u[0], u[1], u[2]};
}

// p + u(p) for a control grid, by the definition; an axis with one control point has no spline.
Vec3d ReferenceSplineMap(const std::vector<float>& points, const Geometry& grid, Vec3d p) {
  const Vec3d index = PhysicalToIndex(grid)(p);
  const auto spline = [](double x) {
    const double a = std::abs(x);
    return a < 1 ? 2.0 / 3 - a * a + a * a * a / 2 : a < 2 ? std::pow(2 - a, 3) / 6 : 0;
  };
  double weight[3][4];
  int base[3], count[3];
  for (int a = 0; a < 3; ++a) {
    const bool flat = grid.size[a] == 1;
    if (index[a] < (flat ? -0.5 : 1) || index[a] > (flat ? 0.5 : grid.size[a] - 2)) return p;
    base[a] = flat ? 0 : std::min(static_cast<int>(index[a]) - 1, grid.size[a] - 4);
    count[a] = flat ? 1 : 4;
    for (int k = 0; k < count[a]; ++k) weight[a][k] = flat ? 1 : spline(index[a] - base[a] - k);
  }
  for (int z = 0; z < count[2]; ++z)
    for (int y = 0; y < count[1]; ++y)
      for (int x = 0; x < count[0]; ++x)
        for (int c = 0; c < 3; ++c)
          p[c] += weight[0][x] * weight[1][y] * weight[2][z] *
                  points[3 * Place(grid.size, base[0] + x, base[1] + y, base[2] + z) + c];
  return p;
}

double Distance(Vec3d a, Vec3d b) { return std::sqrt(Dot(a - b, a - b)); }

// A smooth displacement whose derivatives stay below 1, so that it is invertible.
std::vector<float> SmoothDisplacement(const Geometry& g, double amplitude_mm) {
  std::vector<float> u;
  for (int z = 0; z < g.size.z; ++z) {
    for (int y = 0; y < g.size.y; ++y) {
      for (int x = 0; x < g.size.x; ++x) {
        // 0 at the faces, so that no point leaves the domain or enters it.
        double window = std::sin(M_PI * x / std::max(g.size.x - 1, 1)) * std::sin(M_PI * y / std::max(g.size.y - 1, 1));
        if (g.size.z > 1) window *= std::sin(M_PI * z / (g.size.z - 1));
        u.push_back(static_cast<float>(amplitude_mm * window));
        u.push_back(static_cast<float>(-0.7 * amplitude_mm * window * std::cos(0.3 * x)));
        u.push_back(g.size.z > 1 ? static_cast<float>(0.5 * amplitude_mm * window * std::sin(0.2 * y)) : 0.0f);
      }
    }
  }
  return u;
}

class TransformTest : public DeviceTest {
 protected:
  Transform MakeDisplacement(const std::vector<float>& values, const Geometry& domain) {
    Buffer memory = *device().Allocate(values.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), values.data(), values.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Transform(std::move(memory), domain);
  }
  Transform MakeSpline(const std::vector<float>& points, const Geometry& grid, const AffineMap& affine,
                       const Geometry& domain) {
    Buffer memory = *device().Allocate(points.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), points.data(), points.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Transform(affine, std::move(memory), grid, domain);
  }
  // The whole field, with a guard behind it that must stay as it was.
  std::vector<float> Field(const Transform& transform, const Geometry& grid, int64_t first, int64_t count) {
    std::vector<float> guarded(3 * count + 8, kPoison);
    float* out = Upload(guarded);
    const absl::Status status = EvaluateField(ctx(), transform, grid, first, count, out);
    EXPECT_OK(status) << status;
    std::vector<float> result = Download(out, guarded.size());
    for (int i = 0; i < 8; ++i) EXPECT_EQ(result[3 * count + i], kPoison) << "wrote behind the end";
    result.resize(3 * count);
    return result;
  }
  std::vector<float> Warp(const Transform& transform, bool inverse, const std::vector<float>& moving,
                          const Geometry& moving_geometry, Interpolation interpolation, const Geometry& grid) {
    float* out = Poisoned<float>(grid.voxels());
    const absl::Status status =
        WarpVolume(ctx(), transform, inverse, {Upload(moving), moving_geometry}, interpolation, -5.0f, {out, grid});
    EXPECT_OK(status) << status;
    return Download(out, grid.voxels());
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(TransformTest);

TEST_P(TransformTest, AffineFieldEqualsReference) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{2, 1, 1}, Int3{5, 4, 3}, Int3{31, 2, 7}, Int3{32, 5, 1}, Int3{33, 3, 2},
                    Int3{97, 9, 5}, Int3{1, 70, 3}, Int3{260, 6, 2}}) {
    for (bool left_handed : {false, true}) {
      const Geometry g = ObliqueGeometry(size, left_handed);
      const AffineMap a = TestAffine();
      const std::vector<float> field = Field(Transform(a), g, 0, g.voxels());
      for (int z = 0; z < size.z; ++z) {
        for (int y = 0; y < size.y; ++y) {
          for (int x = 0; x < size.x; ++x) {
            const Vec3d p = IndexToPhysical(g)({double(x), double(y), double(z)}), d = a(p) - p;
            for (int c = 0; c < 3; ++c) {
              ASSERT_NEAR(field[3 * Place(size, x, y, z) + c], d[c], 1e-7 * std::abs(d[c]) + 1e-9)
                  << x << ' ' << y << ' ' << z << " of " << SizeString(g);
            }
          }
        }
      }
    }
  }
}

TEST_P(TransformTest, FieldKeepsItsPrecisionFarFromTheOrigin) {
  Geometry g = ObliqueGeometry({40, 30, 20});
  g.origin = {9.0e6, -8.0e6, 7.0e6};
  const Vec3d center = Center(g);
  const std::vector<float> field = Field(Transform(RotationAbout(center)), g, 0, g.voxels());
  for (int i : {0, 39}) {
    // The rotation as it acts on the difference to its centre.
    const Vec3d r = IndexToPhysical(g)({double(i), 0, 0}) - center;
    const Vec3d expected{(std::cos(0.1) - 1) * r.x - std::sin(0.1) * r.y,
                         std::sin(0.1) * r.x + (std::cos(0.1) - 1) * r.y, 0};
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(field[3 * i + c], expected[c], 1e-5);
  }
}

TEST_P(TransformTest, FieldInPiecesEqualsTheWhole) {
  const Geometry g = ObliqueGeometry({37, 11, 9}), domain = ObliqueGeometry({20, 14, 7}, true);
  std::vector<Transform> transforms;
  transforms.emplace_back(TestAffine());
  transforms.push_back(MakeDisplacement(RandomFloats(3 * domain.voxels(), 3, -5, 5), domain));
  transforms.push_back(MakeDisplacement(RandomFloats(3 * g.voxels(), 4, -5, 5), g));
  for (const Transform& transform : transforms) {
    const std::vector<float> whole = Field(transform, g, 0, g.voxels());
    for (int64_t piece : {1, 36, 37, 38, 100, 1025}) {
      for (int64_t first = 0; first < g.voxels(); first += 7 * piece) {
        const int64_t count = std::min(piece, g.voxels() - first);
        const std::vector<float> part = Field(transform, g, first, count);
        ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 3 * first)) << first << " + " << count;
      }
    }
  }
}

TEST_P(TransformTest, FieldRangeMustBePartOfTheGrid) {
  const Geometry g = ObliqueGeometry({4, 3, 2});
  const Transform t(TestAffine());
  float* out = Poisoned<float>(3 * 24);
  EXPECT_OK(EvaluateField(ctx(), t, g, 24, 0, out));
  const std::pair<int64_t, int64_t> bad[] = {{-1, 1}, {0, 25}, {24, 1},
                                             {0, -1}, {25, 0}, {1, std::numeric_limits<int64_t>::max()}};
  for (const auto& [first, count] : bad) {
    EXPECT_EQ(EvaluateField(ctx(), t, g, first, count, out).code(), absl::StatusCode::kInvalidArgument)
        << first << ' ' << count;
  }
}

TEST_P(TransformTest, DisplacementFieldOnItsOwnGridIsTheDisplacement) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{17, 5, 3}, Int3{40, 30, 1}}) {
    const Geometry g = ObliqueGeometry(size);
    const std::vector<float> u = RandomFloats(3 * g.voxels(), 8, -20, 20);
    EXPECT_EQ(Field(MakeDisplacement(u, g), g, 0, g.voxels()), u);
  }
}

TEST_P(TransformTest, DisplacementFieldOnAnotherGridIsTrilinearAndZeroOutside) {
  for (bool flat : {false, true}) {
    const Geometry domain = ObliqueGeometry({9, 8, flat ? 1 : 7}, true);
    Geometry grid = ObliqueGeometry({31, 23, flat ? 1 : 9});
    // Another direction when there is a volume, the same plane when there is not.
    if (flat) std::copy(&domain.direction[0][0], &domain.direction[0][0] + 9, &grid.direction[0][0]);
    grid.spacing = {0.61, 0.53, flat ? 2.5 : 1.7};
    // The centres nearly meet, and no voxel lies on a border where rounding decides.
    grid.origin = grid.origin + IndexToPhysical(domain)({4.13, 3.61, flat ? 0.0 : 3.17}) - Center(grid);
    const std::vector<float> u = RandomFloats(3 * domain.voxels(), 5, -9, 9);
    const std::vector<float> field = Field(MakeDisplacement(u, domain), grid, 0, grid.voxels());
    int inside = 0, outside = 0;
    for (int z = 0; z < grid.size.z; ++z) {
      for (int y = 0; y < grid.size.y; ++y) {
        for (int x = 0; x < grid.size.x; ++x) {
          const Vec3d p = IndexToPhysical(grid)({double(x), double(y), double(z)});
          const Vec3d d = ReferenceMap(u, domain, p) - p;
          ++(Dot(d, d) == 0 ? outside : inside);
          for (int c = 0; c < 3; ++c) ASSERT_NEAR(field[3 * Place(grid.size, x, y, z) + c], d[c], 2e-5);
        }
      }
    }
    EXPECT_GT(inside, 100);
    EXPECT_GT(outside, 100);
  }
}

TEST_P(TransformTest, WarpsThroughAffineAndItsInverse) {
  const Geometry moving = ObliqueGeometry({19, 16, 11}, true), grid = ObliqueGeometry({14, 13, 9});
  const std::vector<float> values = RandomFloats(moving.voxels(), 11);
  AffineMap a = RotationAbout(Center(grid));
  const Vec3d shift = Center(moving) - Center(grid);
  for (int r = 0; r < 3; ++r) a.m[r][3] += shift[r];
  for (bool inverse : {false, true}) {
    // The inverse of the inverse is the forward map.
    const std::vector<float> out =
        Warp(Transform(inverse ? Inverse(a) : a), inverse, values, moving, Interpolation::kLinear, grid);
    int inside = 0;
    for (int z = 0; z < grid.size.z; ++z) {
      for (int y = 0; y < grid.size.y; ++y) {
        for (int x = 0; x < grid.size.x; ++x) {
          double expected = -5;
          const Vec3d p = IndexToPhysical(grid)({double(x), double(y), double(z)});
          inside += ReferenceSample(values, 1, moving.size, PhysicalToIndex(moving)(a(p)), &expected);
          ASSERT_NEAR(out[Place(grid.size, x, y, z)], expected, 2e-5);
        }
      }
    }
    EXPECT_GT(inside, 100);
  }
}

TEST_P(TransformTest, RefusesTheInverseOfASingularMatrix) {
  AffineMap a = AffineMap::Identity();
  a.m[2][2] = 0;
  const Geometry g = ObliqueGeometry({4, 4, 4});
  float* data = Poisoned<float>(64);
  EXPECT_EQ(WarpVolume(ctx(), Transform(a), true, {data, g}, Interpolation::kLinear, 0, {data, g}).code(),
            absl::StatusCode::kFailedPrecondition);
  std::vector<double> points = {1, 2, 3};
  EXPECT_EQ(MapPoints(ctx(), Transform(a), true, absl::MakeSpan(points)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(TransformTest, WarpsThroughDisplacement) {
  const Geometry domain = ObliqueGeometry({9, 12, 7}), moving = ObliqueGeometry({15, 17, 6}, true);
  Geometry grid = domain;
  grid.size = {23, 21, 13};
  grid.spacing = {0.6, 0.5, 1.4};
  Geometry shifted = moving;
  const Vec3d shift = Center(grid) - Center(moving);
  shifted.origin = moving.origin + shift;
  const std::vector<float> u = RandomFloats(3 * domain.voxels(), 21, -3, 3);
  const std::vector<float> values = RandomFloats(moving.voxels(), 22);
  const Transform transform = MakeDisplacement(u, domain);
  for (Interpolation interpolation : {Interpolation::kLinear, Interpolation::kNearest}) {
    const std::vector<float> out = Warp(transform, false, values, shifted, interpolation, grid);
    int inside = 0;
    for (int z = 0; z < grid.size.z; ++z) {
      for (int y = 0; y < grid.size.y; ++y) {
        for (int x = 0; x < grid.size.x; ++x) {
          const Vec3d p = IndexToPhysical(grid)({double(x), double(y), double(z)});
          Vec3d index = PhysicalToIndex(shifted)(ReferenceMap(u, domain, p));
          double expected = -5;
          if (interpolation == Interpolation::kNearest) {
            // Rounding decides on the border between two voxels and at the edge.
            const Vec3d half = index - Vec3d{std::floor(index.x), std::floor(index.y), std::floor(index.z)};
            if (std::min({std::abs(half.x - 0.5), std::abs(half.y - 0.5), std::abs(half.z - 0.5)}) < 1e-4) continue;
            for (int c = 0; c < 3; ++c) {
              index[c] = std::floor(index[c] + 0.5) + (index[c] < -0.5 || index[c] > moving.size[c] - 0.5 ? 1e3 : 0);
            }
          }
          inside += ReferenceSample(values, 1, moving.size, index, &expected);
          ASSERT_NEAR(out[Place(grid.size, x, y, z)], expected, 5e-5);
        }
      }
    }
    EXPECT_GT(inside, 100);
  }
}

TEST_P(TransformTest, WarpsThroughTheInverseOfADisplacement) {
  for (bool flat : {false, true}) {
    const Geometry domain = ObliqueGeometry({24, 20, flat ? 1 : 10});
    const std::vector<float> u = SmoothDisplacement(domain, 1.5);
    const Transform transform = MakeDisplacement(u, domain);
    // A linear image shows where each voxel came from, to rounding; trilinear sampling is exact on it.
    std::vector<float> values;
    for (int z = 0; z < domain.size.z; ++z)
      for (int y = 0; y < domain.size.y; ++y)
        for (int x = 0; x < domain.size.x; ++x) values.push_back(x + 0.1f * y - 0.3f * z);
    const std::vector<float> out = Warp(transform, true, values, domain, Interpolation::kLinear, domain);
    for (int z = 0; z < domain.size.z; ++z) {
      for (int y = 0; y < domain.size.y; ++y) {
        for (int x = 0; x < domain.size.x; ++x) {
          const Vec3d target = IndexToPhysical(domain)({double(x), double(y), double(z)});
          Vec3d p = target;
          for (int i = 0; i < 500; ++i) p = p - (ReferenceMap(u, domain, p) - target);
          ASSERT_LT(Distance(ReferenceMap(u, domain, p), target), 1e-9);
          double expected = -5;
          ReferenceSample(values, 1, domain.size, PhysicalToIndex(domain)(p), &expected);
          ASSERT_NEAR(out[Place(domain.size, x, y, z)], expected, 1e-3);
        }
      }
    }
  }
}

// x -> 2c - x turns the axis around: the iteration runs away from every voxel but the centre's.
std::vector<float> Reversal(const Geometry& g) {
  std::vector<float> u;
  for (int z = 0; z < g.size.z; ++z) {
    for (int y = 0; y < g.size.y; ++y) {
      for (int x = 0; x < g.size.x; ++x) {
        const Vec3d d = IndexToPhysical(g)({0.5 * (g.size.x - 1), 0, 0}) - IndexToPhysical(g)({double(x), 0, 0});
        for (int c = 0; c < 3; ++c) u.push_back(static_cast<float>(2 * d[c]));
      }
    }
  }
  return u;
}

TEST_P(TransformTest, WithoutAnInverseAVoxelGetsFillAndAPointNan) {
  const Geometry g = ObliqueGeometry({21, 6, 4});
  const Transform transform = MakeDisplacement(Reversal(g), g);
  const std::vector<float> out =
      Warp(transform, true, std::vector<float>(g.voxels(), 7.0f), g, Interpolation::kNearest, g);
  for (int64_t i = 0; i < g.voxels(); ++i) EXPECT_EQ(out[i], i % g.size.x == 10 ? 7.0f : -5.0f) << i;

  const Vec3d folded = IndexToPhysical(g)({4, 3, 2}), outside = IndexToPhysical(g)({-40, 3, 2});
  std::vector<double> points = {folded.x, folded.y, folded.z, outside.x, outside.y, outside.z};
  ASSERT_OK(MapPoints(ctx(), transform, true, absl::MakeSpan(points)));
  for (int c = 0; c < 3; ++c) EXPECT_TRUE(std::isnan(points[c]));
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(points[3 + c], outside[c], 1e-9);
}

TEST_P(TransformTest, MapsPointsThroughAffineAndBack) {
  const Transform transform(TestAffine());
  const std::vector<float> random = RandomFloats(3 * 100, 31, -500, 500);
  const std::vector<double> points(random.begin(), random.end());
  std::vector<double> mapped = points;
  ASSERT_OK(MapPoints(ctx(), transform, false, absl::MakeSpan(mapped)));
  for (size_t i = 0; i < points.size(); i += 3) {
    const Vec3d expected = TestAffine()({points[i], points[i + 1], points[i + 2]});
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(mapped[i + c], expected[c], 1e-10);
  }
  ASSERT_OK(MapPoints(ctx(), transform, true, absl::MakeSpan(mapped)));
  for (size_t i = 0; i < points.size(); ++i) EXPECT_NEAR(mapped[i], points[i], 1e-9);
}

TEST_P(TransformTest, MapsPointsThroughDisplacementAndBack) {
  for (bool flat : {false, true}) {
    const Geometry domain = ObliqueGeometry({33, 29, flat ? 1 : 17}, true);
    const std::vector<float> u = SmoothDisplacement(domain, 2.0);
    const Transform transform = MakeDisplacement(u, domain);
    // From -2 to n + 1: within the domain, at its edge and outside.
    const std::vector<float> random = RandomFloats(3 * 1000, 41, 0, 1);
    std::vector<double> points;
    for (size_t i = 0; i < random.size(); i += 3) {
      const Vec3d p =
          IndexToPhysical(domain)({random[i] * (domain.size.x + 3.0) - 2, random[i + 1] * (domain.size.y + 3.0) - 2,
                                   flat ? 0 : random[i + 2] * (domain.size.z + 3.0) - 2});
      points.insert(points.end(), {p.x, p.y, p.z});
    }
    std::vector<double> mapped = points;
    ASSERT_OK(MapPoints(ctx(), transform, false, absl::MakeSpan(mapped)));
    for (size_t i = 0; i < points.size(); i += 3) {
      const Vec3d expected = ReferenceMap(u, domain, {points[i], points[i + 1], points[i + 2]});
      for (int c = 0; c < 3; ++c) ASSERT_NEAR(mapped[i + c], expected[c], 1e-5);
    }
    std::vector<double> back = mapped;
    ASSERT_OK(MapPoints(ctx(), transform, true, absl::MakeSpan(back)));
    for (size_t i = 0; i < points.size(); i += 3) {
      const Vec3d x{back[i], back[i + 1], back[i + 2]};
      // What is promised is T(x) = y.
      ASSERT_LT(Distance(ReferenceMap(u, domain, x), {mapped[i], mapped[i + 1], mapped[i + 2]}), 1.2e-4);
      ASSERT_LT(Distance(x, {points[i], points[i + 1], points[i + 2]}), 2e-3);
    }
  }
}

// --- Control grids: the same through a spline ---

struct SplineScene {
  Geometry image, grid;
  std::vector<float> points;
  AffineMap affine;
};

// Invertible: control points differ by less than their distance.
SplineScene MakeSplineScene(bool flat) {
  SplineScene s;
  s.image = ObliqueGeometry({33, 29, flat ? 1 : 17}, true);
  s.grid = *MakeControlGrid(s.image, {6.5, 4.5, 11});
  s.points = RandomFloats(3 * s.grid.voxels(), 61, -1.2f, 1.2f);
  s.affine = RotationAbout(Center(s.image));
  // Stays in the plane of a 2-D image.
  if (!flat) return s;
  AffineMap turn = AffineMap::Identity();
  turn.m[0][3] = 1.5 * s.image.direction[0][0];
  turn.m[1][3] = 1.5 * s.image.direction[1][0];
  turn.m[2][3] = 1.5 * s.image.direction[2][0];
  s.affine = turn;
  for (size_t i = 0; i < s.points.size(); i += 3) {
    const Vec3d c{s.points[i], s.points[i + 1], 0};
    for (int r = 0; r < 3; ++r) {
      s.points[i + r] = static_cast<float>(s.image.direction[r][0] * c.x + s.image.direction[r][1] * c.y);
    }
  }
  return s;
}

TEST_P(TransformTest, MapsPointsThroughAControlGridAndBack) {
  for (bool flat : {false, true}) {
    const SplineScene s = MakeSplineScene(flat);
    const Transform transform = MakeSpline(s.points, s.grid, s.affine, s.image);
    EXPECT_FALSE(transform.is_affine());
    const std::vector<float> random = RandomFloats(3 * 1000, 62, 0, 1);
    std::vector<double> points;
    for (size_t i = 0; i < random.size(); i += 3) {
      const Vec3d p = IndexToPhysical(s.image)(
          {random[i] * 40.0 - 4, random[i + 1] * 36.0 - 4, flat ? 0 : random[i + 2] * 24.0 - 4});
      points.insert(points.end(), {p.x, p.y, p.z});
    }
    std::vector<double> mapped = points;
    OwnedContext exact = *OwnedContext::Create(device(), MapPointsWorkspaceBytes(transform, 1000));
    ASSERT_OK(MapPoints(exact.context(), transform, false, absl::MakeSpan(mapped)));
    int moved = 0;
    for (size_t i = 0; i < points.size(); i += 3) {
      const Vec3d p{points[i], points[i + 1], points[i + 2]}, q = ReferenceSplineMap(s.points, s.grid, p);
      const Vec3d expected = s.affine(q);
      moved += Distance(p, q) > 0.1;
      for (int c = 0; c < 3; ++c) ASSERT_NEAR(mapped[i + c], expected[c], 1e-5);
    }
    EXPECT_GT(moved, 300);
    std::vector<double> back = mapped;
    ASSERT_OK(MapPoints(exact.context(), transform, true, absl::MakeSpan(back)));
    int compared = 0;
    for (size_t i = 0; i < points.size(); i += 3) {
      // u jumps to 0 where its domain ends: near its faces there may be no inverse, or two.
      const Vec3d index = PhysicalToIndex(s.grid)({points[i], points[i + 1], points[i + 2]});
      bool inner = true;
      for (int a = 0; a < 3; ++a) {
        inner &= s.grid.size[a] == 1 || (index[a] > 1.5 && index[a] < s.grid.size[a] - 2.5);
      }
      if (!inner) continue;
      ++compared;
      const Vec3d x{back[i], back[i + 1], back[i + 2]};
      ASSERT_LT(Distance(s.affine(ReferenceSplineMap(s.points, s.grid, x)), {mapped[i], mapped[i + 1], mapped[i + 2]}),
                1.5e-4);
      ASSERT_LT(Distance(x, {points[i], points[i + 1], points[i + 2]}), 2e-3);
    }
    EXPECT_GT(compared, 200);
  }
}

TEST_P(TransformTest, FieldOfAControlGridIsItsMap) {
  for (bool flat : {false, true}) {
    const SplineScene s = MakeSplineScene(flat);
    const Transform transform = MakeSpline(s.points, s.grid, s.affine, s.image);
    const int64_t first = 40, count = s.image.voxels() - 77;
    const std::vector<float> field = Field(transform, s.image, first, count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = first + i;
      const Vec3d p = IndexToPhysical(s.image)({double(at % 33), double(at / 33 % 29), double(at / 33 / 29)});
      const Vec3d d = s.affine(ReferenceSplineMap(s.points, s.grid, p)) - p;
      for (int c = 0; c < 3; ++c) ASSERT_NEAR(field[3 * i + c], d[c], 1e-5);
    }
  }
}

TEST_P(TransformTest, WarpsThroughAControlGridAndItsInverse) {
  for (bool flat : {false, true}) {
    const SplineScene s = MakeSplineScene(flat);
    const Transform transform = MakeSpline(s.points, s.grid, s.affine, s.image);
    // A linear image shows where each voxel came from.
    std::vector<float> values;
    for (int z = 0; z < s.image.size.z; ++z)
      for (int y = 0; y < s.image.size.y; ++y)
        for (int x = 0; x < s.image.size.x; ++x) values.push_back(x + 0.1f * y - 0.3f * z);
    const std::vector<float> forward = Warp(transform, false, values, s.image, Interpolation::kLinear, s.image);
    const std::vector<float> inverse = Warp(transform, true, values, s.image, Interpolation::kLinear, s.image);
    int inside = 0, inverted = 0;
    for (int z = 0; z < s.image.size.z; ++z) {
      for (int y = 0; y < s.image.size.y; ++y) {
        for (int x = 0; x < s.image.size.x; ++x) {
          const int64_t i = Place(s.image.size, x, y, z);
          const Vec3d p = IndexToPhysical(s.image)({double(x), double(y), double(z)});
          const Vec3d index = PhysicalToIndex(s.image)(s.affine(ReferenceSplineMap(s.points, s.grid, p)));
          // Rounding decides at the edge.
          bool edge = false;
          for (int a = 0; a < 3; ++a) {
            edge |= std::abs(index[a] + 0.5) < 1e-4 || std::abs(index[a] - s.image.size[a] + 0.5) < 1e-4;
          }
          double expected = -5;
          inside += ReferenceSample(values, 1, s.image.size, index, &expected);
          if (!edge) {
            ASSERT_NEAR(forward[i], expected, 1e-4);
          }
          // Well inside, where the inverse exists.
          if (x < 5 || x > 27 || y < 5 || y > 23 || (!flat && (z < 5 || z > 11))) continue;
          const Vec3d target = Inverse(s.affine)(p);
          Vec3d q = target;
          for (int k = 0; k < 100; ++k) q = q - (ReferenceSplineMap(s.points, s.grid, q) - target);
          ASSERT_LT(Distance(ReferenceSplineMap(s.points, s.grid, q), target), 1e-9);
          ReferenceSample(values, 1, s.image.size, PhysicalToIndex(s.image)(q), &expected);
          ASSERT_NEAR(inverse[i], expected, 1e-3);
          ++inverted;
        }
      }
    }
    EXPECT_GT(inside, 500);
    EXPECT_GT(inverted, 300);
  }
}

TEST_P(TransformTest, PointsComeInThreesAndMayBeNone) {
  const Geometry g = ObliqueGeometry({3, 3, 3});
  const Transform transform = MakeDisplacement(std::vector<float>(81, 1.0f), g);
  std::vector<double> points = {1, 2, 3, 4};
  EXPECT_EQ(MapPoints(ctx(), transform, false, absl::MakeSpan(points)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_OK(MapPoints(ctx(), transform, true, {}));
}

TEST_P(TransformTest, WorkspaceIsWhatMapPointsSaysAndIsGivenBack) {
  const Geometry g = ObliqueGeometry({8, 8, 8});
  const Transform transform = MakeDisplacement(SmoothDisplacement(g, 0.5), g);
  std::vector<double> points(3 * 777, 1.0);
  OwnedContext owned = *OwnedContext::Create(device(), MapPointsWorkspaceBytes(transform, 777));
  const ExecContext small = owned.context();
  EXPECT_OK(MapPoints(small, transform, true, absl::MakeSpan(points)));
  EXPECT_EQ(small.arena().used(), 0u);
}

}  // namespace
}  // namespace intrawarp
