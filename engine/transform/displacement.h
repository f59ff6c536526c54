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
#include "engine/image/bspline.h"
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

// u is taken to be defined this far beyond its domain, in node distances: rounding of geometries must not decide.
inline constexpr double kSplineDomainTolerance = 1e-5;

// An index along one axis of a spline: the first of its four control points, and the place t in the middle interval.
struct SplinePosition {
  int base = 0;
  double t = 0;
  // False: u is 0 there.
  bool inside = false;
};

// For an axis with n >= 4 control points.
INTRAWARP_HD inline SplinePosition MakeSplinePosition(double index, int n) {
  SplinePosition position;
  // Written so that NaN is outside.
  position.inside = index >= 1 - kSplineDomainTolerance && index <= n - 2 + kSplineDomainTolerance;
  const double clamped = fmin(fmax(index, 1.0), n - 2.0);
  const int base = static_cast<int>(clamped) - 1;
  position.base = base < n - 4 ? base : n - 4;
  position.t = clamped - (position.base + 1);
  return position;
}

// Four neighbours and their weights on each axis. An axis with one control point repeats it, with the weights 1 0 0 0.
struct SplineTaps {
  int base[3];
  int stride[3];
  float weight[3][4];
  float derivative[3][4];
};

// False outside the domain of u. Derivatives are per node distance.
template <bool kDerivatives>
INTRAWARP_HD inline bool MakeSplineTaps(Int3 size, Vec3d index, SplineTaps* taps) {
  for (int a = 0; a < 3; ++a) {
    SplinePosition position;
    double w[4] = {1, 0, 0, 0}, d[4] = {};
    if (size[a] == 1) {
      position.inside = index[a] >= -0.5 - kSplineDomainTolerance && index[a] <= 0.5 + kSplineDomainTolerance;
    } else {
      position = MakeSplinePosition(index[a], size[a]);
      BsplineWeights(position.t, w);
      if (kDerivatives) BsplineDerivatives(position.t, d);
    }
    if (!position.inside) return false;
    taps->base[a] = position.base;
    taps->stride[a] = size[a] == 1 ? 0 : 1;
    for (int k = 0; k < 4; ++k) {
      taps->weight[a][k] = static_cast<float>(w[k]);
      if (kDerivatives) taps->derivative[a][k] = static_cast<float>(d[k]);
    }
  }
  return true;
}

INTRAWARP_HD inline Vec3f ContractTaps(const float* data, Int3 size, const SplineTaps& taps, const float* wx,
                                       const float* wy, const float* wz) {
  Vec3f sum;
  for (int k = 0; k < 4; ++k) {
    Vec3f plane;
    for (int j = 0; j < 4; ++j) {
      const int z = taps.base[2] + k * taps.stride[2], y = taps.base[1] + j * taps.stride[1];
      const float* node = data + 3 * ((static_cast<size_t>(z) * size.y + y) * size.x + taps.base[0]);
      Vec3f row;
      for (int i = 0; i < 4; ++i, node += 3 * taps.stride[0]) {
        row.x += wx[i] * node[0];
        row.y += wx[i] * node[1];
        row.z += wx[i] * node[2];
      }
      plane = plane + wy[j] * row;
    }
    sum = sum + wz[k] * plane;
  }
  return sum;
}

// u of a control grid (control_grid.h) at an index of that grid; 0 outside its domain.
INTRAWARP_HD inline Vec3d SampleControlGrid(const float* data, Int3 size, Vec3d index) {
  SplineTaps taps;
  if (!MakeSplineTaps<false>(size, index, &taps)) return {};
  const Vec3f u = ContractTaps(data, size, taps, taps.weight[0], taps.weight[1], taps.weight[2]);
  return {u.x, u.y, u.z};
}

// det(I + grad u) at an index; `to_index`: millimetres to the grid's index.
INTRAWARP_HD inline double ControlGridDeterminant(const float* data, Int3 size, const AffineMap& to_index,
                                                  Vec3d index) {
  SplineTaps taps;
  if (!MakeSplineTaps<true>(size, index, &taps)) return 1;
  AffineMap gradient = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) {
    const Vec3f d =
        ContractTaps(data, size, taps, a == 0 ? taps.derivative[0] : taps.weight[0],
                     a == 1 ? taps.derivative[1] : taps.weight[1], a == 2 ? taps.derivative[2] : taps.weight[2]);
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 3; ++c) gradient.m[r][c] += d[r] * to_index.m[a][c];
  }
  return Determinant(gradient);
}

// u of a transform, by an index of its own grid: dense and linear between nodes, or a spline. Without data: no u.
struct DisplacementSource {
  const float* data = nullptr;
  Int3 size;
  bool spline = false;

  INTRAWARP_HD Vec3d operator()(Vec3d index) const {
    return spline ? SampleControlGrid(data, size, index) : SampleDisplacement(data, size, index);
  }
};

inline constexpr double kInversionToleranceMm = 1e-4;
inline constexpr int kMaxInversionIterations = 100;

// Finds x with x + u(x) = y by the fixed-point iteration x <- y - u(x) from x = y (Chen et al. 2008, "A simple
// fixed-point approach to invert a deformation field"). `y` and `x` are indices of u's grid, `to_index` turns
// millimetres into them. False unless |x + u(x) - y| comes to kInversionToleranceMm within
// kMaxInversionIterations.
INTRAWARP_HD inline bool InvertDisplacement(const DisplacementSource& source, const AffineMap& to_index, Vec3d y,
                                            Vec3d* x) {
  Vec3d u{};
  *x = y;
  for (int i = 0; i < kMaxInversionIterations; ++i) {
    const Vec3d next = source(*x);
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
  // Without data nothing below counts.
  DisplacementSource displacement;
  AffineMap to_domain;
  AffineMap linear;

  // Always true; for symmetry with InverseMap.
  INTRAWARP_HD bool operator()(Vec3d q, Vec3d* mapped) const {
    *mapped = affine(q);
    if (displacement.data != nullptr) *mapped = *mapped + linear.Linear(displacement(to_domain(q)));
    return true;
  }
};

// q -> from_domain(x) with x + u(x) = to_domain(q): T^-1 of a transform with a u.
struct InverseMap {
  DisplacementSource displacement;
  AffineMap to_domain;
  // Millimetres to the index of u's grid.
  AffineMap to_index;
  AffineMap from_domain;

  // False where T has no inverse that the iteration finds.
  INTRAWARP_HD bool operator()(Vec3d q, Vec3d* mapped) const {
    Vec3d x;
    if (!InvertDisplacement(displacement, to_index, to_domain(q), &x)) return false;
    *mapped = from_domain(x);
    return true;
  }
};

// T after `inner`, then `outer`: with an image's IndexToPhysical and PhysicalToIndex, for example, from fixed to moving
// indices.
ForwardMap MakeForwardMap(const Transform& transform, const AffineMap& inner, const AffineMap& outer);
// T^-1 likewise, of a transform with a velocity and a matrix that is not singular: exp(-v) after A^-1.
ForwardMap MakeBackwardMap(const Transform& transform, const AffineMap& inner, const AffineMap& outer);
// T^-1 likewise, of a transform with another u and a matrix that is not singular.
InverseMap MakeInverseMap(const Transform& transform, const AffineMap& inner, const AffineMap& outer);
// A - identity: p -> A(p) - p, without the cancellation of large coordinates.
AffineMap MinusIdentity(const AffineMap& affine);
bool IsIdentity(const AffineMap& affine);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_DISPLACEMENT_H_
