// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/bspline_tiles.h"

#include <random>

#include "engine/device/parallel.h"
#include "engine/image/bspline.h"

namespace intrawarp::baselines {

WeightTable MakeWeightTable(int tile) {
  WeightTable table{};
  for (int i = 0; i < tile; ++i) {
    double w[4];
    BsplineWeights(static_cast<double>(i) / tile, w);
    for (int l = 0; l < 4; ++l) table.w[i][l] = static_cast<float>(w[l]);
  }
  return table;
}

LerpTable MakeLerpTable(int tile) {
  LerpTable table{};
  for (int i = 0; i < tile; ++i) {
    double w[4];
    BsplineWeights(static_cast<double>(i) / tile, w);
    table.low[i] = static_cast<float>(w[1] / (w[0] + w[1]));
    table.high[i] = static_cast<float>(w[3] / (w[2] + w[3]));
    table.mix[i] = static_cast<float>(w[2] + w[3]);
  }
  return table;
}

std::vector<Float4> RandomControlPoints(const TiledVolume& volume, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> value(-10, 10);
  std::vector<Float4> control(volume.node_count());
  for (Float4& p : control) {
    p.x = value(engine);
    p.y = value(engine);
    p.z = value(engine);
  }
  return control;
}

std::vector<double> ReferenceRows(const TiledVolume& volume, const std::vector<Float4>& control, int64_t row_stride) {
  const Int3 size = volume.size, nodes = volume.nodes();
  const int tile = volume.tile;
  const int64_t rows = (int64_t{size.y} * size.z + row_stride - 1) / row_stride;
  std::vector<double> reference(rows * size.x * 3);
  ParallelFor(rows, [&](int64_t r) {
    const int64_t row = r * row_stride;
    const int y = static_cast<int>(row % size.y), z = static_cast<int>(row / size.y);
    double wx[4], wy[4], wz[4];
    BsplineWeights(static_cast<double>(y % tile) / tile, wy);
    BsplineWeights(static_cast<double>(z % tile) / tile, wz);
    for (int x = 0; x < size.x; ++x) {
      BsplineWeights(static_cast<double>(x % tile) / tile, wx);
      double* out = &reference[(r * size.x + x) * 3];
      for (int n = 0; n < 4; ++n)
        for (int m = 0; m < 4; ++m)
          for (int l = 0; l < 4; ++l) {
            const int64_t line = int64_t{z / tile + n} * nodes.y + y / tile + m;
            const Float4& p = control[line * nodes.x + x / tile + l];
            const double w = wx[l] * wy[m] * wz[n];
            out[0] += w * p.x;
            out[1] += w * p.y;
            out[2] += w * p.z;
          }
    }
  });
  return reference;
}

}  // namespace intrawarp::baselines
