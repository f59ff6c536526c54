// SPDX-License-Identifier: Apache-2.0
// The cut of EvaluateLncc into tasks on the CPU, which depends on the size of the images alone.
#ifndef INTRAWARP_ENGINE_METRIC_LNCC_PLAN_H_
#define INTRAWARP_ENGINE_METRIC_LNCC_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "engine/metric/lncc_kernels.h"

namespace intrawarp::cpu {

// Rows that are summed at a time.
inline constexpr int kLnccRows = 4;

// The window with kLnccRows - 1 zeros before and behind: entry kLnccRows - 1 + k weighs the box k - radius away.
struct LnccTaps {
  explicit LnccTaps(const LnccWindow& window) : radius(window.radius) {
    for (int k = 0; k <= 2 * radius; ++k) padded[kLnccRows - 1 + k] = window.weights[std::abs(k - radius)];
  }
  int radius;
  float padded[2 * kMaxLnccRadius + 2 * kLnccRows] = {};
};

struct LnccSums {
  double value = 0, weight = 0;
};

// The column of boxes that a task marches through.
struct LnccColumn {
  int x0, x1, y0, y1, z0, z1;
};

struct LnccPlan {
  // Small enough for the ring of planes to stay in a core's own cache; long along x, because short rows, each on a page
  // of its own, come slowly from memory.
  static constexpr int kTileX = 320, kTileY = 8, kCoefficientTileY = 16, kRun = 8;
  // Floats of a vector of any instruction set, at most.
  static constexpr int kPad = 64;
  // Planes of a tile. Deep, because runs of different tiles need their sums taken over.
  static constexpr int kTileZ = 16;
  static_assert(kTileZ % kRun == 0);
  // Columns are cut along z, which costs the halo of each part, where there would be fewer tasks than kMinTasks, into
  // parts of kMinPlanes or more.
  static constexpr int kMinTasks = 32, kMinPlanes = 48;

  explicit LnccPlan(const LnccTask& task_in)
      : task(task_in), taps(MakeLnccWindow(task_in.sigma)), tiles(Tiles(LnccBoxes(task_in.size))) {
    const int64_t columns = int64_t{tiles.count.x} * tiles.count.y;
    const int wanted = static_cast<int>((kMinTasks + columns - 1) / columns);
    const int parts = std::clamp(size().z / kMinPlanes, 1, wanted);
    depth = ((size().z + parts - 1) / parts + kRun - 1) / kRun * kRun;
  }

  // Tiles along x are of about equal width.
  static LnccTiles Tiles(Int3 n) {
    const int count = (n.x + kTileX - 1) / kTileX;
    return MakeLnccTiles(n, {(n.x + count - 1) / count, kTileY, kTileZ});
  }

  // The number of boxes along each axis.
  Int3 size() const { return tiles.size; }
  int64_t Row(int y, int z) const { return (int64_t{z} * size().y + y) * size().x; }
  int64_t VoxelRow(int y, int z) const { return (int64_t{z} * task.size.y + y) * task.size.x; }
  float* CoefficientRow(int c, int y, int z) const { return coefficients + 3 * Row(y, z) + int64_t{c} * size().x; }
  // The mean of f and of m in the tile of plane z.
  const float* Shift(const LnccColumn& column, int z) const {
    return shifts + 2 * tiles.Index(column.x0 / tiles.tile.x, column.y0 / kTileY, z / kTileZ);
  }

  int Rows(int tile_y) const { return (size().y + tile_y - 1) / tile_y; }
  int64_t columns(int tile_y) const { return int64_t{tiles.count.x} * Rows(tile_y) * ((size().z + depth - 1) / depth); }
  LnccColumn Column(int64_t i, int tile_y) const {
    const int x = static_cast<int>(i % tiles.count.x) * tiles.tile.x;
    const int y = static_cast<int>(i / tiles.count.x % Rows(tile_y)) * tile_y;
    const int z = static_cast<int>(i / tiles.count.x / Rows(tile_y)) * depth;
    return {x, std::min(size().x, x + tiles.tile.x), y, std::min(size().y, y + tile_y),
            z, std::min(size().z, z + depth)};
  }
  // Floats of scratch memory that any task takes.
  size_t ScratchFloats() const {
    const size_t width = tiles.tile.x + kPad, padded = width + 2 * taps.radius + kPad;
    const size_t ring =
        size_t{std::max(kLnccChannels * kTileY, 3 * kCoefficientTileY)} * (kRun + 2 * taps.radius) * width;
    const size_t run = (kLnccChannels * (kRun + kRun + 2 * taps.radius) + 16) * width;
    const size_t plane = (kLnccChannels * (2 * taps.radius + kLnccRows) + kLnccRows + 4) * padded;
    // Voxels of both images and of the weights in the rows of a box, each row twice as long.
    const size_t voxels = 3 * 4 * (2 * padded + kPad);
    return ring + run + plane + voxels;
  }

  const LnccTask& task;
  LnccTaps taps;
  LnccTiles tiles;
  // Planes of a column; a multiple of kRun.
  int depth;
  float* shifts = nullptr;
  float fixed_mean = 0, moving_mean = 0;
  // The weight of each box's samples.
  float* counts = nullptr;
  // Row by row A, B, C; null without a voxel_gradient.
  float* coefficients = nullptr;
  float* voxel_gradient = nullptr;
  // -1 / N
  float scale = 0;
};

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_METRIC_LNCC_PLAN_H_
