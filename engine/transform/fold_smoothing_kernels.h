// SPDX-License-Identifier: Apache-2.0
// The CPU and CUDA versions of one round of SmoothFolds, and the arithmetic that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_TRANSFORM_FOLD_SMOOTHING_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_FOLD_SMOOTHING_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/transform/control_grid_kernels.h"

namespace intrawarp {

// Control points with a determinant below this in their support are smoothed.
inline constexpr float kFoldMargin = 0.02f;

struct FoldSmoothing {
  // At every voxel.
  const float* determinant = nullptr;
  AxisMap x, y, z;
  const float* grid = nullptr;
  // The neighbours that a control point moves to the mean of are this many control points away, along each axis.
  int reach = 1;
  // One byte a control point: whether it moves; and how many voxels fold.
  uint8_t* moves = nullptr;
  unsigned long long* folded = nullptr;
  float* out = nullptr;

  INTRAWARP_HD int64_t voxels() const { return int64_t{x.voxels} * y.voxels * z.voxels; }
  INTRAWARP_HD int64_t nodes() const { return int64_t{x.nodes} * y.nodes * z.nodes; }
};

// Calls mark(node) for the control points that a voxel has in reach.
template <typename Mark>
INTRAWARP_HD void ForNodesInReach(const FoldSmoothing& t, int64_t voxel, const Mark& mark) {
  const int64_t row = voxel / t.x.voxels;
  const int bx = MakeAxisTap(t.x, static_cast<int>(voxel - row * t.x.voxels)).base;
  const int by = MakeAxisTap(t.y, static_cast<int>(row % t.y.voxels)).base;
  const int bz = MakeAxisTap(t.z, static_cast<int>(row / t.y.voxels)).base;
  const int nx = t.x.nodes > 1 ? 4 : 1, ny = t.y.nodes > 1 ? 4 : 1, nz = t.z.nodes > 1 ? 4 : 1;
  for (int k = 0; k < nz; ++k)
    for (int j = 0; j < ny; ++j)
      for (int i = 0; i < nx; ++i) mark((int64_t{bz + k} * t.y.nodes + by + j) * t.x.nodes + bx + i);
}

// One component of a control point after the round.
INTRAWARP_HD inline float Smoothed(const FoldSmoothing& t, int64_t node, int component) {
  const float own = t.grid[3 * node + component];
  if (t.moves[node] == 0) return own;
  const int64_t row = node / t.x.nodes;
  const int at[3] = {static_cast<int>(node - row * t.x.nodes), static_cast<int>(row % t.y.nodes),
                     static_cast<int>(row / t.y.nodes)};
  const int size[3] = {t.x.nodes, t.y.nodes, t.z.nodes};
  const int64_t stride[3] = {1, t.x.nodes, int64_t{t.x.nodes} * t.y.nodes};
  float sum = 0;
  int neighbours = 0;
  for (int a = 0; a < 3; ++a) {
    if (at[a] >= t.reach) {
      sum += t.grid[3 * (node - t.reach * stride[a]) + component];
      ++neighbours;
    }
    if (at[a] < size[a] - t.reach) {
      sum += t.grid[3 * (node + t.reach * stride[a]) + component];
      ++neighbours;
    }
  }
  return neighbours == 0 ? own : 0.5f * (own + sum / static_cast<float>(neighbours));
}

// Fills moves and *folded, then out. Stream-ordered.
INTRAWARP_DECLARE_ON_DEVICES(absl::Status SmoothFoldsOnce(const ExecContext& ctx, const FoldSmoothing& task);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_FOLD_SMOOTHING_KERNELS_H_
