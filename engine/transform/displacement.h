// SPDX-License-Identifier: Apache-2.0
// Evaluating T(x) = A(x + u(x)) and its inverse at one point, for host and device: what field evaluation, warping,
// point mapping and the quality measures are composed of. Plain values that point to device memory; thread-compatible.
#ifndef INTRAWARP_ENGINE_TRANSFORM_DISPLACEMENT_H_
#define INTRAWARP_ENGINE_TRANSFORM_DISPLACEMENT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// The voxel at a place in memory order.
INTRAWARP_HD inline Int3 VoxelAt(Int3 size, int64_t place) {
  const int64_t row = place / size.x;
  return {static_cast<int>(place - row * size.x), static_cast<int>(row % size.y), static_cast<int>(row / size.y)};
}
// The voxel `offset` (below 2^30) places after `base`, without 64-bit division.
INTRAWARP_HD inline Int3 VoxelAfter(Int3 size, Int3 base, uint32_t offset) {
  const uint32_t nx = size.x, ny = size.y, x = base.x + offset, y = base.y + x / nx;
  return {static_cast<int>(x % nx), static_cast<int>(y % ny), static_cast<int>(base.z + y / ny)};
}
INTRAWARP_HD inline Vec3d ToVec3d(Int3 v) {
  return {static_cast<double>(v.x), static_cast<double>(v.y), static_cast<double>(v.z)};
}
INTRAWARP_HD inline Vec3f ToVec3f(Vec3d v) {
  return {static_cast<float>(v.x), static_cast<float>(v.y), static_cast<float>(v.z)};
}

// Three interleaved components, trilinear at an index of their own grid, as SampleLinear; 0 outside the domain.
INTRAWARP_HD inline Vec3d SampleDisplacement(const float* data, Int3 size, Vec3d index) {
  int lower[3], upper[3];
  float weight[3];
  for (int a = 0; a < 3; ++a) {
    const int n = size[a];
    // Written so that NaN is outside.
    if (!(index[a] >= -0.5 && index[a] <= n - 0.5)) return {};
    const double clamped = fmin(fmax(index[a], 0.0), n - 1.0);
    const int last = n > 1 ? n - 2 : 0;
    lower[a] = static_cast<int>(clamped) < last ? static_cast<int>(clamped) : last;
    upper[a] = n > 1 ? lower[a] + 1 : lower[a];
    weight[a] = static_cast<float>(clamped - lower[a]);
  }
  Vec3f sum;
  for (int corner = 0; corner < 4; ++corner) {
    const int y = corner & 1 ? upper[1] : lower[1], z = corner & 2 ? upper[2] : lower[2];
    const float w = (corner & 1 ? weight[1] : 1 - weight[1]) * (corner & 2 ? weight[2] : 1 - weight[2]);
    const float* row = data + 3 * ((static_cast<size_t>(z) * size.y + y) * size.x);
    const float* a = row + 3 * lower[0];
    const float* b = row + 3 * upper[0];
    sum.x += w * (a[0] + weight[0] * (b[0] - a[0]));
    sum.y += w * (a[1] + weight[0] * (b[1] - a[1]));
    sum.z += w * (a[2] + weight[0] * (b[2] - a[2]));
  }
  return {sum.x, sum.y, sum.z};
}

inline constexpr double kInversionToleranceMm = 1e-4;
inline constexpr int kMaxInversionIterations = 100;

// Finds x with x + u(x) = y by the fixed-point iteration x <- y - u(x) from x = y (Chen et al. 2008, "A simple
// fixed-point approach to invert a deformation field"). `y` and `x` are indices of the displacement's grid, `to_index`
// turns millimetres into them. False unless |x + u(x) - y| comes to kInversionToleranceMm within
// kMaxInversionIterations.
INTRAWARP_HD inline bool InvertDisplacement(const float* data, Int3 size, const AffineMap& to_index, Vec3d y,
                                            Vec3d* x) {
  Vec3d u{};
  *x = y;
  for (int i = 0; i < kMaxInversionIterations; ++i) {
    const Vec3d next = SampleDisplacement(data, size, *x);
    // x + u(x) - y, as x = y - u of the iteration before.
    const Vec3d residual = next - u;
    if (Dot(residual, residual) <= kInversionToleranceMm * kInversionToleranceMm) return true;
    u = next;
    *x = y - to_index.Linear(u);
  }
  return false;
}

// q -> affine(q) + linear(u(to_domain(q))): T in whatever coordinates its maps were made for.
struct ForwardMap {
  AffineMap affine;
  // Null: no displacement, and nothing below counts.
  const float* displacement = nullptr;
  Int3 size;
  AffineMap to_domain;
  AffineMap linear;

  // Always true; for symmetry with InverseMap.
  INTRAWARP_HD bool operator()(Vec3d q, Vec3d* mapped) const {
    *mapped = affine(q);
    if (displacement != nullptr) {
      *mapped = *mapped + linear.Linear(SampleDisplacement(displacement, size, to_domain(q)));
    }
    return true;
  }
};

// q -> from_domain(x) with x + u(x) = to_domain(q): T^-1 of a transform with a displacement.
struct InverseMap {
  const float* displacement = nullptr;
  Int3 size;
  AffineMap to_domain;
  // Millimetres to the index of the displacement's grid.
  AffineMap to_index;
  AffineMap from_domain;

  // False where T has no inverse that the iteration finds.
  INTRAWARP_HD bool operator()(Vec3d q, Vec3d* mapped) const {
    Vec3d x;
    if (!InvertDisplacement(displacement, size, to_index, to_domain(q), &x)) return false;
    *mapped = from_domain(x);
    return true;
  }
};

// T after `inner`, then `outer`: with an image's IndexToPhysical and PhysicalToIndex, for example, from fixed to moving
// indices.
ForwardMap MakeForwardMap(const Transform& transform, const AffineMap& inner, const AffineMap& outer);
// T^-1 likewise, of a transform with a displacement and a matrix that is not singular.
InverseMap MakeInverseMap(const Transform& transform, const AffineMap& inner, const AffineMap& outer);
// A - identity: p -> A(p) - p, without the cancellation of large coordinates.
AffineMap MinusIdentity(const AffineMap& affine);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_DISPLACEMENT_H_
