// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/start/rotations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace intrawarp {
namespace {

constexpr double kSame = 1 - 1e-9;
constexpr int kPlaneTurns = 24;

Quaternion Normalized(const Quaternion& q) {
  const double s = 1 / std::sqrt(Dot(q, q));
  return {s * q.w, s * q.x, s * q.y, s * q.z};
}

// Enters q unless it or -q is there already.
void AddRotation(const Quaternion& q, std::vector<Quaternion>* rotations) {
  const Quaternion unit = Normalized(q);
  const bool known = std::any_of(rotations->begin(), rotations->end(),
                                 [&](const Quaternion& other) { return std::abs(Dot(unit, other)) > kSame; });
  if (!known) rotations->push_back(unit);
}

Quaternion FromArray(const std::array<double, 4>& a) { return {a[0], a[1], a[2], a[3]}; }

// All quaternions with the entries of `values` in places that `even` (even permutations alone) allows, in every sign.
void AddPermutations(std::array<double, 4> values, bool even, std::vector<Quaternion>* rotations) {
  std::array<int, 4> order{0, 1, 2, 3};
  do {
    int inversions = 0;
    for (int i = 0; i < 4; ++i)
      for (int j = i + 1; j < 4; ++j) inversions += order[i] > order[j];
    if (even && inversions % 2 == 1) continue;
    for (int signs = 0; signs < 16; ++signs) {
      std::array<double, 4> q;
      for (int i = 0; i < 4; ++i) q[i] = (signs >> i & 1 ? -1 : 1) * values[order[i]];
      AddRotation(FromArray(q), rotations);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

std::vector<Quaternion> MakeCoarse() {
  const double golden = (1 + std::sqrt(5.0)) / 2;
  std::vector<Quaternion> rotations;
  AddPermutations({1, 0, 0, 0}, false, &rotations);
  AddPermutations({1, 1, 1, 1}, false, &rotations);
  AddPermutations({1, 1, 0, 0}, false, &rotations);
  AddPermutations({golden, 1, 1 / golden, 0}, true, &rotations);
  return rotations;
}

// The vertices of the 600-cell, both signs.
std::vector<Quaternion> CellVertices() {
  const double golden = (1 + std::sqrt(5.0)) / 2;
  std::vector<Quaternion> half;
  AddPermutations({1, 0, 0, 0}, false, &half);
  AddPermutations({1, 1, 1, 1}, false, &half);
  AddPermutations({golden, 1, 1 / golden, 0}, true, &half);
  std::vector<Quaternion> vertices = half;
  for (const Quaternion& q : half) vertices.push_back({-q.w, -q.x, -q.y, -q.z});
  return vertices;
}

// The cells' centres that are not among the coarse rotations. A cell is four vertices that are neighbours of each
// other: 36 degrees apart on the 3-sphere.
std::vector<Quaternion> MakeFine() {
  const std::vector<Quaternion> v = CellVertices();
  const double neighbour = std::cos(M_PI / 5) - 1e-6;
  const auto adjacent = [&](size_t a, size_t b) { return Dot(v[a], v[b]) > neighbour; };
  std::vector<Quaternion> rotations = MakeCoarse();
  const auto coarse = static_cast<std::ptrdiff_t>(rotations.size());
  for (size_t a = 0; a < v.size(); ++a)
    for (size_t b = a + 1; b < v.size(); ++b) {
      if (!adjacent(a, b)) continue;
      for (size_t c = b + 1; c < v.size(); ++c) {
        if (!adjacent(a, c) || !adjacent(b, c)) continue;
        for (size_t d = c + 1; d < v.size(); ++d) {
          if (!adjacent(a, d) || !adjacent(b, d) || !adjacent(c, d)) continue;
          AddRotation({v[a].w + v[b].w + v[c].w + v[d].w, v[a].x + v[b].x + v[c].x + v[d].x,
                       v[a].y + v[b].y + v[c].y + v[d].y, v[a].z + v[b].z + v[c].z + v[d].z},
                      &rotations);
        }
      }
    }
  rotations.erase(rotations.begin(), rotations.begin() + coarse);
  return rotations;
}

}  // namespace

AffineMap RotationMap(const Quaternion& q) {
  const double w = q.w, x = q.x, y = q.y, z = q.z;
  AffineMap map;
  const double rows[3][3] = {{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
                             {2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
                             {2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) map.m[r][c] = rows[r][c];
  return map;
}

double RotationAngle(const Quaternion& q) { return 2 * std::acos(std::min(1.0, std::abs(q.w))) * 180 / M_PI; }

Quaternion RotationAbout(Vec3d axis, double degrees) {
  const double half = degrees * M_PI / 360, s = std::sin(half);
  return {std::cos(half), s * axis.x, s * axis.y, s * axis.z};
}

Quaternion Multiply(const Quaternion& a, const Quaternion& b) {
  return {a.w * b.w - a.x * b.x - a.y * b.y - a.z * b.z, a.w * b.x + a.x * b.w + a.y * b.z - a.z * b.y,
          a.w * b.y - a.x * b.z + a.y * b.w + a.z * b.x, a.w * b.z + a.x * b.y - a.y * b.x + a.z * b.w};
}

const std::vector<Quaternion>& CoarseRotations() {
  static const auto& rotations = *new std::vector<Quaternion>(MakeCoarse());
  return rotations;
}

const std::vector<Quaternion>& FineRotations() {
  static const auto& rotations = *new std::vector<Quaternion>(MakeFine());
  return rotations;
}

std::vector<Quaternion> PlaneRotations(Vec3d normal) {
  const Vec3d axis = (1 / std::sqrt(Dot(normal, normal))) * normal;
  std::vector<Quaternion> rotations;
  for (int i = 0; i < kPlaneTurns; ++i) {
    const double half = M_PI * i / kPlaneTurns, s = std::sin(half);
    rotations.push_back({std::cos(half), s * axis.x, s * axis.y, s * axis.z});
  }
  return rotations;
}

}  // namespace intrawarp
