// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/quality/quality_fixture.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace intrawarp::quality_test {

bool Inside(Int3 size, Vec3d index) {
  for (int a = 0; a < 3; ++a)
    if (index[a] < -0.5 || index[a] > size[a] - 0.5) return false;
  return true;
}

double ReferenceSample(const std::vector<float>& data, Int3 size, Vec3d index, int components, int component) {
  int lower[3];
  double weight[3];
  for (int a = 0; a < 3; ++a) {
    const double clamped = std::clamp(index[a], 0.0, size[a] - 1.0);
    lower[a] = static_cast<int>(clamped);
    weight[a] = clamped - lower[a];
  }
  double sum = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double w = 1;
    int at[3];
    for (int a = 0; a < 3; ++a) {
      const bool upper = corner >> a & 1;
      w *= upper ? weight[a] : 1 - weight[a];
      at[a] = lower[a] + upper;
    }
    if (w != 0) sum += w * data[components * Place(size, at[0], at[1], at[2]) + component];
  }
  return sum;
}

AffineMap MeetingAffine(const Geometry& fixed, const Geometry& moving) {
  AffineMap a;
  const double m[3][3] = {{0.97, -0.21, 0.05}, {0.18, 1.04, -0.11}, {-0.02, 0.13, 0.92}};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) a.m[r][c] = m[r][c];
  const Vec3d from = a.Linear(Center(fixed)), to = Center(moving);
  for (int r = 0; r < 3; ++r) a.m[r][3] = to[r] - from[r];
  return a;
}

Vec3d ReferenceSpline(const std::vector<float>& points, const Geometry& grid, Vec3d p, int derivative) {
  const Vec3d index = PhysicalToIndex(grid)(p);
  for (int a = 0; a < 3; ++a) {
    const bool flat = grid.size[a] == 1;
    if (index[a] < (flat ? -0.5 : 1) || index[a] > (flat ? 0.5 : grid.size[a] - 2)) return {};
  }
  const auto weight = [&](int axis, int node) {
    const double x = index[axis] - node, a = std::abs(x), sign = x < 0 ? -1 : 1;
    if (grid.size[axis] == 1) return axis == derivative ? 0.0 : 1.0;
    if (axis == derivative) return a < 1 ? sign * (1.5 * a * a - 2 * a) : a < 2 ? -sign * (2 - a) * (2 - a) / 2 : 0;
    return a < 1 ? 2.0 / 3 - a * a + a * a * a / 2 : a < 2 ? std::pow(2 - a, 3) / 6 : 0;
  };
  Vec3d u;
  ForEachVoxel(grid.size, [&](int x, int y, int z) {
    const double w = weight(0, x) * weight(1, y) * weight(2, z);
    for (int c = 0; c < 3; ++c) u[c] += w * points[3 * Place(grid.size, x, y, z) + c];
  });
  return u;
}

}  // namespace intrawarp::quality_test
