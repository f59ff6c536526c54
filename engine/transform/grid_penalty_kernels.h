// SPDX-License-Identifier: Apache-2.0
// The two versions of AddGridPenalties, and what they share: tables of the quadratic penalties, and the pointwise maths
// of the jacobian penalty. Internal.
//
// A quadratic penalty is a form c^T K c, K a sum of products of one matrix an axis, each the Gram matrix of the splines
// or of their derivatives over the domain. Its gradient is made separably: x for each kind of matrix, then y, then z.
// Both penalties vanish for constant c, so that any constant may be subtracted from c first: what is left is small, and
// so is its rounding.
//
// The frame: bending does not change when u is rotated or when the axes are; elasticity does not when both are. So
// elasticity is taken of v = D^T u along the axes of the grid (D its direction, orthonormal), and its gradient carried
// back by D. The determinant of I + grad u is that of M + U over that of M, M the edges of a tile, U the derivatives of
// u per node distance, one column an axis: no rotation at all.
#ifndef INTRAWARP_ENGINE_TRANSFORM_GRID_PENALTY_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_GRID_PENALTY_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"
#include "engine/image/bspline.h"

namespace intrawarp {

// --- Quadratic penalties ---

inline constexpr int kGramBand = 7;
// Rows of a Gram matrix differ by how near an end they are: three at either end, and all between.
inline constexpr int kGramRowTypes = 7;

// Integrals of a product of two splines; the first belongs to the row.
enum GramOp { kValueValue, kSlopeSlope, kCurveCurve, kValueSlope, kSlopeValue, kGramOps };

// row[op][type][k] is the entry of column i + k - 3 in the row of control point i, derivatives per `unit`; 0 where
// there is no such column. Of an axis with one control point, value x value is 1 and the others 0.
template <typename T>
struct GramAxis {
  T row[kGramOps][kGramRowTypes][kGramBand];
};

INTRAWARP_HD inline int GramRowType(int i, int n) { return n < kGramRowTypes || i < 3 ? i : i < n - 3 ? 3 : i - n + 7; }

// What a penalty is made of, for the axes one after the other. Op(i) are the matrices; after x and y, an output is
// kept for each matrix that z has still to apply. AddTap adds one neighbour along y: g its entries there,
// a[op][component] what the matrices of x gave. The derivative is scale * Op(z) out, and the penalty half of c^T times
// that.
struct BendingForm {
  static constexpr int kOps = 3;
  static constexpr bool kRotated = false;
  static INTRAWARP_HD constexpr GramOp Op(int i) { return static_cast<GramOp>(i); }

  // The terms of Rueckert 1999, eq. 4: xx yy zz, and xy xz yz twice.
  template <typename G, typename T, typename AddProduct>
  static INTRAWARP_HD inline void AddTap(const AddProduct& add, const G (&g)[kOps], const T (&a)[kOps][3],
                                         T (&out)[kOps][3]) {
    const G twice = g[1] + g[1], both = g[0] + g[0];
    for (int c = 0; c < 3; ++c) {
      add(g[0], a[2][c], out[0][c]);
      add(twice, a[1][c], out[0][c]);
      add(g[2], a[0][c], out[0][c]);
      add(both, a[1][c], out[1][c]);
      add(twice, a[0][c], out[1][c]);
      add(g[0], a[0][c], out[2][c]);
    }
  }
};

struct ElasticityForm {
  static constexpr int kOps = 4;
  static constexpr bool kRotated = true;
  static INTRAWARP_HD constexpr GramOp Op(int i) {
    return i == 0 ? kValueValue : i == 1 ? kSlopeSlope : i == 2 ? kValueSlope : kSlopeValue;
  }

