// SPDX-License-Identifier: Apache-2.0
// Transforms of a stationary velocity against the flow of the same velocity, integrated in float64.
#include "engine/transform/velocity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/quality/jacobian.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

Geometry Grid(bool is_2d, bool left_handed = false) {
  Geometry g = ObliqueGeometry({40, 44, is_2d ? 1 : 28}, left_handed);
  g.spacing = {1.25, 1.1, 1.5};
  return g;
}

// Waves in the frame of the grid, that vanish at its faces, mm.
class Velocity {
 public:
  Velocity(const Geometry& grid, double amplitude)
      : grid_(grid), to_index_(PhysicalToIndex(grid)), amplitude_(amplitude) {}

  Vec3d operator()(Vec3d p) const {
    const Vec3d index = to_index_(p);
    double window = 1;
    Vec3d t;
    for (int a = 0; a < 3; ++a) {
      if (grid_.size[a] == 1) continue;
      t[a] = index[a] / (grid_.size[a] - 1);
      if (t[a] < 0 || t[a] > 1) return {};
      window *= std::sin(M_PI * t[a]) * std::sin(M_PI * t[a]);
    }
    const Vec3d along{std::cos(3 * t.y + 1), std::sin(2 * t.x + t.z), grid_.is_2d() ? 0 : std::cos(2 * t.x - t.y)};
    Vec3d v;
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 3; ++c) v[r] += grid_.direction[r][c] * along[c];
    return amplitude_ * window * v;
  }

  // exp(time v)(p) by the classical Runge-Kutta method.
  Vec3d Flow(Vec3d p, double time) const {
    constexpr int kSteps = 200;
    const double h = time / kSteps;
    const Velocity& v = *this;
    for (int i = 0; i < kSteps; ++i) {
      const Vec3d a = v(p), b = v(p + h / 2 * a), c = v(p + h / 2 * b), d = v(p + h * c);
      p = p + h / 6 * (a + 2.0 * b + 2.0 * c + d);
    }
    return p;
  }

 private:
  Geometry grid_;
  AffineMap to_index_;
  double amplitude_;
};

AffineMap TestAffine() {
  AffineMap a;
  const double m[3][4] = {{0.97, -0.21, 0.05, 4.5}, {0.18, 1.04, -0.11, -7.25}, {-0.02, 0.13, 0.92, 3.0}};
  std::copy(&m[0][0], &m[0][0] + 12, &a.m[0][0]);
  return a;
}

template <typename Body>
void ForEachPoint(const Geometry& g, const Body& body) {
  const AffineMap to_physical = IndexToPhysical(g);
  for (int z = 0; z < g.size.z; ++z)
    for (int y = 0; y < g.size.y; ++y)
      for (int x = 0; x < g.size.x; ++x) body(to_physical({double(x), double(y), double(z)}));
}

// Fields are linear between voxels of 1.1 mm and more, which squarings feel where the waves are steepest.
constexpr double kFlowTolerance = 0.2, kInverseTolerance = 0.06;

double Length(Vec3d d) { return std::sqrt(Dot(d, d)); }

class VelocityTest : public DeviceTest {
 protected:
  absl::StatusOr<Transform> Make(const Velocity& velocity, const AffineMap& affine, const Geometry& g) {
    std::vector<float> values;
    ForEachPoint(g, [&](Vec3d p) {
      for (int c = 0; c < 3; ++c) values.push_back(static_cast<float>(velocity(p)[c]));
    });
    Buffer memory = *device().Allocate(values.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), values.data(), values.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));  // the arena's context has a stream of its own
    arenas_.push_back(*OwnedContext::Create(device(), VelocityTransformWorkspaceBytes(g.size)));
    auto transform = MakeVelocityTransform(arenas_.back().context(), affine, std::move(memory), g);
    EXPECT_OK(device().Synchronize(arenas_.back().context().stream()));
    return transform;
  }

  std::vector<OwnedContext> arenas_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(VelocityTest);

