// SPDX-License-Identifier: Apache-2.0
// Velocities of every roughness and length, whose sampled exponentials must have positive determinants everywhere.
#include "engine/transform/velocity_unfolding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/quality/jacobian.h"
#include "engine/transform/vector_field.h"
#include "engine/transform/velocity.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

double Determinant(const Vec3d (&columns)[3]) {
  const Vec3d &a = columns[0], &b = columns[1], &c = columns[2];
  return a.x * (b.y * c.z - b.z * c.y) - a.y * (b.x * c.z - b.z * c.x) + a.z * (b.x * c.y - b.y * c.x);
}

// A displacement in voxels, float64.
class Reference {
 public:
  Reference(const std::vector<float>& mm, const Geometry& grid) : size_(grid.size) {
    const AffineMap to_index = PhysicalToIndex(grid);
    for (size_t i = 0; i < mm.size(); i += 3) values_.push_back(to_index.Linear({mm[i], mm[i + 1], mm[i + 2]}));
  }

  // The derivative of x + u(x), u trilinear, within the cell that begins at i, along `axis` at the place t of 0 to 1.
  Vec3d Column(Int3 i, int axis, Vec3d t) const {
    Vec3d column;
    column[axis] = 1;
    for (int k = 0; k < 8; ++k) {
      double weight = k >> axis & 1 ? 1 : -1;
      Int3 at = i;
      for (int a = 0; a < 3; ++a) {
        const int side = k >> a & 1;
        at[a] = std::min(i[a] + side, size_[a] - 1);
        if (a != axis) weight *= side ? t[a] : 1 - t[a];
      }
      column = column + weight * values_[(static_cast<size_t>(at.z) * size_.y + at.y) * size_.x + at.x];
    }
    return column;
  }

  double DeterminantAt(Int3 i, Vec3d t) const {
    const Vec3d columns[3] = {Column(i, 0, t), Column(i, 1, t), Column(i, 2, t)};
    return Determinant(columns);
  }

  // The least of the 64 determinants of edges.
  double LeastOfEdges(Int3 i) const {
    double least = std::numeric_limits<double>::max();
    for (int k = 0; k < 64; ++k) {
      const auto bit = [&](int b) { return double(k >> b & 1); };
      const Vec3d columns[3] = {Column(i, 0, {0, bit(0), bit(1)}), Column(i, 1, {bit(2), 0, bit(3)}),
                                Column(i, 2, {bit(4), bit(5), 0})};
      least = std::min(least, Determinant(columns));
    }
    return least;
  }

  template <typename Body>
  void ForEachCell(const Body& body) const {
    for (int z = 0; z < std::max(size_.z - 1, 1); ++z)
      for (int y = 0; y < std::max(size_.y - 1, 1); ++y)
        for (int x = 0; x < std::max(size_.x - 1, 1); ++x) body(Int3{x, y, z});
  }

 private:
  Int3 size_;
  std::vector<Vec3d> values_;
};

// Random, in mm, smoothed by `sigma` voxels and scaled to the largest component; in the plane when nz = 1.
std::vector<float> Noise(const Geometry& g, double sigma, float largest, uint32_t seed) {
  std::vector<float> v = RandomFloats(3 * g.voxels(), seed, -1, 1);
  if (g.is_2d()) {
    const AffineMap to_mm = IndexToPhysical(g);
    for (size_t i = 0; i < v.size(); i += 3) {
      const Vec3d p = to_mm.Linear({v[i], v[i + 1], 0});
      for (int c = 0; c < 3; ++c) v[i + c] = static_cast<float>(p[c]);
    }
  }
  OwnedContext cpu = *OwnedContext::Create(TestDevice("cpu"), size_t{64} << 20);
  EXPECT_OK(SmoothVectorField(cpu.context(), v.data(), g.size, {sigma, sigma, sigma}, v.data()));
  float peak = 0;
  for (float x : v) peak = std::max(peak, std::abs(x));
  for (float& x : v) x *= largest / peak;
  return v;
}

