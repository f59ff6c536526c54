// SPDX-License-Identifier: Apache-2.0
#include "engine/image/bspline_filter.h"

#include <cmath>

#include "engine/image/warp.h"
#include "engine/transform/control_grid.h"
#include "engine/transform/transform.h"
#include "hwy/targets.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr float kFill = -77;

double Spline(double x) {
  const double a = std::abs(x);
  return a >= 2 ? 0 : a < 1 ? 2.0 / 3 - a * a + a * a * a / 2 : (2 - a) * (2 - a) * (2 - a) / 6;
}

int Mirror(int i, int n) {
  if (n == 1) return 0;
  while (i < 0 || i >= n) i = i < 0 ? -i : 2 * (n - 1) - i;
  return i;
}

// A line of n numbers, `stride` apart, as the coefficients of the spline through them: solves (c[i - 1] + 4 c[i] +
// c[i + 1]) / 6 = s[i] with mirrored neighbours by elimination.
void SolveLine(double* s, int n, size_t stride) {
  if (n == 1) return;
  std::vector<double> upper(n), right(n);
  for (int i = 0; i < n; ++i) {
    const double a = i == 0 ? 0 : i == n - 1 ? 2.0 / 6 : 1.0 / 6, c = i == 0 ? 2.0 / 6 : i == n - 1 ? 0 : 1.0 / 6;
    const double pivot = 4.0 / 6 - (i > 0 ? a * upper[i - 1] : 0);
    upper[i] = c / pivot;
    right[i] = (s[i * stride] - (i > 0 ? a * right[i - 1] : 0)) / pivot;
  }
  for (int i = n - 1; i >= 0; --i) s[i * stride] = right[i] - (i < n - 1 ? upper[i] * s[(i + 1) * stride] : 0);
}

struct Reference {
  Geometry geometry;
  std::vector<double> coefficients;

  Reference(const Geometry& g, const std::vector<float>& values)
      : geometry(g), coefficients(values.begin(), values.end()) {
    const Int3 n = g.size;
    const size_t row = n.x, plane = row * n.y;
    for (int z = 0; z < n.z; ++z)
      for (int y = 0; y < n.y; ++y) SolveLine(&coefficients[z * plane + y * row], n.x, 1);
    for (int z = 0; z < n.z; ++z)
      for (int x = 0; x < n.x; ++x) SolveLine(&coefficients[z * plane + x], n.y, row);
    for (size_t i = 0; i < plane; ++i) SolveLine(&coefficients[i], n.z, plane);
  }
  bool Inside(Vec3d i) const {
    for (int a = 0; a < 3; ++a)
      if (!(i[a] >= -0.5 && i[a] <= geometry.size[a] - 0.5)) return false;
    return true;
  }
  // Where float32 may decide either way whether an index is inside.
  bool Ambiguous(Vec3d i) const {
    for (int a = 0; a < 3; ++a)
      if (std::min(std::abs(i[a] + 0.5), std::abs(i[a] - (geometry.size[a] - 0.5))) < 1e-3) return true;
    return false;
  }
  double Sample(Vec3d i) const {
    if (!Inside(i)) return kFill;
    const Int3 n = geometry.size;
    for (int a = 0; a < 3; ++a) i[a] = std::clamp(i[a], 0.0, n[a] - 1.0);
    const int x0 = std::floor(i.x), y0 = std::floor(i.y), z0 = std::floor(i.z);
    double sum = 0;
    for (int z = z0 - 1; z <= z0 + 2; ++z)
      for (int y = y0 - 1; y <= y0 + 2; ++y)
        for (int x = x0 - 1; x <= x0 + 2; ++x) {
          const double c = coefficients[(size_t(Mirror(z, n.z)) * n.y + Mirror(y, n.y)) * n.x + Mirror(x, n.x)];
          sum += Spline(i.x - x) * Spline(i.y - y) * Spline(i.z - z) * c;
        }
    return sum;
  }
};

AffineMap Turned(Vec3d point, double angle, double scale, Vec3d shift) {
  AffineMap a;
  const double c = scale * std::cos(angle), s = scale * std::sin(angle);
  const double m[3][3] = {{c, -s, 0.05}, {s, c, -0.02}, {0.03, 0.01, scale}};
  for (int r = 0; r < 3; ++r)
    for (int k = 0; k < 3; ++k) a.m[r][k] = m[r][k];
  const Vec3d t = point + shift - a(point);
  for (int r = 0; r < 3; ++r) a.m[r][3] = t[r];
  return a;
}

