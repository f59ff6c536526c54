// SPDX-License-Identifier: Apache-2.0
// Matching blocks of one descriptor volume in another on the same grid: the displacement that suits each block best,
// and how far its cost lies below that of others.
//
// The grid is cut into cubes of kBlockSide nodes (smaller at its ends). The cost of displacement l, with every
// component in [-kSearchRadius, kSearchRadius], is the mean over the block's nodes p of the sum over the channels of
// (F(p) - M(p + l))^2; a node counts where F is valid at p and M at p + l. A displacement with fewer than half of the
// block's nodes has no cost. An axis of one node is not searched.
#ifndef INTRAWARP_ENGINE_QUALITY_BLOCK_MATCH_H_
#define INTRAWARP_ENGINE_QUALITY_BLOCK_MATCH_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/feature/descriptor.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

inline constexpr int kBlockSide = 5;
inline constexpr int kSearchRadius = 3;

// The least of the costs of all displacements, and what surrounds it.
struct CostMinimum {
  // The displacement in nodes, refined by parabolas along the axes.
  float offset[3] = {0, 0, 0};
  // The largest component of the displacement before it was refined.
  int32_t reach = 0;
  // Costs: without a displacement (infinite where that has none), of the best one, of the best one that is two or more
  // nodes from it on some axis, and the mean of all.
  float zero = 0, best = 0, rival = 0, mean = 0;
};

struct BlockMatch {
  // Nodes where both volumes are valid without a displacement.
  int32_t nodes = 0;
  // 1: half of the block's nodes or more count without a displacement.
  int32_t covered = 0;
  // 1: the block has structure and costs, too; otherwise the minima below are not set.
  int32_t matched = 0;
  // 1: covered, and M has structure there without a displacement.
  int32_t shown = 0;
  // Mean variation of F over the nodes.
  float variation = 0;
  // The block's own costs place an error best; the others are the costs smoothed over the 26 blocks around it with
  // the weights 1 2 1 on each axis, which noise moves least.
  CostMinimum own, smoothed;
};

// The blocks along each axis.
inline Int3 BlockCounts(Int3 size) {
  return {(size.x + kBlockSide - 1) / kBlockSide, (size.y + kBlockSide - 1) / kBlockSide,
          (size.z + kBlockSide - 1) / kBlockSide};
}
inline int64_t BlockCount(Int3 size) {
  const Int3 n = BlockCounts(size);
  return int64_t{n.x} * n.y * n.z;
}

// A volume of descriptors and its noise (descriptor.h), in device memory: byte i of `valid` is not 0 where descriptor i
// counts.
struct DescriptorVolume {
  const Descriptor* descriptors = nullptr;
  const uint8_t* valid = nullptr;
  const float* noise = nullptr;
  float least_variation = 0;
};

// A block has structure in a volume when its variation there is at least the volume's `least_variation` and so many
// times its noise.
inline constexpr float kStructureNoises = 2;

// `out` holds BlockCount(size), x fastest. A block is matched when it is covered and F has structure. Stream-ordered. A
// block's own costs are quotients of exact integers: CPU and CUDA give the same bits for the same descriptors; the
// variation, means of costs and the smoothed costs agree to float32 rounding. Workspace: MatchBlocksWorkspaceBytes.
absl::Status MatchBlocks(const ExecContext& ctx, const DescriptorVolume& fixed, const DescriptorVolume& moving,
                         Int3 size, BlockMatch* out);
size_t MatchBlocksWorkspaceBytes(Int3 size);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_BLOCK_MATCH_H_
