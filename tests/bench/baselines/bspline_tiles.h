// SPDX-License-Identifier: Apache-2.0
// Aligned grids as in Zachariadis (2020, "Heterogeneous parallel computing for image registration and linear algebra
// applications", PhD thesis, University of Córdoba), chapter 2, and in the paper of that chapter (Zachariadis et al.
// 2020, "Accelerating B-spline interpolation on GPUs", Computer Methods and Programs in Biomedicine 193). Control
// points lie every `tile` voxels, an integer, on the voxels 0, tile, 2 tile, ... of each axis. Section numbers are the
// thesis's.
//
//   T(x, y, z) = sum_lmn B_l(u) B_m(v) B_n(w) phi(i + l, j + m, k + n)          (equation 2.1)
//
// with i = x / tile (the thesis's i + 1: its grid begins at -1, ours in memory at 0) and u = (x % tile) / tile.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_BSPLINE_TILES_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_BSPLINE_TILES_H_

#include <cstdint>
#include <vector>

#include "engine/geometry/vec.h"

namespace intrawarp::baselines {

inline constexpr int kMinTile = 3, kMaxTile = 7;  // section 2.6.4

// A control point, and a voxel of the CUDA variants' output: NiftyReg's float4.
struct alignas(16) Float4 {
  float x = 0, y = 0, z = 0, w = 0;
};

struct TiledVolume {
  Int3 size;
  int tile = 5;

  int64_t voxels() const { return int64_t{size.x} * size.y * size.z; }
  Int3 tiles() const { return {(size.x + tile - 1) / tile, (size.y + tile - 1) / tile, (size.z + tile - 1) / tile}; }
  Int3 nodes() const { return tiles() + Int3{3, 3, 3}; }
  int64_t node_count() const { return int64_t{nodes().x} * nodes().y * nodes().z; }
};

// The look-up table of "Other optimizations" (section 2.5.2): B_0..B_3 at each voxel of a tile, made in float64.
struct WeightTable {
  float w[kMaxTile][4];
};
WeightTable MakeWeightTable(int tile);

// The same as linear interpolations (section 2.5.3): between the nodes 0 and 1 (`low`), of 2 and 3 (`high`), and of
// these two results (`mix`).
struct LerpTable {
  float low[kMaxTile + 1], high[kMaxTile + 1], mix[kMaxTile + 1];  // 8 floats: a vector of them can be loaded
};
LerpTable MakeLerpTable(int tile);

// x, y, z uniform in (-10, 10), drawn from `seed`.
std::vector<Float4> RandomControlPoints(const TiledVolume& volume, uint32_t seed);

// The plain triple sum in float64, weights too, of every `row_stride`-th row of voxels beginning with row 0 (row y + z
// size.y), three values a voxel.
std::vector<double> ReferenceRows(const TiledVolume& volume, const std::vector<Float4>& control, int64_t row_stride);

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_BSPLINE_TILES_H_
