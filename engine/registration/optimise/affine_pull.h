// SPDX-License-Identifier: Apache-2.0
// The term of landmarks (transform/landmark.h) for an affine map: a quadratic form in the entries of W, the map from
// normalised fixed coordinates to moving indices (metric/affine_objective.h). With q the normalised coordinates of a
// landmark's fixed point and a 1, t the moving index of its moving point, F the linear map from moving indices to mm,
// G = F^T F and w = kLandmarkWeight / sigma^2,
//
//   sum w |F (W q - t)|^2 = tr(G W S W^T) - 2 tr(G C W^T) + k,   S = sum w q q^T, C = sum w t q^T, k = sum w |F t|^2
//
// so that any number of landmarks costs the same. t is taken from the mean of all t, which keeps the digits. A plain
// value.
#ifndef INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_AFFINE_PULL_H_
#define INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_AFFINE_PULL_H_

#include "absl/types/span.h"
#include "engine/base/host_device.h"
#include "engine/geometry/geometry.h"
#include "engine/transform/landmark.h"

namespace intrawarp {

struct AffinePull {
  // False: there are no landmarks, and the term is 0.
  bool is_active = false;
  double s[4][4] = {};
  double c[3][4] = {};
  double k = 0;
  double g[3][3] = {};
  // The mean of t, which is subtracted from column 3 of W first.
  double center[3] = {};

  // W without the centre.
  INTRAWARP_HD double At(const AffineMap& w, int row, int column) const {
    return w.m[row][column] - (column == 3 ? center[row] : 0);
  }

  // Entry (row, column) of W S - C.
  INTRAWARP_HD double Residual(const AffineMap& w, int row, int column) const {
    double sum = -c[row][column];
    for (int j = 0; j < 4; ++j) sum += At(w, row, j) * s[j][column];
    return sum;
  }

  INTRAWARP_HD double Value(const AffineMap& w) const {
    double sum = k;
    for (int r = 0; r < 3; ++r) {
      for (int a = 0; a < 4; ++a) {
        double half = 0;
        for (int p = 0; p < 3; ++p) half += g[r][p] * (Residual(w, p, a) - c[p][a]);
        sum += At(w, r, a) * half;
      }
    }
    return sum;
  }

  // The derivative by entry `e` of W, row by row.
  INTRAWARP_HD double Gradient(const AffineMap& w, int e) const {
    double sum = 0;
    for (int p = 0; p < 3; ++p) sum += g[e / 4][p] * Residual(w, p, e % 4);
    return 2 * sum;
  }

  // The second derivative by entries `e` and `f`.
  INTRAWARP_HD double Hessian(int e, int f) const { return 2 * g[e / 4][f / 4] * s[e % 4][f % 4]; }
};

// `to_normalized`: LPS mm of the fixed image to q; `to_moving`: LPS mm to moving indices.
AffinePull MakeAffinePull(absl::Span<const Landmark> landmarks, const AffineMap& to_normalized,
                          const AffineMap& to_moving);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_AFFINE_PULL_H_