  // Twice the potential is 3 (d_a v_a)^2 + sum over b != a of (d_b v_a)^2, summed over a, and for each pair a < b
  // 2 (d_a v_b d_b v_a + d_a v_a d_b v_b).
  template <typename G, typename T, typename AddProduct>
  static INTRAWARP_HD inline void AddTap(const AddProduct& add, const G (&g)[kOps], const T (&a)[kOps][3],
                                         T (&out)[kOps][3]) {
    const G three0 = G(3) * g[0], three1 = G(3) * g[1];
    add(three0, a[1][0], out[0][0]);
    add(g[1], a[0][0], out[0][0]);
    add(g[2], a[3][1], out[0][0]);
    add(g[3], a[2][1], out[0][0]);
    add(g[0], a[1][1], out[0][1]);
    add(three1, a[0][1], out[0][1]);
    add(g[2], a[3][0], out[0][1]);
    add(g[3], a[2][0], out[0][1]);
    add(g[0], a[1][2], out[0][2]);
    add(g[1], a[0][2], out[0][2]);
    add(g[0], a[0][0], out[1][0]);
    add(g[0], a[0][1], out[1][1]);
    add(three0, a[0][2], out[1][2]);
    add(g[0], a[3][2], out[2][0]);
    add(g[3], a[0][2], out[2][1]);
    add(g[0], a[3][0], out[2][2]);
    add(g[3], a[0][1], out[2][2]);
    add(g[0], a[2][2], out[3][0]);
    add(g[2], a[0][2], out[3][1]);
    add(g[0], a[2][0], out[3][2]);
    add(g[2], a[0][1], out[3][2]);
  }
};

// --- Jacobian penalty ---

inline constexpr float kJacobianThreshold = 0.5f;
inline constexpr float kJacobianTangent = 0.05f;

// f(J) of grid_penalty.h and its derivative.
INTRAWARP_HD inline float JacobianCost(float j, float* derivative) {
  *derivative = 0;
  if (j >= kJacobianThreshold) return 0;
  const float at = fmaxf(j, kJacobianTangent), l = logf(at * (1 / kJacobianThreshold)), slope = 2 * l / at;
  *derivative = slope;
  // NaN, which fmaxf hides, comes through here.
  return l * l + slope * (j - at);
}

// A tile: cell between eight control points, with 4 of them an axis in its support.
struct JacobianFrame {
  // Edge of a tile along each axis, LPS mm.
  Vec3f edge[3];
  // 1 / det(edge).
  float inverse_volume;
  // Weights of the four control points at both samples of an axis, of the value and of the derivative per node
  // distance.
  float value[3][2][4];
  float slope[3][2][4];
};

template <typename T>
INTRAWARP_HD inline Vec3<T> Cross(Vec3<T> a, Vec3<T> b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

// det(I + grad u) from the derivatives of u per node distance; cofactors[a] is its derivative by u[a].
INTRAWARP_HD inline float TileDeterminant(const JacobianFrame& f, const Vec3f (&u)[3], Vec3f (&cofactors)[3]) {
  const Vec3f x = f.edge[0] + u[0], y = f.edge[1] + u[1], z = f.edge[2] + u[2];
  cofactors[0] = f.inverse_volume * Cross(y, z);
  cofactors[1] = f.inverse_volume * Cross(z, x);
  cofactors[2] = f.inverse_volume * Cross(x, y);
  return Dot(x, cofactors[0]);
}

// Bounds of the differences between neighbouring control points, for each axis. A derivative of u per node distance is
// a mean of such differences with weights that are not negative, so it keeps the bounds.
struct DifferenceBounds {
  Vec3f low[3];
  Vec3f high[3];
};

// The product of absolute values in the place of differences: bounds a cross product of vectors within a and b of 0.
INTRAWARP_HD inline Vec3f CrossBound(Vec3f a, Vec3f b) {
  return {a.y * b.z + a.z * b.y, a.z * b.x + a.x * b.z, a.x * b.y + a.y * b.x};
}

INTRAWARP_HD inline Vec3f Abs(Vec3f a) { return {fabsf(a.x), fabsf(a.y), fabsf(a.z)}; }

// A lower bound of det(I + grad u) where the derivatives keep the bounds: the determinant at their middle less what
// each order of the distance from there can take away. NaN or below the threshold when it proves nothing.
INTRAWARP_HD inline float DeterminantLowerBound(const JacobianFrame& f, const DifferenceBounds& b) {
  Vec3f middle[3], radius[3], cofactors[3], columns[3];
  for (int a = 0; a < 3; ++a) {
    middle[a] = 0.5f * (b.high[a] + b.low[a]);
    radius[a] = 0.5f * (b.high[a] - b.low[a]);
    columns[a] = Abs(f.edge[a] + middle[a]);
  }
  const float determinant = TileDeterminant(f, middle, cofactors);
  float first = 0, higher = Dot(radius[0], CrossBound(radius[1], radius[2]));
  for (int a = 0; a < 3; ++a) {
    first += Dot(Abs(cofactors[a]), radius[a]);
    higher += Dot(columns[a], CrossBound(radius[(a + 1) % 3], radius[(a + 2) % 3]));
  }
  return determinant - first - fabsf(f.inverse_volume) * higher;
}

// --- The operator ---

// A factor of 0 leaves a penalty out.
struct PenaltyTask {
  const float* grid;
  Int3 size;
  const int* skip;
  float* gradient;
  double* value;
  // Means and units are in these.
  double bending_scale;
  double elasticity_scale;
  double jacobian_scale;
  GramAxis<double> gram[3];
  // Columns are the axes of the grid.
  double direction[3][3];
  JacobianFrame frame;
};

// Tiles of an axis.
INTRAWARP_HD inline int AxisTiles(int n) { return n == 1 ? 1 : n - 3; }

INTRAWARP_DECLARE_ON_DEVICES(absl::Status AddGridPenalties(const ExecContext& ctx, const PenaltyTask& task);
                             int64_t GridPenaltyWorkspaceBytes(Int3 size);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_GRID_PENALTY_KERNELS_H_
