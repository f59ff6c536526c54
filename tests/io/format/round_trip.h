// SPDX-License-Identifier: Apache-2.0
// For round trips of transforms through other programs: grids, a transform's definition in float64, and points in its
// domain.
#ifndef INTRAWARP_TESTS_IO_FORMAT_ROUND_TRIP_H_
#define INTRAWARP_TESTS_IO_FORMAT_ROUND_TRIP_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "io/format/itk_transform.h"
#include "tests/io/format/grid_file_test.h"

namespace intrawarp::io {

inline constexpr int kPoints = 10000;
inline constexpr double kTolerance = 0.01;  // mm

struct NamedGrid {
  const char* name;
  Geometry geometry;
};

// Slices five times as thick as pixels are wide.
inline Geometry Anisotropic(Int3 size) {
  Geometry g;
  g.size = size;
  g.spacing = {0.6, 0.6, 3};
  g.origin = {-120.5, 33.25, -1432};
  return g;
}

inline std::vector<NamedGrid> Grids(Int3 size) {
  return {{"oblique", ObliqueGeometry(size)},
          {"anisotropic", Anisotropic(size)},
          {"left-handed", ObliqueGeometry(size, /*left_handed=*/true)}};
}

// Weights of the cubic B-spline at the four nodes around a place between two of them.
inline std::array<double, 4> SplineWeights(double t) {
  return {(1 - t) * (1 - t) * (1 - t) / 6, (3 * t * t * t - 6 * t * t + 4) / 6,
          (-3 * t * t * t + 3 * t * t + 3 * t + 1) / 6, t * t * t / 6};
}
inline std::array<double, 4> LinearWeights(double t) { return {0, 1 - t, t, 0}; }

// A(x + u(x)) in float64, after the definition.
inline Vec3d Mapped(const ItkTransform& t, Vec3d p) {
  if (t.kind == ItkTransform::Kind::kAffine) return t.affine(p);
  const bool spline = t.kind == ItkTransform::Kind::kControlGrid;
  const Vec3d index = PhysicalToIndex(t.grid)(p);
  int first[3];
  std::array<double, 4> weights[3];
  for (int a = 0; a < 3; ++a) {
    const double base = std::floor(index[a]);
    first[a] = static_cast<int>(base) - 1;
    weights[a] = spline ? SplineWeights(index[a] - base) : LinearWeights(index[a] - base);
  }
  Vec3d u;
  for (int k = 0; k < 64; ++k) {
    const int step[3] = {k & 3, k >> 2 & 3, k >> 4};
    int64_t at[3];
    double weight = 1;
    for (int a = 0; a < 3; ++a) {
      at[a] = std::clamp(first[a] + step[a], 0, t.grid.size[a] - 1);
      weight *= weights[a][step[a]];
    }
    const int64_t i = (at[2] * t.grid.size.y + at[1]) * t.grid.size.x + at[0];
    for (int c = 0; c < 3; ++c) u[c] += weight * t.vectors[3 * i + c];
  }
  return t.affine(p + u);
}

// Points where a transform is defined: within `margin` voxels of the grid's first and last.
inline std::vector<Vec3d> PointsIn(const Geometry& g, double margin) {
  std::mt19937 engine(7);
  const AffineMap to_physical = IndexToPhysical(g);
  std::vector<Vec3d> points(kPoints);
  for (Vec3d& p : points) {
    Vec3d index;
    for (int a = 0; a < 3; ++a) index[a] = std::uniform_real_distribution<>(margin, g.size[a] - 1 - margin)(engine);
    p = to_physical(index);
  }
  return points;
}
inline double MarginOf(ItkTransform::Kind kind) { return kind == ItkTransform::Kind::kControlGrid ? 1.001 : 0.001; }

inline AffineMap SomeAffine() {
  AffineMap map = AffineMap::Identity();
  const std::vector<float> noise = RandomFloats(12, 11, -0.2f, 0.2f);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) map.m[r][c] += (c == 3 ? 100 : 1) * noise[4 * r + c];
  return map;
}

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_FORMAT_ROUND_TRIP_H_
