// SPDX-License-Identifier: Apache-2.0
#include "client/phantom/shapes.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace intrawarp::phantom {
namespace {

Vec3d Cross(Vec3d a, Vec3d b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }

// A unit vector at a right angle to `normal`.
Vec3d Across(Vec3d normal) { return Unit(Cross(normal, std::abs(normal.z) < 0.9 ? Vec3d{0, 0, 1} : Vec3d{1, 0, 0})); }

}  // namespace

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }

Vec3d Unit(Vec3d v) { return (1 / Length(v)) * v; }

Vec3d RandomDirection(UniformRandom& random) {
  for (;;) {
    const Vec3d v{random(-1, 1), random(-1, 1), random(-1, 1)};
    const double square = Dot(v, v);
    if (square > 1e-3 && square <= 1) return (1 / std::sqrt(square)) * v;
  }
}

Distance Ball(Vec3d center, double radius) {
  return [=](Vec3d p) { return Length(p - center) - radius; };
}

// Legendre polynomials of degree 2 and 3 about random axes: their mean over all directions is 0.
Distance LobedBall(Vec3d center, double radius, uint64_t seed) {
  constexpr double kLobe = 0.045;
  UniformRandom random(seed);
  std::array<Vec3d, 3> axes;
  for (Vec3d& axis : axes) axis = RandomDirection(random);
  return [=](Vec3d p) {
    const double r = Length(p - center);
    if (r < 0.25 * radius) return r - radius;
    double bulge = 0;
    for (const Vec3d& axis : axes) {
      const double t = Dot(p - center, axis) / r;
      bulge += 0.5 * (3 * t * t - 1) + 0.5 * (5 * t * t * t - 3 * t);
    }
    return r - radius * (1 + kLobe * bulge);
  };
}

Distance Rod(Vec3d from, Vec3d to, double radius) {
  const double half = 0.5 * Length(to - from);
  const Vec3d axis = Unit(to - from), center = 0.5 * (from + to);
  return [=](Vec3d p) {
    const double along = Dot(p - center, axis), across = Length(p - center - along * axis);
    return std::max(std::abs(along) - half, across - radius);
  };
}

Distance Plate(Vec3d center, Vec3d normal, double across, double half_width) {
  const Vec3d u = Across(normal), v = Cross(normal, u);
  return [=](Vec3d p) {
    const Vec3d q = p - center;
    return std::max(
        {std::abs(Dot(q, normal)) - across, std::abs(Dot(q, u)) - half_width, std::abs(Dot(q, v)) - half_width});
  };
}

}  // namespace intrawarp::phantom
