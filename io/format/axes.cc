// SPDX-License-Identifier: Apache-2.0
#include "io/format/axes.h"

#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"

namespace intrawarp::io {
namespace {

Vec3d Column(const Geometry& g, int c) { return {g.direction[0][c], g.direction[1][c], g.direction[2][c]}; }
Vec3d Cross(Vec3d a, Vec3d b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }

void SetColumn(Geometry& g, int c, Vec3d v) {
  for (int r = 0; r < 3; ++r) g.direction[r][c] = v[r];
}

// The nearest orthonormal matrix, by Newton's iteration for the polar decomposition (Higham 1986): X <- (X + X^-T) / 2.
void Orthonormalise(Geometry& g) {
  for (int iteration = 0; iteration < 8; ++iteration) {
    AffineMap x;
    for (int r = 0; r < 3; ++r) std::copy(g.direction[r], g.direction[r] + 3, x.m[r]);
    const AffineMap inverse = Inverse(x);
    double change = 0;
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) {
        const double next = 0.5 * (x.m[r][c] + inverse.m[c][r]);
        change = std::max(change, std::abs(next - x.m[r][c]));
        g.direction[r][c] = next;
      }
    }
    if (change < 1e-15) return;
  }
}

bool IsIdentityLike(const Geometry& g) {
  for (const auto& row : g.direction)
    for (double v : row)
      if (v != 0 && std::abs(v) != 1) return false;
  return true;
}

// A change of sign makes -0.0, which prints differently from 0.
void DropNegativeZeros(Geometry& g) {
  for (int r = 0; r < 3; ++r) {
    g.origin[r] += 0.0;
    for (double& v : g.direction[r]) v += 0.0;
  }
}

}  // namespace

absl::StatusOr<Geometry> GeometryFromAxes(Int3 size, const Vec3d (&axes)[3], Vec3d origin) {
  Geometry g;
  g.size = size;
  g.origin = origin;
  for (int c = 0; c < 3; ++c) {
    const double length = std::hypot(axes[c].x, axes[c].y, axes[c].z);
    if (c == 2 && size.z == 1 && length == 0) {
      g.spacing[c] = 1;
      SetColumn(g, c, Cross(Column(g, 0), Column(g, 1)));
      continue;
    }
    g.spacing[c] = length;
    SetColumn(g, c, (1 / length) * axes[c]);
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(g));
  if (!IsIdentityLike(g)) Orthonormalise(g);
  DropNegativeZeros(g);
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(g));
  return g;
}

}  // namespace intrawarp::io
