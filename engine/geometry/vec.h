// SPDX-License-Identifier: Apache-2.0
// Small fixed-size vectors and the affine map, for host and device. Plain values; thread-compatible.
#ifndef INTRAWARP_ENGINE_GEOMETRY_VEC_H_
#define INTRAWARP_ENGINE_GEOMETRY_VEC_H_

#include "engine/base/host_device.h"

namespace intrawarp {

template <typename T>
struct Vec3 {
  T x{}, y{}, z{};

  INTRAWARP_HD T& operator[](int i) { return i == 0 ? x : i == 1 ? y : z; }
  INTRAWARP_HD const T& operator[](int i) const { return i == 0 ? x : i == 1 ? y : z; }
  INTRAWARP_HD friend Vec3 operator+(Vec3 a, Vec3 b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
  INTRAWARP_HD friend Vec3 operator-(Vec3 a, Vec3 b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
  INTRAWARP_HD friend Vec3 operator*(T s, Vec3 a) { return {s * a.x, s * a.y, s * a.z}; }
  INTRAWARP_HD friend T Dot(Vec3 a, Vec3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
  friend bool operator==(const Vec3&, const Vec3&) = default;
};

using Vec3f = Vec3<float>;
using Vec3d = Vec3<double>;
using Int3 = Vec3<int>;

// p -> m * (p, 1): three rows of [linear | translation].
template <typename T>
struct AffineMapT {
  T m[3][4]{};

  static INTRAWARP_HD AffineMapT Identity() {
    AffineMapT a;
    a.m[0][0] = a.m[1][1] = a.m[2][2] = T(1);
    return a;
  }
  INTRAWARP_HD Vec3<T> operator()(Vec3<T> p) const {
    return {m[0][0] * p.x + m[0][1] * p.y + m[0][2] * p.z + m[0][3],
            m[1][0] * p.x + m[1][1] * p.y + m[1][2] * p.z + m[1][3],
            m[2][0] * p.x + m[2][1] * p.y + m[2][2] * p.z + m[2][3]};
  }
  // The linear part alone: for directions and displacements.
  INTRAWARP_HD Vec3<T> Linear(Vec3<T> p) const {
    return {m[0][0] * p.x + m[0][1] * p.y + m[0][2] * p.z, m[1][0] * p.x + m[1][1] * p.y + m[1][2] * p.z,
            m[2][0] * p.x + m[2][1] * p.y + m[2][2] * p.z};
  }
  // The transposed linear part: carries gradients back through the map.
  INTRAWARP_HD Vec3<T> LinearTransposed(Vec3<T> p) const {
    return {m[0][0] * p.x + m[1][0] * p.y + m[2][0] * p.z, m[0][1] * p.x + m[1][1] * p.y + m[2][1] * p.z,
            m[0][2] * p.x + m[1][2] * p.y + m[2][2] * p.z};
  }
  template <typename U>
  INTRAWARP_HD AffineMapT<U> Cast() const {
    AffineMapT<U> a;
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 4; ++c) a.m[r][c] = static_cast<U>(m[r][c]);
    return a;
  }
};

using AffineMap = AffineMapT<double>;
using AffineMapF = AffineMapT<float>;

// outer after inner: p -> outer(inner(p)).
template <typename T>
INTRAWARP_HD AffineMapT<T> Compose(const AffineMapT<T>& outer, const AffineMapT<T>& inner) {
  AffineMapT<T> a;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) {
      a.m[r][c] = outer.m[r][0] * inner.m[0][c] + outer.m[r][1] * inner.m[1][c] + outer.m[r][2] * inner.m[2][c] +
                  (c == 3 ? outer.m[r][3] : T(0));
    }
  }
  return a;
}

// Determinant of the linear part.
template <typename T>
INTRAWARP_HD T Determinant(const AffineMapT<T>& a) {
  return a.m[0][0] * (a.m[1][1] * a.m[2][2] - a.m[1][2] * a.m[2][1]) -
         a.m[0][1] * (a.m[1][0] * a.m[2][2] - a.m[1][2] * a.m[2][0]) +
         a.m[0][2] * (a.m[1][0] * a.m[2][1] - a.m[1][1] * a.m[2][0]);
}

// The inverse map, by cofactors; the caller has made sure that the determinant is not 0.
template <typename T>
INTRAWARP_HD AffineMapT<T> Inverse(const AffineMapT<T>& a) {
  const T d = T(1) / Determinant(a);
  AffineMapT<T> i;
  for (int r = 0; r < 3; ++r) {
    const int r1 = (r + 1) % 3, r2 = (r + 2) % 3;
    for (int c = 0; c < 3; ++c) {
      const int c1 = (c + 1) % 3, c2 = (c + 2) % 3;
      i.m[r][c] = d * (a.m[c1][r1] * a.m[c2][r2] - a.m[c1][r2] * a.m[c2][r1]);
    }
  }
  const Vec3<T> t = i.Linear({a.m[0][3], a.m[1][3], a.m[2][3]});
  i.m[0][3] = -t.x;
  i.m[1][3] = -t.y;
  i.m[2][3] = -t.z;
  return i;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_GEOMETRY_VEC_H_
