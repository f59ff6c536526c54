// SPDX-License-Identifier: Apache-2.0
// How LnccResidual and NgfResidual are cut into tasks on the CPU: by the size of the images alone.
#ifndef INTRAWARP_ENGINE_METRIC_RESIDUAL_PLAN_H_
#define INTRAWARP_ENGINE_METRIC_RESIDUAL_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/metric/residual_kernels.h"

namespace intrawarp::cpu {

// Rows that are summed at a time.
inline constexpr int kLnccRows = 4;
// Floats that a vector may read beyond the end of an image in the workspace; at least a vector of any instruction set.
inline constexpr int kVectorPad = 64;

// The window with kLnccRows - 1 zeros before and behind: entry kLnccRows - 1 + k weighs the voxel k - radius away.
struct LnccTaps {
  explicit LnccTaps(const LnccWindow& window) : radius(window.radius) {
    for (int k = 0; k <= 2 * radius; ++k) padded[kLnccRows - 1 + k] = window.weights[std::abs(k - radius)];
  }
  int radius;
  float padded[2 * kMaxLnccRadius + 2 * kLnccRows] = {};
};

struct LnccSums {
  double value = 0, samples = 0;
};

// Voxels [x0, x1) x [y0, y1) of plane z, or [x0, x1) of the kLnccRun rows (y, z), (y, z + 1) ...
struct LnccTile {
  int x0, x1, y0, y1, y, z;
};

struct LnccPlan {
  static constexpr int kTileX = 128, kTileY = 64;

  LnccPlan(const LnccTask& task_in) : task(task_in), taps(MakeLnccWindow(task_in.sigma)), tiles(Tiles(task_in.size)) {}

  // Tiles along x are of about equal width.
  static LnccTiles Tiles(Int3 n) {
    const int count = (n.x + kTileX - 1) / kTileX;
    return MakeLnccTiles(n, (n.x + count - 1) / count, kTileY);
  }

  Int3 size() const { return task.size; }
  int64_t Row(int y, int z) const { return (int64_t{z} * size().y + y) * size().x; }
  const float* shift(const LnccTile& tile) const {
    const int y = tile.y / tiles.tile.y;
    return shifts + 2 * tiles.Index(tile.x0 / tiles.tile.x, y, tile.z / tiles.tile.z);
  }

  int64_t plane_tiles() const { return int64_t{tiles.count.x} * tiles.count.y * size().z; }
  LnccTile PlaneTile(int64_t i) const {
    const int x = static_cast<int>(i % tiles.count.x) * tiles.tile.x;
    const int y = static_cast<int>(i / tiles.count.x % tiles.count.y) * tiles.tile.y;
    return {x, std::min(size().x, x + tiles.tile.x),
            y, std::min(size().y, y + tiles.tile.y),
            y, static_cast<int>(i / tiles.count.x / tiles.count.y)};
  }
  int64_t run_tiles() const { return int64_t{tiles.count.x} * size().y * tiles.count.z; }
  LnccTile RunTile(int64_t i) const {
    const int x = static_cast<int>(i % tiles.count.x) * tiles.tile.x;
    const int y = static_cast<int>(i / tiles.count.x % size().y);
    return {x, std::min(size().x, x + tiles.tile.x),
            y, y + 1,
            y, static_cast<int>(i / tiles.count.x / size().y) * kLnccRun};
  }
  // Floats of scratch that any task takes.
  size_t ScratchFloats() const {
    const size_t width = tiles.tile.x + kVectorPad, padded = width + 2 * taps.radius + kVectorPad;
    const size_t plane = (kLnccChannels * (2 * taps.radius + kLnccRows) + 2 * kLnccRows + 2) * padded;
    const size_t run = (kLnccChannels * (kLnccRun + 2 * taps.radius) + 8) * width;
    return std::max(plane, run);
  }

  const LnccTask& task;
  LnccTaps taps;
  LnccTiles tiles;
  float* shifts = nullptr;
  float fixed_mean = 0, moving_mean = 0;
  // Of the images, and later of A, B, C, over x and y. Each with kVectorPad floats behind it.
  float* sums[kLnccChannels] = {};
  // A, B, C; null without a residual.
  float* coefficients[3] = {};
  float* residual = nullptr;
  // -1 / N
  float scale = 0;
};

struct NgfSums {
  double value = 0, weight = 0, samples = 0;
};

struct NgfBrickRange {
  int y0, y1, z0, z1;
};

inline size_t NgfRowFloats(int n) { return static_cast<size_t>(n) + 4 * kVectorPad; }

struct NgfPlan {
  static constexpr int kBrickY = 16, kBrickZ = 32;

  const NgfTask& task;
  NgfScales scales;
  float* residual;

  int64_t bricks() const { return int64_t{Blocks(task.size.y, kBrickY)} * Blocks(task.size.z, kBrickZ); }
  NgfBrickRange Brick(int64_t i) const {
    const int blocks = Blocks(task.size.y, kBrickY);
    const int y = static_cast<int>(i % blocks) * kBrickY, z = static_cast<int>(i / blocks) * kBrickZ;
    return {y, std::min(task.size.y, y + kBrickY), z, std::min(task.size.z, z + kBrickZ)};
  }
  size_t ScratchFloats() const { return size_t{9} * (kBrickY + 2) * NgfRowFloats(task.size.x); }

 private:
  static int Blocks(int n, int block) { return (n + block - 1) / block; }
};

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_METRIC_RESIDUAL_PLAN_H_