class CubicTest : public DeviceTest {
 protected:
  template <typename Map>
  void ExpectSampled(const Reference& moving, const Geometry& out, const std::vector<float>& got, const Map& map) {
    const AffineMap to_point = IndexToPhysical(out), to_index = PhysicalToIndex(moving.geometry);
    size_t i = 0, inside = 0, ambiguous = 0;
    for (int z = 0; z < out.size.z; ++z)
      for (int y = 0; y < out.size.y; ++y)
        for (int x = 0; x < out.size.x; ++x, ++i) {
          const Vec3d index = to_index(map(to_point({double(x), double(y), double(z)}), i));
          ambiguous += moving.Ambiguous(index);
          if (moving.Ambiguous(index)) continue;
          inside += moving.Inside(index);
          ASSERT_NEAR(got[i], moving.Sample(index), 3e-4) << x << " " << y << " " << z;
        }
    EXPECT_GT(inside, 0);
    EXPECT_LT(ambiguous, 0.1 * i + 1);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(CubicTest);

TEST_P(CubicTest, CoefficientsAreThoseOfTheInterpolatingSpline) {
  const Int3 sizes[] = {{1, 1, 1},    {2, 1, 1},    {1, 2, 1},    {1, 1, 2},   {3, 2, 1},
                        {2, 3, 4},    {16, 15, 17}, {14, 30, 31}, {127, 9, 3}, {128, 8, 5},
                        {129, 33, 2}, {300, 3, 46}, {5, 1, 64},   {70, 61, 1}, {1, 29, 13}};
  uint32_t seed = 1;
  for (Int3 size : sizes) {
    const Geometry g = ObliqueGeometry(size);
    SCOPED_TRACE(SizeString(g));
    const std::vector<float> values = RandomFloats(g.voxels(), seed++, -1, 1);
    const Reference want(g, values);
    float* coefficients = Poisoned<float>(g.voxels());
    const float* image = Upload(values);
    ASSERT_OK(PrefilterCubic(ctx(), {image, g}, {coefficients, g}));
    const std::vector<float> got = Download(coefficients, g.voxels());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want.coefficients[i], 2e-5) << i;
    EXPECT_EQ(Download(image, g.voxels()), values);
  }
}

TEST_P(CubicTest, IdentityReturnsTheImage) {
  for (Int3 size : {Int3{50, 41, 13}, Int3{1, 1, 1}, Int3{2, 3, 2}, Int3{130, 35, 1}}) {
    const Geometry g = ObliqueGeometry(size, true);
    SCOPED_TRACE(SizeString(g));
    const std::vector<float> values = RandomFloats(g.voxels(), 3, -1, 1);
    float* out = Poisoned<float>(g.voxels());
    ASSERT_OK(WarpAffine(ctx(), {Upload(values), g}, AffineMap::Identity(), Interpolation::kCubic, kFill, {out, g}));
    const std::vector<float> got = Download(out, g.voxels());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], values[i], 3e-5) << i;
  }
}

TEST_P(CubicTest, AffineMatchesTheDefinition) {
  const Int3 moving_sizes[] = {{41, 37, 23}, {3, 2, 4}, {7, 5, 1}, {64, 2, 2}, {1, 9, 8}};
  const Int3 out_sizes[] = {{65, 17, 6}, {8, 9, 10}, {30, 31, 1}, {257, 5, 2}, {9, 20, 20}};
  for (int i = 0; i < 5; ++i) {
    Geometry g = ObliqueGeometry(moving_sizes[i], i % 2 == 0), out = ObliqueGeometry(out_sizes[i]);
    SCOPED_TRACE(SizeString(g));
    out.origin = out.origin + (Center(g) - Center(out));
    for (int a = 0; a < 3; ++a) out.spacing[a] = g.spacing[a] * 1.2 * g.size[a] / out.size[a];
    out.origin = out.origin + (Center(g) - Center(out));
    const std::vector<float> values = RandomFloats(g.voxels(), 30 + i, -1, 1);
    const AffineMap map = Turned(Center(g), g.is_2d() ? 0 : 0.2, 0.95, {0, 0, 0});
    float* result = Poisoned<float>(out.voxels());
    ASSERT_OK(WarpAffine(ctx(), {Upload(values), g}, map, Interpolation::kCubic, kFill, {result, out}));
    ExpectSampled(Reference(g, values), out, Download(result, out.voxels()), [&](Vec3d p, size_t) { return map(p); });
  }
}

