// SPDX-License-Identifier: Apache-2.0
// The values that all rows of one evaluation of the affine objective on the CPU share, and the cut of the fixed grid
// into pieces. The cut depends on the grid's size alone.
#ifndef INTRAWARP_ENGINE_METRIC_AFFINE_PLAN_H_
#define INTRAWARP_ENGINE_METRIC_AFFINE_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "engine/metric/affine_objective.h"
#include "engine/metric/soft_mask.h"

namespace intrawarp::cpu {

// Voxels [begin, end) of a row or of an axis.
struct Range {
  int begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

struct AffinePlan {
  AffinePlan(const AffineObjective& objective_in, const AffineMap& w)
      : objective(objective_in),
        size(objective_in.fixed.geometry.size),
        normalize(IndexToNormalized(objective_in.fixed.geometry)),
        to_moving(Compose(w, normalize)) {}

  double Q(int axis, int index) const { return normalize.m[axis][axis] * index + normalize.m[axis][3]; }
  Masking masking() const { return MaskingOf(objective.fixed_mask, objective.moving_mask); }
  bool masked() const { return masking() != Masking::kNone; }
  const float* FixedRow(int y, int z) const { return objective.fixed.data + RowOffset(y, z); }
  // Null without a mask.
  const uint8_t* FixedMaskRow(int y, int z) const {
    return objective.fixed_mask.data == nullptr ? nullptr : objective.fixed_mask.data + RowOffset(y, z);
  }
  int64_t RowOffset(int y, int z) const { return (int64_t{z} * size.y + y) * size.x; }

  const AffineObjective& objective;
  Int3 size;
  AffineMap normalize;
  // Fixed index to moving index.
  AffineMap to_moving;
};

// Inputs of the summing pass that depend on the metric; the others are null.
struct AffineTables {
  // NMI: MakeNmiPolynomials.
  const float* polynomials = nullptr;
  // LNCC: by each voxel of the warped image.
  const float* derivative = nullptr;
  const float* curvature = nullptr;
};

// An axis cut into blocks that are alike but for the last.
struct AxisBlocks {
  int size, block;
  int count() const { return (size + block - 1) / block; }
  Range operator[](int i) const { return {i * block, std::min(size, (i + 1) * block)}; }
};

// The grid is cut into bricks of y and z; small enough that, where the map is oblique, a brick's part of the moving
// image stays in cache from plane to plane, and large enough that the halo of NGF is a small part.
inline constexpr int kBrick = 32;
inline AxisBlocks BrickBlocks(int size) { return {size, size >= 128 ? kBrick : size >= 64 ? 16 : 8}; }

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_PLAN_H_
