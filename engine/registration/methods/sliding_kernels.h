// SPDX-License-Identifier: Apache-2.0
// The two versions of what two sliding layers need for every voxel (sliding.h), and the arithmetic that they share.
// Internal to this room.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_SLIDING_KERNELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_SLIDING_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"
#include "engine/image/volume.h"

namespace intrawarp {

// The fixed image and the moving one through each layer, on the fixed grid; not finite where a layer has no source.
struct LayerImages {
  const float* fixed = nullptr;
  const float* first = nullptr;
  const float* second = nullptr;
  // Null: every voxel counts.
  const uint8_t* mask = nullptr;
  float weight_per_unit = 1;
  int64_t voxels = 0;

  INTRAWARP_HD float WeightAt(int64_t i) const { return mask == nullptr ? 1.0f : MaskWeight(mask[i], weight_per_unit); }
};

INTRAWARP_HD inline float SquaredResidual(float fixed, float warped) {
  const float difference = fixed - warped;
  return difference * difference;
}

// The smaller of both squared residuals, by the voxel's weight; 0 without a source.
INTRAWARP_HD inline float LeastResidual(const LayerImages& t, int64_t i) {
  constexpr float kMost = 1e30f;
  const float first = SquaredResidual(t.fixed[i], t.first[i]), second = SquaredResidual(t.fixed[i], t.second[i]);
  float least = first < kMost ? first : kMost;
  if (second < least) least = second;
  return least < kMost ? t.WeightAt(i) * least : 0.0f;
}

// A squared residual in units of 1 / `scale`, at most `most`, which is also the residual of a layer without a source.
INTRAWARP_HD inline float BoundedResidual(float fixed, float warped, float scale, float most) {
  const float residual = scale * SquaredResidual(fixed, warped);
  return residual < most ? residual : most;
}

// The cost of a voxel in the second layer, less its cost in the first.
struct LayerCosts {
  LayerImages images;
  float scale = 1;
  float most = 1;
  float* out = nullptr;
};

INTRAWARP_HD inline float LayerCost(const LayerCosts& t, int64_t i) {
  const LayerImages& m = t.images;
  const float first = BoundedResidual(m.fixed[i], m.first[i], t.scale, t.most);
  const float second = BoundedResidual(m.fixed[i], m.second[i], t.scale, t.most);
  return m.WeightAt(i) * (second - first);
}

// A byte of the mask of a layer: the byte of `mask` (1 without one) where the share says that layer, 0 elsewhere.
struct LayerMask {
  const float* share = nullptr;
  const uint8_t* mask = nullptr;
  bool is_second = false;
  int64_t voxels = 0;
  uint8_t* out = nullptr;
};

INTRAWARP_HD inline uint8_t LayerMaskByte(const LayerMask& t, int64_t i) {
  if ((t.share[i] > 0.5f) != t.is_second) return 0;
  return t.mask == nullptr ? uint8_t{1} : t.mask[i];
}

// Control points of both layers on one grid with a node at each corner of the voxels (MakeControlGrid with a spacing of
// a voxel): each node takes the control points of the layer that has more of the voxels around it.
struct LayerMerge {
  const float* first = nullptr;
  const float* second = nullptr;
  const float* share = nullptr;
  Int3 voxels, nodes;
  float* out = nullptr;

  INTRAWARP_HD int64_t count() const { return int64_t{nodes.x} * nodes.y * nodes.z; }
};

// The voxel before or after a node along an axis, the nearest one of the image.
INTRAWARP_HD inline int VoxelBeside(int node, int nodes, int voxels, int side) {
  if (nodes == 1) return 0;
  const int voxel = node - 2 + side;
  return voxel < 0 ? 0 : voxel < voxels ? voxel : voxels - 1;
}

INTRAWARP_HD inline bool IsInSecond(const LayerMerge& t, Int3 node) {
  int sum = 0;
  for (int corner = 0; corner < 8; ++corner) {
    const int x = VoxelBeside(node.x, t.nodes.x, t.voxels.x, corner & 1);
    const int y = VoxelBeside(node.y, t.nodes.y, t.voxels.y, corner >> 1 & 1);
    const int z = VoxelBeside(node.z, t.nodes.z, t.voxels.z, corner >> 2);
    sum += t.share[(int64_t{z} * t.voxels.y + y) * t.voxels.x + x] > 0.5f ? 1 : -1;
  }
  return sum > 0;
}

INTRAWARP_HD inline void MergeNode(const LayerMerge& t, int64_t i) {
  const int64_t row = i / t.nodes.x;
  const Int3 node{static_cast<int>(i - row * t.nodes.x), static_cast<int>(row % t.nodes.y),
                  static_cast<int>(row / t.nodes.y)};
  const float* from = IsInSecond(t, node) ? t.second : t.first;
  for (int a = 0; a < 3; ++a) t.out[3 * i + a] = from[3 * i + a];
}

INTRAWARP_DECLARE_ON_DEVICES(
    // Writes LeastResidual of each voxel to `out`.
    absl::Status MeasureLeastResiduals(const ExecContext& ctx, const LayerImages& task, float* out);
    absl::Status MakeLayerCosts(const ExecContext& ctx, const LayerCosts& task);
    absl::Status MakeLayerMask(const ExecContext& ctx, const LayerMask& task);
    absl::Status MergeLayers(const ExecContext& ctx, const LayerMerge& task);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_SLIDING_KERNELS_H_
