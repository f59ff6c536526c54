// SPDX-License-Identifier: Apache-2.0
// The two versions of AddTotalVariation, and the arithmetic that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_TRANSFORM_TOTAL_VARIATION_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_TOTAL_VARIATION_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

struct TotalVariationTask {
  const float* grid = nullptr;
  Int3 size;
  // 1 / node distance in mm.
  Vec3f per_mm;
  float edge = 0;
  // weight / nodes.
  float scale = 0;
  const int* skip = nullptr;
  float* gradient = nullptr;
  double* value = nullptr;

  INTRAWARP_HD int64_t nodes() const { return int64_t{size.x} * size.y * size.z; }
  INTRAWARP_HD int64_t stride(int axis) const { return axis == 0 ? 1 : axis == 1 ? size.x : int64_t{size.x} * size.y; }
};

INTRAWARP_HD inline Int3 NodeAt(const TotalVariationTask& t, int64_t node) {
  const int64_t row = node / t.size.x;
  return {static_cast<int>(node - row * t.size.x), static_cast<int>(row % t.size.y), static_cast<int>(row / t.size.y)};
}

// The forward difference of a node along an axis, per mm; 0 at the last node.
INTRAWARP_HD inline Vec3f ForwardDifference(const TotalVariationTask& t, int64_t node, Int3 at, int axis) {
  if (at[axis] == t.size[axis] - 1) return {0, 0, 0};
  const float* here = t.grid + 3 * node;
  const float* next = here + 3 * t.stride(axis);
  const float per_mm = t.per_mm[axis];
  return {(next[0] - here[0]) * per_mm, (next[1] - here[1]) * per_mm, (next[2] - here[2]) * per_mm};
}

// sqrt(|G|^2 + e^2) of a node.
INTRAWARP_HD inline float NodeVariation(const TotalVariationTask& t, int64_t node, Int3 at) {
  float sum = t.edge * t.edge;
  for (int axis = 0; axis < 3; ++axis) {
    const Vec3f d = ForwardDifference(t, node, at, axis);
    sum += d.x * d.x + d.y * d.y + d.z * d.z;
  }
  return sqrtf(sum);
}

// The derivative of the sum of all node variations by a control point; *own is the node's own variation.
INTRAWARP_HD inline Vec3f VariationDerivative(const TotalVariationTask& t, int64_t node, float* own) {
  const Int3 at = NodeAt(t, node);
  *own = NodeVariation(t, node, at);
  Vec3f sum{0, 0, 0};
  for (int axis = 0; axis < 3; ++axis) {
    const float per_mm = t.per_mm[axis];
    sum = sum - (per_mm / *own) * ForwardDifference(t, node, at, axis);
    if (at[axis] == 0) continue;
    Int3 before = at;
    before[axis] -= 1;
    const int64_t previous = node - t.stride(axis);
    sum = sum + (per_mm / NodeVariation(t, previous, before)) * ForwardDifference(t, previous, before, axis);
  }
  return sum;
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status AddTotalVariation(const ExecContext& ctx, const TotalVariationTask& task);
                             int64_t TotalVariationWorkspaceBytes(Int3 size);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_TOTAL_VARIATION_KERNELS_H_