class VelocityUnfoldingTest : public DeviceTest {
 protected:
  Buffer Memory(const std::vector<float>& values) {
    Buffer memory = *device().Allocate(values.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), values.data(), values.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return memory;
  }

  // In an arena of exactly the size that is asked for.
  absl::StatusOr<UnfoldedTransform> Make(const std::vector<float>& velocity, const Geometry& g) {
    arenas_.push_back(*OwnedContext::Create(device(), UnfoldedTransformWorkspaceBytes(g.size)));
    auto result = MakeUnfoldedTransform(arenas_.back().context(), AffineMap::Identity(), Memory(velocity), g);
    EXPECT_OK(device().Synchronize(arenas_.back().context().stream()));
    return result;
  }

  int64_t Folded(const float* displacement, const Geometry& g) {
    OwnedContext exact = *OwnedContext::Create(device(), CountFoldedCellsWorkspaceBytes(g.size));
    return *CountFoldedCells(exact.context(), {displacement, g});
  }

  // Cells of exp(v), made without any remedy.
  int64_t FoldedWithoutRemedy(const std::vector<float>& velocity, const Geometry& g) {
    const auto plain = MakeVelocityTransform(ctx(), AffineMap::Identity(), Memory(velocity), g);
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Folded(plain->displacement().data, g);
  }

