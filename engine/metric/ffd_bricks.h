// SPDX-License-Identifier: Apache-2.0
// The tables of one evaluator of the FFD objective on the CPU, which its passes share, and the cut of the fixed grid
// into bricks. The cut depends on sizes alone. Internal.
//
// A row of the field is three planar rows of floats (x, y and z displacements in moving voxels), `stride` apart.
// Control rows are contracted along x once an evaluation (ContractAlongX); a brick contracts them along z for each of
// its planes, and along y while it samples. The transpose runs back: the forces of a few rows go into the node rows of
// their plane (y), these into the brick's node planes (z), and these, at the end of the brick, along x into its partial
// sums, which are then added up for each control point in the order of the bricks.
#ifndef INTRAWARP_ENGINE_METRIC_FFD_BRICKS_H_
#define INTRAWARP_ENGINE_METRIC_FFD_BRICKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/metric/affine_plan.h"
#include "engine/metric/ffd_objective.h"
#include "engine/metric/ffd_plan.h"
#include "engine/metric/soft_mask.h"

namespace intrawarp::cpu {

// Rows are padded by at least one of the longest vectors, and finite there, so that vectors may reach beyond their end.
inline constexpr int kRowPadding = 16;
inline int RoundedRow(int n) { return (n + kRowPadding - 1) / kRowPadding * kRowPadding; }
inline int RowStride(int n) { return RoundedRow(n) + kRowPadding; }

// Rows whose forces are collected before they go into the node rows, and planes before they go into the node planes.
inline constexpr int kForceRows = 8;
inline constexpr int kForcePlanes = 5;

// The cut of the fixed grid, and the most nodes along y and z that a brick touches.
struct FfdBricks {
  FfdBricks(const Geometry& fixed, const Geometry& grid)
      : y(BrickBlocks(fixed.size.y)),
        z(fixed.size.z == 1 ? AxisBlocks{1, 1} : BrickBlocks(fixed.size.z)),
        rows(MostNodes(1, y.block, fixed, grid)),
        planes(MostNodes(2, z.block, fixed, grid)) {}

  int count() const { return y.count() * z.count(); }
  Range RangeY(int brick) const { return y[brick % y.count()]; }
  Range RangeZ(int brick) const { return z[brick / y.count()]; }

  AxisBlocks y, z;
  int rows, planes;

 private:
  static int MostNodes(int axis, int block, const Geometry& fixed, const Geometry& grid) {
    const double tiles = (std::min(block, fixed.size[axis]) - 1) * fixed.spacing[axis] / grid.spacing[axis];
    return static_cast<int>(std::min<double>(grid.size[axis], tiles + 6));
  }
};

struct FfdRows {
  FfdRows(const FfdObjective& objective, const FfdPlan& plan);

  // The nodes that voxels of an axis touch.
  Range Nodes(int axis, Range voxels) const {
    const AxisWeights& a = plan.axis[axis];
    return {a.base[voxels.begin], std::min(a.nodes, a.base[voxels.end - 1] + 4)};
  }
  int64_t RowOffset(int y, int z) const { return (int64_t{z} * size.y + y) * size.x; }
  // Floats of one node row, and of one brick's partial sums.
  int64_t row_floats() const { return 3 * int64_t{stride}; }
  int64_t partial_floats() const { return int64_t{bricks.planes} * bricks.rows * 3 * nodes.x; }

  const FfdObjective objective;
  const FfdPlan plan;
  // Whether samples weigh by soft masks.
  const bool weighted;
  const Int3 size, nodes;
  const int stride;
  const FfdBricks bricks;

  // Along x, for RoundedRow(size.x) voxels: planar weights (0 beyond the row).
  std::vector<int32_t> x_base;
  std::vector<float> x_weights[4];
  // And transposed: the weights of a node's voxels from x_begin[node] on, x_count[node] of them, a multiple of
  // kRowPadding with zeros at the end, at x_support + x_span * node.
  std::vector<int> x_begin, x_count;
  std::vector<float> x_support;
  int x_span = 0;
};

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_METRIC_FFD_BRICKS_H_