TEST_P(VelocityTest, FieldIsTheFlowAfterWhichTheMatrixComes) {
  for (const bool is_2d : {false, true}) {
    const Geometry g = Grid(is_2d, /*left_handed=*/true);
    const Velocity velocity(g, 6);
    AffineMap affine = TestAffine();
    if (is_2d) affine = AffineMap::Identity(), affine.m[0][3] = 3;
    const auto transform = Make(velocity, affine, g);
    ASSERT_OK(transform) << transform.status();
    EXPECT_TRUE(transform->has_velocity());
    EXPECT_FALSE(transform->is_affine());
    EXPECT_EQ(transform->resident_bytes(), 3 * 3 * sizeof(float) * g.voxels());
    float* out = Poisoned<float>(3 * g.voxels());
    ASSERT_OK(EvaluateField(ctx(), *transform, g, 0, g.voxels(), out));
    const std::vector<float> field = Download(out, 3 * g.voxels());
    double worst = 0, longest = 0;
    size_t i = 0;
    ForEachPoint(g, [&](Vec3d p) {
      const Vec3d moved = velocity.Flow(p, 1), truth = affine(moved) - p;
      longest = std::max(longest, Length(moved - p));
      worst = std::max(worst, Length(truth - Vec3d{field[i], field[i + 1], field[i + 2]}));
      i += 3;
    });
    EXPECT_GT(longest, 4) << is_2d;
    EXPECT_LT(worst, kFlowTolerance) << is_2d;
  }
}

TEST_P(VelocityTest, PointsGoThereAndBackWithTheNegativeVelocity) {
  const Geometry g = Grid(false);
  const Velocity velocity(g, 6);
  const AffineMap affine = TestAffine(), back = Inverse(affine);
  const auto transform = Make(velocity, affine, g);
  ASSERT_OK(transform);
  std::mt19937 engine(3);
  std::uniform_real_distribution<double> u(0, 1);
  std::vector<double> points, there;
  for (int i = 0; i < 500; ++i) {
    const Vec3d p = IndexToPhysical(g)({u(engine) * 39, u(engine) * 43, u(engine) * 27});
    points.insert(points.end(), {p.x, p.y, p.z});
  }
  points.insert(points.end(), {1000, -1000, 500});  // outside: A alone
  there = points;
  OwnedContext owned = *OwnedContext::Create(device(), MapPointsWorkspaceBytes(*transform, points.size() / 3));
  ASSERT_OK(MapPoints(owned.context(), *transform, false, absl::MakeSpan(there)));
  std::vector<double> again = there;
  ASSERT_OK(MapPoints(owned.context(), *transform, true, absl::MakeSpan(again)));
  for (size_t i = 0; i < points.size(); i += 3) {
    const Vec3d p{points[i], points[i + 1], points[i + 2]}, q{there[i], there[i + 1], there[i + 2]};
    EXPECT_LT(Length(q - affine(velocity.Flow(p, 1))), kFlowTolerance);
    const Vec3d r{again[i], again[i + 1], again[i + 2]};
    EXPECT_LT(Length(r - velocity.Flow(back(q), -1)), kFlowTolerance);
    EXPECT_LT(Length(r - p), kInverseTolerance);
  }
}

// A ramp says where it was sampled.
TEST_P(VelocityTest, ImagesAreWarpedThereAndBack) {
  const Geometry g = Grid(false);
  const Velocity velocity(g, 5);
  const AffineMap affine = TestAffine(), back = Inverse(affine);
  const auto transform = Make(velocity, affine, g);
  ASSERT_OK(transform);
  Geometry source = ObliqueGeometry({90, 90, 90});
  source.spacing = {1.3, 1.3, 1.3};
  source.origin = source.origin + (Center(g) - Center(static_cast<const Geometry&>(source)));
  const auto ramp = [&](Vec3d p) { return 0.7 * p.x - 0.4 * p.y + 1.1 * p.z; };
  std::vector<float> values;
  ForEachPoint(source, [&](Vec3d p) { values.push_back(static_cast<float>(ramp(p))); });
  const ConstVolumeView moving{Upload(values), source};
  for (const bool inverse : {false, true}) {
    float* out = Poisoned<float>(g.voxels());
    ASSERT_OK(WarpVolume(ctx(), *transform, inverse, moving, Interpolation::kLinear, -1e6f, {out, g}));
    const std::vector<float> warped = Download(out, g.voxels());
    size_t i = 0;
    int inside = 0;
    ForEachPoint(g, [&](Vec3d p) {
      const float value = warped[i++];
      if (value == -1e6f) return;
      ++inside;
      ASSERT_NEAR(value, ramp(inverse ? velocity.Flow(back(p), -1) : affine(velocity.Flow(p, 1))),
                  1.4 * kFlowTolerance);  // the ramp's slope is 1.4
    });
    EXPECT_GT(inside, g.voxels() / 2);
  }
}