  std::vector<OwnedContext> arenas_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(VelocityUnfoldingTest);

const Int3 kSizes[] = {{1, 1, 1}, {1, 9, 1}, {7, 1, 1}, {2, 2, 2}, {5, 4, 3}, {33, 2, 7}, {45, 30, 1}, {21, 18, 13}};

TEST_P(VelocityUnfoldingTest, CountsTheCellsWhoseEdgesFold) {
  for (const Int3 size : kSizes) {
    const Geometry g = ObliqueGeometry(size, size.x % 2 == 0);
    for (const float amplitude : {0.1f, 0.6f, 3.0f, 200.0f}) {
      const std::vector<float> u = Noise(g, 0.7, amplitude, 5);
      const Reference reference(u, g);
      int64_t expected = 0;
      reference.ForEachCell([&](Int3 i) { expected += reference.LeastOfEdges(i) < kLeastCellDeterminant; });
      EXPECT_EQ(Folded(Upload(u), g), expected) << size.x << "x" << size.y << "x" << size.z << " " << amplitude;
    }
  }
}

TEST_P(VelocityUnfoldingTest, NanFolds) {
  const Geometry g = ObliqueGeometry({9, 8, 7});
  std::vector<float> u(3 * g.voxels());
  u[3 * 200 + 1] = NAN;
  EXPECT_EQ(Folded(Upload(u), g), 8);
}

TEST_P(VelocityUnfoldingTest, NoVelocityFolds) {
  for (const Int3 size : kSizes) {
    const Geometry g = ObliqueGeometry(size);
    for (const double sigma : {0.0, 1.5}) {
      for (const float amplitude : {2.0f, 20.0f, 1e5f}) {
        SCOPED_TRACE(testing::Message() << size.x << "x" << size.y << "x" << size.z << " " << sigma << " "
                                        << amplitude);
        const auto made = Make(Noise(g, sigma, amplitude, 7), g);
        ASSERT_OK(made) << made.status();
        const Transform& t = made->transform;
        EXPECT_EQ(Folded(t.displacement().data, g), 0);
        EXPECT_EQ(Folded(t.backward().data, g), 0);
        EXPECT_GT(MeasureJacobian(ctx(), t, g)->min, 0);
        // The map as it is evaluated, between the voxels.
        const Reference u(Download(t.displacement().data, 3 * g.voxels()), g);
        double least = 1;
        u.ForEachCell([&](Int3 i) {
          for (const Vec3d at : {Vec3d{0, 0, 0}, Vec3d{1, 1, 1}, Vec3d{0.5, 0.5, 0.5}, Vec3d{0.2, 0.9, 0.6}}) {
            least = std::min(least, u.DeterminantAt(i, at));
          }
        });
        EXPECT_GT(least, 0);
      }
    }
  }
}

TEST_P(VelocityUnfoldingTest, ASmoothVelocityIsKeptToTheBit) {
  const Geometry g = ObliqueGeometry({31, 24, 19});
  const std::vector<float> v = Noise(g, 4, 3, 8);
  ASSERT_EQ(FoldedWithoutRemedy(v, g), 0);
  const auto made = Make(v, g);
  ASSERT_OK(made);
  EXPECT_EQ(made->rounds, 0);
  EXPECT_EQ(Download(made->transform.velocity().data, v.size()), v);
}

// A vortex of a few voxels in a velocity that is smooth elsewhere.
TEST_P(VelocityUnfoldingTest, OnlyPathsOfFoldedCellsAreSmoothed) {
  for (const Int3 size : {Int3{64, 40, 16}, Int3{64, 40, 1}}) {
    Geometry g;
    g.size = size;
    std::vector<float> v(3 * g.voxels());
    const auto at = [&](int x, int y, int z) { return &v[3 * ((size_t(z) * size.y + y) * size.x + x)]; };
    for (int z = 0; z < size.z; ++z)
      for (int y = 0; y < size.y; ++y)
        for (int x = 0; x < size.x; ++x) {
          const double dx = x - 14, dy = y - 20, dz = z - size.z / 2, r2 = dx * dx + dy * dy + dz * dz;
          at(x, y, z)[0] = static_cast<float>(0.5 * std::sin(0.1 * y) - 6 * dy * std::exp(-r2 / 8));
          at(x, y, z)[1] = static_cast<float>(0.5 * std::cos(0.1 * x) + 6 * dx * std::exp(-r2 / 8));
        }
    ASSERT_GT(FoldedWithoutRemedy(v, g), 0);
    const auto made = Make(v, g);
    ASSERT_OK(made);
    EXPECT_GT(made->rounds, 0);
    EXPECT_EQ(Folded(made->transform.displacement().data, g), 0);
    const std::vector<float> after = Download(made->transform.velocity().data, v.size());
    for (size_t i = 0; i < v.size(); ++i) {
      if (i / 3 % size.x >= 40) {
        ASSERT_EQ(after[i], v[i]) << i;
      }
    }
  }
}

TEST_P(VelocityUnfoldingTest, InverseUndoesTheMap) {
  const Geometry g = ObliqueGeometry({31, 24, 19});
  const std::vector<float> v = Noise(g, 1.5, 6, 9);
  ASSERT_GT(FoldedWithoutRemedy(v, g), 0);
  const auto made = Make(v, g);
  ASSERT_OK(made);
  EXPECT_LT(MeasureInverseConsistency(ctx(), made->transform)->mean_mm, 0.15);
}

TEST_P(VelocityUnfoldingTest, RunsAreBitIdentical) {
  const Geometry g = ObliqueGeometry({31, 24, 19});
  const std::vector<float> v = Noise(g, 0.5, 30, 10);
  const auto first = Make(v, g), second = Make(v, g);
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_EQ(first->rounds, second->rounds);
  EXPECT_EQ(Download(first->transform.velocity().data, v.size()),
            Download(second->transform.velocity().data, v.size()));
}

TEST_P(VelocityUnfoldingTest, OnlyACancelEndsIt) {
  const Geometry g = ObliqueGeometry({21, 18, 13});
  const std::vector<float> v = Noise(g, 0.5, 30, 11);
  const Progress progress;
  for (const Decision decision : {Decision::kStop, Decision::kCancel}) {
    const auto made = MakeUnfoldedTransform(ctx([&](const Progress&) { return decision; }), AffineMap::Identity(),
                                            Memory(v), g, &progress);
    if (decision == Decision::kCancel) {
      EXPECT_EQ(made.status().code(), absl::StatusCode::kCancelled);
    } else {
      ASSERT_OK(made);
      EXPECT_EQ(Folded(made->transform.displacement().data, g), 0);
    }
  }
}

TEST_P(VelocityUnfoldingTest, RefusesAVelocityThatIsNotFinite) {
  const Geometry g = ObliqueGeometry({5, 4, 3});
  std::vector<float> v(3 * g.voxels());
  v[7] = NAN;
  EXPECT_EQ(Make(v, g).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace intrawarp