TEST_P(CubicTest, FieldMatchesTheDefinition) {
  const Geometry g = ObliqueGeometry({45, 38, 11}, true);
  Geometry out = ObliqueGeometry({53, 27, 9});
  out.origin = out.origin + (Center(g) - Center(out));
  const std::vector<float> values = RandomFloats(g.voxels(), 7, -1, 1), u = RandomFloats(3 * out.voxels(), 8, -6, 6);
  float* result = Poisoned<float>(out.voxels());
  ASSERT_OK(WarpField(ctx(), {Upload(values), g}, {Upload(u), out}, Interpolation::kCubic, kFill, {result, out}));
  ExpectSampled(Reference(g, values), out, Download(result, out.voxels()), [&](Vec3d p, size_t i) {
    return p + Vec3d{u[3 * i], u[3 * i + 1], u[3 * i + 2]};
  });
}

TEST_P(CubicTest, MatchesOnEveryInstructionSet) {
  if (ctx().is_cuda()) GTEST_SKIP() << "only for the CPU";
  const Geometry g = ObliqueGeometry({45, 38, 11}, true);
  Geometry out = ObliqueGeometry({53, 27, 9});
  out.origin = out.origin + (Center(g) - Center(out));
  const std::vector<float> values = RandomFloats(g.voxels(), 7, -1, 1), u = RandomFloats(3 * out.voxels(), 8, -6, 6);
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(rest & -rest));
    float* result = Poisoned<float>(out.voxels());
    ASSERT_OK(WarpField(ctx(), {Upload(values), g}, {Upload(u), out}, Interpolation::kCubic, kFill, {result, out}));
    ExpectSampled(Reference(g, values), out, Download(result, out.voxels()), [&](Vec3d p, size_t i) {
      return p + Vec3d{u[3 * i], u[3 * i + 1], u[3 * i + 2]};
    });
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// The field of a transform, and its warp, are the same thing.
TEST_P(CubicTest, TransformsWarpAsTheirFieldsDo) {
  const Geometry g = ObliqueGeometry({31, 28, 17});
  Geometry out = ObliqueGeometry({29, 24, 15});
  out.origin = out.origin + (Center(g) - Center(out));
  Geometry nodes = *MakeControlGrid(out, {9, 8, 12});
  const AffineMap affine = Turned(Center(g), 0.1, 0.97, {1, -0.5, 0.7});
  const auto buffer = [&](const Geometry& grid, uint32_t seed) {
    const std::vector<float> values = RandomFloats(3 * grid.voxels(), seed, -4, 4);
    Buffer memory = *device().Allocate(values.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), values.data(), memory.bytes(), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return memory;
  };
  const std::vector<float> values = RandomFloats(g.voxels(), 7, -1, 1);
  const float* moving = Upload(values);
  const Transform transforms[] = {Transform(affine), Transform(buffer(out, 8), out),
                                  Transform(affine, buffer(nodes, 9), nodes, out)};
  for (const Transform& transform : transforms) {
    float* field = Poisoned<float>(3 * out.voxels());
    ASSERT_OK(EvaluateField(ctx(), transform, out, 0, out.voxels(), field));
    const std::vector<float> u = Download(field, 3 * out.voxels());
    float* result = Poisoned<float>(out.voxels());
    ASSERT_OK(WarpVolume(ctx(), transform, false, {moving, g}, Interpolation::kCubic, kFill, {result, out}));
    ExpectSampled(Reference(g, values), out, Download(result, out.voxels()), [&](Vec3d p, size_t i) {
      return p + Vec3d{u[3 * i], u[3 * i + 1], u[3 * i + 2]};
    });
  }
}

TEST_P(CubicTest, WarpsThroughTheInverseOfADisplacement) {
  const Geometry g = ObliqueGeometry({24, 21, 16});
  const Vec3d shift{2.2, -1.3, 3.1};
  std::vector<float> u;
  for (int64_t i = 0; i < g.voxels(); ++i)
    for (int a = 0; a < 3; ++a) u.push_back(static_cast<float>(shift[a]));
  Buffer memory = *device().Allocate(u.size() * sizeof(float), ctx().stream());
  ASSERT_OK(device().Copy(memory.as<float>(), u.data(), memory.bytes(), ctx().stream()));
  ASSERT_OK(device().Synchronize(ctx().stream()));
  const std::vector<float> values = RandomFloats(g.voxels(), 7, -1, 1);
  float* result = Poisoned<float>(g.voxels());
  ASSERT_OK(WarpVolume(ctx(), Transform(std::move(memory), g), true, {Upload(values), g}, Interpolation::kCubic, kFill,
                       {result, g}));
  const std::vector<float> got = Download(result, g.voxels());
  const Reference reference(g, values);
  const AffineMap to_point = IndexToPhysical(g), to_index = PhysicalToIndex(g);
  for (int z = 6; z < 10; ++z)
    for (int y = 6; y < 15; ++y)
      for (int x = 6; x < 18; ++x) {
        const Vec3d index = to_index(to_point({double(x), double(y), double(z)}) - shift);
        ASSERT_NEAR(got[(z * 21 + y) * 24 + x], reference.Sample(index), 1e-3);
      }
}