TEST_P(VelocityTest, VelocityIsLinearOnOtherGridsAndZeroOutside) {
  const Geometry g = Grid(false);
  const Velocity velocity(g, 4);
  const auto transform = Make(velocity, AffineMap::Identity(), g);
  ASSERT_OK(transform);
  float* out = Poisoned<float>(3 * g.voxels());
  ASSERT_OK(EvaluateVelocity(ctx(), *transform, g, 0, g.voxels(), out));
  EXPECT_EQ(Download(out, 3 * g.voxels()), Download(transform->velocity().data, 3 * g.voxels()));

  Geometry other = g;
  other.size = {31, 52, 23};
  other.spacing = {1.9, 1.3, 2.3};
  other.origin = other.origin + (Center(g) - Center(static_cast<const Geometry&>(other)));
  const int64_t first = 700, count = other.voxels() - 1500;
  float* part = Poisoned<float>(3 * count);
  ASSERT_OK(EvaluateVelocity(ctx(), *transform, other, first, count, part));
  const std::vector<float> values = Download(part, 3 * count);
  int64_t place = 0;
  bool moved = false;
  ForEachPoint(other, [&](Vec3d p) {
    const int64_t i = 3 * (place++ - first);
    if (i < 0 || i >= 3 * count) return;
    const Vec3d v{values[i], values[i + 1], values[i + 2]};
    ASSERT_LT(Length(v - velocity(p)), 0.05);
    moved |= Length(v) > 1;
  });
  EXPECT_TRUE(moved);
  EXPECT_EQ(EvaluateVelocity(ctx(), *transform, g, 1, g.voxels(), out).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(VelocityTest, InverseConsistencyIsThatOfTheTwoFields) {
  for (const bool is_2d : {false, true}) {
    const Geometry g = Grid(is_2d, true);
    const auto transform = Make(Velocity(g, 7), TestAffine(), g);
    ASSERT_OK(transform);
    const std::vector<float> forward = Download(transform->displacement().data, 3 * g.voxels()),
                             backward = Download(transform->backward().data, 3 * g.voxels());
    const AffineMap to_index = PhysicalToIndex(g);
    double sum = 0, largest = 0;
    int64_t count = 0, place = 0;
    ForEachPoint(g, [&](Vec3d p) {
      const float* u = &forward[3 * place++];
      const Vec3d q = p + Vec3d{u[0], u[1], u[2]};
      Vec3d index = to_index(q);
      int base[3];
      for (int a = 0; a < 3; ++a) {
        if (index[a] < -0.5 || index[a] > g.size[a] - 0.5) return;
        index[a] = std::clamp(index[a], 0.0, g.size[a] - 1.0);
        base[a] = std::min(static_cast<int>(index[a]), std::max(g.size[a] - 2, 0));
      }
      Vec3d b;
      for (int corner = 0; corner < 8; ++corner) {
        double w = 1;
        int at[3];
        for (int a = 0; a < 3; ++a) {
          const int up = corner >> a & 1;
          at[a] = std::min(base[a] + up, g.size[a] - 1);
          w *= up ? index[a] - base[a] : 1 - (index[a] - base[a]);
        }
        const float* v = &backward[3 * ((int64_t{at[2]} * g.size.y + at[1]) * g.size.x + at[0])];
        b = b + w * Vec3d{v[0], v[1], v[2]};
      }
      const double distance = Length(q + b - p);
      sum += distance;
      largest = std::max(largest, distance);
      ++count;
    });
    OwnedContext owned = *OwnedContext::Create(device(), InverseConsistencyWorkspaceBytes(g));
    const auto result = MeasureInverseConsistency(owned.context(), *transform);
    ASSERT_OK(result) << result.status();
    EXPECT_NEAR(result->mean_mm, sum / count, 1e-5);
    EXPECT_NEAR(result->max_mm, largest, 1e-4);
    EXPECT_GT(result->mean_mm, 0);
    EXPECT_LT(result->mean_mm, 0.05 * 1.1);
  }
}

}  // namespace
}  // namespace intrawarp
