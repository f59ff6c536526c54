// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/grid_penalty.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/transform/grid_penalty_kernels.h"

namespace intrawarp {
namespace {

// Integrals over one tile of products of its four splines.
struct TileGram {
  double entry[kGramOps][4][4] = {};

  // By Gauss-Legendre quadrature of four points, which is exact to degree 7; the products have 6.
  TileGram() {
    const double inner = std::sqrt(3.0 / 7 - 2.0 / 7 * std::sqrt(1.2)),
                 outer = std::sqrt(3.0 / 7 + 2.0 / 7 * std::sqrt(1.2));
    const double points[4] = {-outer, -inner, inner, outer};
    for (int p = 0; p < 4; ++p) {
      const bool is_inner = p == 1 || p == 2;
      const double weight = (18 + (is_inner ? 1 : -1) * std::sqrt(30.0)) / 72, t = 0.5 + 0.5 * points[p];
      double value[4], slope[4], curve[4];
      BsplineWeights(t, value);
      BsplineDerivatives(t, slope);
      BsplineSecondDerivatives(t, curve);
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          entry[kValueValue][i][j] += weight * value[i] * value[j];
          entry[kSlopeSlope][i][j] += weight * slope[i] * slope[j];
          entry[kCurveCurve][i][j] += weight * curve[i] * curve[j];
          entry[kValueSlope][i][j] += weight * value[i] * slope[j];
          entry[kSlopeValue][i][j] += weight * slope[i] * value[j];
        }
      }
    }
  }
};

// `step` is the node distance in units.
GramAxis<double> MakeGramAxis(int n, double step) {
  GramAxis<double> axis = {};
  if (n == 1) {
    axis.row[kValueValue][0][3] = 1;
    return axis;
  }
  static const TileGram tile;
  const double slope = 1 / step, power[kGramOps] = {1, slope * slope, slope * slope * slope * slope, slope, slope};
  for (int type = 0; type < std::min(n, kGramRowTypes); ++type) {
    // The longest axis that has rows of this kind alone.
    const int m = std::min(n, kGramRowTypes);
    for (int k = 0; k < kGramBand; ++k) {
      const int i = type, j = i + k - 3;
      for (int t = std::max({i - 3, j - 3, 0}); t <= std::min({i, j, m - 4}); ++t) {
        for (int op = 0; op < kGramOps; ++op) axis.row[op][type][k] += power[op] * tile.entry[op][i - t][j - t];
      }
    }
  }
  return axis;
}

void MakeSamples(int n, float (&value)[2][4], float (&slope)[2][4]) {
  for (int s = 0; s < 2; ++s) {
    double w[4] = {1, 0, 0, 0}, d[4] = {};
    if (n > 1) {
      const double t = 0.5 + (s == 0 ? -0.5 : 0.5) / std::sqrt(3.0);
      BsplineWeights(t, w);
      BsplineDerivatives(t, d);
    }
    for (int i = 0; i < 4; ++i) {
      value[s][i] = static_cast<float>(w[i]);
      slope[s][i] = static_cast<float>(d[i]);
    }
  }
}

JacobianFrame MakeFrame(const Geometry& grid) {
  JacobianFrame frame;
  const AffineMap to_physical = IndexToPhysical(grid);
  for (int a = 0; a < 3; ++a) {
    for (int r = 0; r < 3; ++r) frame.edge[a][r] = static_cast<float>(to_physical.m[r][a]);
    MakeSamples(grid.size[a], frame.value[a], frame.slope[a]);
  }
  frame.inverse_volume = static_cast<float>(1 / Determinant(to_physical));
  return frame;
}

absl::Status ValidateWeight(const char* name, double weight) {
  if (std::isfinite(weight) && weight >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, "_weight: ", weight, " is not a finite number from 0"));
}

absl::Status Validate(const PenaltyWeights& weights, double unit, const Geometry& grid) {
  INTRAWARP_RETURN_IF_ERROR(ValidateWeight("bending", weights.bending));
  INTRAWARP_RETURN_IF_ERROR(ValidateWeight("elasticity", weights.elasticity));
  INTRAWARP_RETURN_IF_ERROR(ValidateWeight("jacobian", weights.jacobian));
  if (!(std::isfinite(unit) && unit > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("unit: ", unit, " mm is not a finite length above 0"));
  }
  for (int a = 0; a < 3; ++a) {
    if (grid.size[a] == 1 || grid.size[a] >= 4) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("grid: ", SizeString(grid), " control points, an axis has one or at least four"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddGridPenalties(const ExecContext& ctx, const PenaltyWeights& weights, double unit, ConstFieldView grid,
                              const int* skip, float* gradient, double* value) {
  INTRAWARP_RETURN_IF_ERROR(Validate(weights, unit, grid.geometry));
  const Geometry& g = grid.geometry;
  PenaltyTask task;
  task.grid = grid.data;
  task.size = g.size;
  task.skip = skip;
  task.gradient = gradient;
  task.value = value;
  double tiles = 1;
  for (int a = 0; a < 3; ++a) {
    tiles *= AxisTiles(g.size[a]);
    task.gram[a] = MakeGramAxis(g.size[a], g.spacing[a] / unit);
    for (int r = 0; r < 3; ++r) task.direction[r][a] = g.direction[r][a];
  }
  task.bending_scale = 2 * weights.bending / (tiles * unit * unit);
  task.elasticity_scale = weights.elasticity / (tiles * unit * unit);
  task.jacobian_scale = weights.jacobian / (8 * tiles);
  task.frame = MakeFrame(g);
  return INTRAWARP_DISPATCH(ctx, AddGridPenalties, task);
}

int64_t GridPenaltyWorkspaceBytes(const Geometry& grid) {
#if INTRAWARP_WITH_CUDA
  return std::max(cpu::GridPenaltyWorkspaceBytes(grid.size), cuda::GridPenaltyWorkspaceBytes(grid.size));
#else
  return cpu::GridPenaltyWorkspaceBytes(grid.size);
#endif
}

}  // namespace intrawarp
