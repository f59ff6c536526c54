// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/jacobian.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "engine/transform/control_grid.h"
#include "tests/engine/device_test.h"
#include "tests/engine/quality/quality_fixture.h"

namespace intrawarp::quality_test {
namespace {

// --- Jacobian ---

// det(grad T) by the definition: central differences of T at the voxels (one-sided at the faces).
double ReferenceJacobian(const std::function<Vec3d(Vec3d)>& transform, const Geometry& g, Int3 v) {
  AffineMap d = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) {
    Vec3d low{double(v.x), double(v.y), double(v.z)}, high = low;
    double steps = 2;
    if (g.size[a] == 1) {
      // Nothing is known across a plane; the transform is taken not to stretch it.
      for (int r = 0; r < 3; ++r) d.m[r][a] = g.direction[r][a] * g.spacing[a];
      continue;
    }
    v[a] > 0 ? low[a] -= 1 : steps -= 1;
    v[a] < g.size[a] - 1 ? high[a] += 1 : steps -= 1;
    const Vec3d difference = transform(IndexToPhysical(g)(high)) - transform(IndexToPhysical(g)(low));
    for (int r = 0; r < 3; ++r) d.m[r][a] = difference[r] / steps;
  }
  return Determinant(d) / Determinant(IndexToPhysical(g));
}

TEST_P(QualityTest, JacobianOfAnAffineMapIsItsDeterminant) {
  const Geometry g = ObliqueGeometry({5, 4, 3});
  AffineMap a = MeetingAffine(g, g);
  absl::StatusOr<JacobianStatistics> j = MeasureJacobian(ctx(), Transform(a), g);
  ASSERT_OK(j);
  EXPECT_EQ(j->min, Determinant(a));
  EXPECT_EQ(j->max, Determinant(a));
  EXPECT_EQ(j->nonpositive_fraction, 0);
  for (int c = 0; c < 4; ++c) a.m[0][c] *= -1;
  j = MeasureJacobian(ctx(), Transform(a), g);
  ASSERT_OK(j);
  EXPECT_LT(j->max, 0);
  EXPECT_EQ(j->nonpositive_fraction, 1);
}

TEST_P(QualityTest, JacobianOfADisplacementEqualsReference) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{2, 3, 2}, Int3{23, 19, 1}, Int3{37, 31, 17}}) {
    for (bool same_grid : {true, false}) {
      const Geometry fixed = ObliqueGeometry(size);
      Geometry domain = fixed;
      if (!same_grid) {
        // Shifted in its plane, so that a 2-D image meets it.
        domain = ObliqueGeometry({size.x + 1, size.y + 2, size.z}, true);
        domain.origin = domain.origin +
                        IndexToPhysical(fixed)({size.x / 2 + 0.23, size.y / 2 + 0.31, size.z / 2 + 0.0}) -
                        Center(domain);
        domain.spacing.z *= size.z > 1 ? 1.1 : 1;
      }
      const std::vector<float> u = RandomFloats(3 * domain.voxels(), 22, -0.8f, 0.8f);
      const auto transform = [&](Vec3d p) {
        const Vec3d index = PhysicalToIndex(domain)(p);
        // On its own grid a face's voxel is inside, whatever the rounding.
        if (!Inside(domain.size, index)) return p;
        Vec3d q = p;
        for (int c = 0; c < 3; ++c) q[c] += ReferenceSample(u, domain.size, index, 3, c);
        return q;
      };
      double low = 1e9, high = -1e9, nonpositive = 0;
      ForEachVoxel(size, [&](int x, int y, int z) {
        const double j = ReferenceJacobian(transform, fixed, {x, y, z});
        low = std::min(low, j);
        high = std::max(high, j);
        nonpositive += j <= 0;
      });
      OwnedContext owned = *OwnedContext::Create(device(), JacobianWorkspaceBytes(fixed));
      const absl::StatusOr<JacobianStatistics> result =
          MeasureJacobian(owned.context(), MakeDisplacement(u, domain), fixed);
      ASSERT_OK(result) << result.status();
      EXPECT_NEAR(result->min, low, 1e-4) << SizeString(fixed) << same_grid;
      EXPECT_NEAR(result->max, high, 1e-4) << SizeString(fixed) << same_grid;
      EXPECT_NEAR(result->nonpositive_fraction, nonpositive / fixed.voxels(), 1e-9);
      if (size.z == 17) {
        EXPECT_GT(nonpositive, 0);
      }
    }
  }
}

TEST_P(QualityTest, JacobianOfALinearDisplacementIsConstantUpToTheFaces) {
  const Geometry g = ObliqueGeometry({20, 18, 16}, true);
  const AffineMap a = MeetingAffine(g, g);
  std::vector<float> u;
  ForEachVoxel(g.size, [&](int x, int y, int z) {
    const Vec3d p = IndexToPhysical(g)({double(x), double(y), double(z)}), d = a(p) - p;
    u.insert(u.end(), {static_cast<float>(d.x), static_cast<float>(d.y), static_cast<float>(d.z)});
  });
  const absl::StatusOr<JacobianStatistics> j = MeasureJacobian(ctx(), MakeDisplacement(u, g), g);
  ASSERT_OK(j);
  EXPECT_NEAR(j->min, Determinant(a), 1e-5);
  EXPECT_NEAR(j->max, Determinant(a), 1e-5);
}

TEST_P(QualityTest, JacobianOfAControlGridIsExact) {
  for (bool flat : {false, true}) {
    const Geometry g = ObliqueGeometry({27, 21, flat ? 1 : 11});
    const Geometry grid = *MakeControlGrid(g, {5, 5, 9});
    const std::vector<float> points = RandomFloats(3 * grid.voxels(), 34, -14, 14);
    const AffineMap affine = MeetingAffine(g, g), to_index = PhysicalToIndex(grid);
    double low = 1e9, high = -1e9, nonpositive = 0;
    ForEachVoxel(g.size, [&](int x, int y, int z) {
      const Vec3d p = IndexToPhysical(g)({double(x), double(y), double(z)});
      AffineMap j = AffineMap::Identity();
      for (int a = 0; a < 3; ++a) {
        const Vec3d d = ReferenceSpline(points, grid, p, a);
        for (int r = 0; r < 3; ++r)
          for (int c = 0; c < 3; ++c) j.m[r][c] += d[r] * to_index.m[a][c];
      }
      const double determinant = Determinant(affine) * Determinant(j);
      low = std::min(low, determinant);
      high = std::max(high, determinant);
      nonpositive += determinant <= 0;
    });
    OwnedContext owned = *OwnedContext::Create(device(), JacobianWorkspaceBytes(g, /*has_control_grid=*/true));
    const absl::StatusOr<JacobianStatistics> result =
        MeasureJacobian(owned.context(), MakeSpline(points, grid, affine), g);
    ASSERT_OK(result) << result.status();
    EXPECT_NEAR(result->min, low, 1e-4 + 1e-5 * std::abs(low));
    EXPECT_NEAR(result->max, high, 1e-4 + 1e-5 * std::abs(high));
    EXPECT_NEAR(result->nonpositive_fraction, nonpositive / g.voxels(), 1e-9);
    EXPECT_GT(nonpositive, 0);
  }
}

}  // namespace
}  // namespace intrawarp::quality_test