TEST_P(CubicTest, CubicPolynomialsAreReproducedInTheInterior) {
  Geometry g;
  g.size = {48, 40, 44};
  const auto polynomial = [&](double x, double y, double z) {
    const double a = x / 24 - 1, b = y / 20 - 1, c = z / 22 - 1;
    return a * a * a - 0.5 * b * b * b + 0.7 * c * c * c + a * b * c + b * b * c - 0.3 * a * a + 0.2 * c;
  };
  std::vector<float> values;
  for (int z = 0; z < 44; ++z)
    for (int y = 0; y < 40; ++y)
      for (int x = 0; x < 48; ++x) values.push_back(static_cast<float>(polynomial(x, y, z)));
  AffineMap shift = AffineMap::Identity();
  shift.m[0][3] = 0.37, shift.m[1][3] = -0.61, shift.m[2][3] = 0.5;
  float* out = Poisoned<float>(g.voxels());
  ASSERT_OK(WarpAffine(ctx(), {Upload(values), g}, shift, Interpolation::kCubic, kFill, {out, g}));
  const std::vector<float> got = Download(out, g.voxels());
  for (int z = 14; z < 30; ++z)
    for (int y = 14; y < 26; ++y)
      for (int x = 14; x < 34; ++x) {
        ASSERT_NEAR(got[(z * 40 + y) * 48 + x], polynomial(x + 0.37, y - 0.61, z + 0.5), 3e-6);
      }
}

TEST_P(CubicTest, OutsideAndWhatIsNotFiniteGiveTheFill) {
  const Geometry g = ObliqueGeometry({20, 10, 5});
  const std::vector<float> values = RandomFloats(1000, 6, -1, 1);
  std::vector<float> u(3000);
  const float bad[] = {std::nanf(""), INFINITY, -INFINITY, 3e38f};
  for (int k = 0; k < 4; ++k)
    for (int a = 0; a < 3; ++a) u[3 * (100 + 10 * k + a) + a] = bad[k];
  float* out = Poisoned<float>(1000);
  ASSERT_OK(WarpField(ctx(), {Upload(values), g}, {Upload(u), g}, Interpolation::kCubic, kFill, {out, g}));
  const std::vector<float> got = Download(out, 1000);
  for (int i = 0; i < 1000; ++i) {
    const bool is_bad = i >= 100 && i < 140 && i % 10 < 3;
    ASSERT_NEAR(got[i], is_bad ? kFill : values[i], 3e-5) << i;
  }
}

TEST_P(CubicTest, IsConstantBeyondTheOutermostCentres) {
  Geometry g;
  g.size = {6, 5, 4};
  const std::vector<float> values = RandomFloats(g.voxels(), 6, -1, 1);
  for (double shift : {-0.4, 0.4, -0.6}) {
    AffineMap map = AffineMap::Identity();
    map.m[0][3] = shift;
    float* out = Poisoned<float>(g.voxels());
    ASSERT_OK(WarpAffine(ctx(), {Upload(values), g}, map, Interpolation::kCubic, kFill, {out, g}));
    const std::vector<float> got = Download(out, g.voxels());
    const int edge = shift < 0 ? 0 : 5;
    for (int row = 0; row < 20; ++row) {
      EXPECT_NEAR(got[6 * row + edge], shift == -0.6 ? kFill : values[6 * row + edge], 3e-5);
    }
  }
}

TEST_P(CubicTest, TakesTheWorkspaceItSays) {
  const Geometry g = ObliqueGeometry({33, 21, 9});
  const float* image = Upload(RandomFloats(g.voxels(), 6, -1, 1));
  float* out = Poisoned<float>(g.voxels());
  auto enough = OwnedContext::Create(device(), CubicWarpWorkspaceBytes(g));
  ASSERT_OK(enough);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_OK(WarpAffine(enough->context(), {image, g}, AffineMap::Identity(), Interpolation::kCubic, 0, {out, g}));
  }
  auto small = OwnedContext::Create(device(), CubicWarpWorkspaceBytes(g) - 256);
  ASSERT_OK(small);
  EXPECT_EQ(WarpAffine(small->context(), {image, g}, AffineMap::Identity(), Interpolation::kCubic, 0, {out, g}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_OK(device().Synchronize(enough->context().stream()));
}

TEST_P(CubicTest, RefusesCoefficientsOnAnotherGrid) {
  const Geometry g = ObliqueGeometry({8, 8, 8});
  Geometry other = g;
  other.origin.x += 1;
  EXPECT_EQ(PrefilterCubic(ctx(), {nullptr, g}, {nullptr, other}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp
