// SPDX-License-Identifier: Apache-2.0
// The cut of EvaluateNgf into tasks on the CPU, which depends on the size of the images alone.
#ifndef INTRAWARP_ENGINE_METRIC_NGF_PLAN_H_
#define INTRAWARP_ENGINE_METRIC_NGF_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/metric/ngf_kernels.h"

namespace intrawarp::cpu {

struct NgfSums {
  double value = 0, weight = 0, samples = 0;
};

struct NgfBrickRange {
  int y0, y1, z0, z1;
};

struct NgfPlan {
  static constexpr int kBrickY = 16, kBrickZ = 32;
  // Floats of a vector of any instruction set, at most.
  static constexpr int kPad = 64;

  const NgfTask& task;
  NgfScales scales;
  float* voxel_gradient;

  int64_t bricks() const { return int64_t{Blocks(task.size.y, kBrickY)} * Blocks(task.size.z, kBrickZ); }
  NgfBrickRange Brick(int64_t i) const {
    const int blocks = Blocks(task.size.y, kBrickY);
    const int y = static_cast<int>(i % blocks) * kBrickY, z = static_cast<int>(i / blocks) * kBrickZ;
    return {y, std::min(task.size.y, y + kBrickY), z, std::min(task.size.z, z + kBrickZ)};
  }
  // Floats of scratch memory: of one row, and of a task.
  size_t RowFloats() const { return static_cast<size_t>(task.size.x) + 4 * kPad; }
  size_t ScratchFloats() const { return size_t{9} * (kBrickY + 2) * RowFloats(); }

 private:
  static int Blocks(int n, int block) { return (n + block - 1) / block; }
};

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_METRIC_NGF_PLAN_H_
