// SPDX-License-Identifier: Apache-2.0
// The two versions of MatchBlocks, and what they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_QUALITY_BLOCK_MATCH_KERNELS_H_
#define INTRAWARP_ENGINE_QUALITY_BLOCK_MATCH_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/quality/block_match.h"

namespace intrawarp {

inline constexpr int kBlockNodes = kBlockSide * kBlockSide * kBlockSide;
inline constexpr int kSearchSide = 2 * kSearchRadius + 1;
inline constexpr int kSearchCount = kSearchSide * kSearchSide * kSearchSide;

struct BlockMatchInput {
  DescriptorVolume fixed, moving;
  Int3 size;
  Int3 blocks;
  // Workspace: kSearchCount a block.
  float* costs = nullptr;
};

INTRAWARP_HD inline Int3 BlockAt(Int3 blocks, int block) {
  return {block % blocks.x, block / blocks.x % blocks.y, block / blocks.x / blocks.y};
}

INTRAWARP_HD inline Int3 DisplacementOf(int search) {
  return {search % kSearchSide - kSearchRadius, search / kSearchSide % kSearchSide - kSearchRadius,
          search / (kSearchSide * kSearchSide) - kSearchRadius};
}

INTRAWARP_HD inline int SearchOf(Int3 l) {
  return ((l.z + kSearchRadius) * kSearchSide + l.y + kSearchRadius) * kSearchSide + l.x + kSearchRadius;
}

INTRAWARP_HD inline bool IsSearched(Int3 size, Int3 l) {
  return (size.x > 1 || l.x == 0) && (size.y > 1 || l.y == 0) && (size.z > 1 || l.z == 0);
}

// Sums over the nodes of a block that count without a displacement: the nodes in the grid, counting or not, and the
// variations of both volumes.
struct BlockSums {
  int present = 0;
  double fixed = 0, moving = 0;
};

INTRAWARP_HD inline bool HasStructure(const DescriptorVolume& volume, float variation) {
  return variation >= fmaxf(volume.least_variation, kStructureNoises * *volume.noise);
}

// Sets variation, covered, matched and shown, for match->nodes nodes with these sums.
INTRAWARP_HD inline void SetVariation(const BlockMatchInput& in, const BlockSums& sums, BlockMatch* match) {
  if (match->nodes == 0) return;
  match->variation = static_cast<float>(sums.fixed / match->nodes);
  match->covered = 2 * match->nodes >= sums.present;
  match->matched = match->covered != 0 && HasStructure(in.fixed, match->variation);
  match->shown = match->covered != 0 && HasStructure(in.moving, static_cast<float>(sums.moving / match->nodes));
}

// The mean of a sum over `count` nodes of a block with `nodes`; infinite where too few count.
INTRAWARP_HD inline float MeanCost(int64_t sum, int count, int nodes) {
  return count > 0 && 2 * count >= nodes ? static_cast<float>(sum) / static_cast<float>(count) : INFINITY;
}

INTRAWARP_HD inline bool HasCost(float cost) { return cost < INFINITY; }

// The vertex of the parabola through three costs at -1, 0, 1, of which the middle one is the least.
INTRAWARP_HD inline float ParabolaVertex(float below, float here, float above) {
  if (!(HasCost(below) && HasCost(above))) return 0;
  const float curvature = below + above - 2 * here;
  return curvature > 0 ? fminf(fmaxf(0.5f * (below - above) / curvature, -0.5f), 0.5f) : 0.0f;
}

INTRAWARP_HD inline int SquaredLength(Int3 l) { return l.x * l.x + l.y * l.y + l.z * l.z; }

// The least cost; of equal ones the shortest displacement's, then the first.
INTRAWARP_HD inline int BestDisplacement(const float* costs) {
  int best = SearchOf({0, 0, 0});
  for (int s = 0; s < kSearchCount; ++s) {
    const bool is_shorter = SquaredLength(DisplacementOf(s)) < SquaredLength(DisplacementOf(best));
    if (costs[s] < costs[best] || (costs[s] == costs[best] && is_shorter)) best = s;
  }
  return best;
}

// The sum and the number of all costs, and the least one that is two or more nodes from the best displacement.
struct CostSurroundings {
  double sum = 0;
  int count = 0;
  float rival = INFINITY;
};

// Adds the cost of displacement `search`, which may be infinite.
INTRAWARP_HD inline void AddCost(int best, int search, float cost, CostSurroundings* around) {
  if (!HasCost(cost)) return;
  around->sum += cost;
  ++around->count;
  const Int3 at = DisplacementOf(best), l = DisplacementOf(search), d{l.x - at.x, l.y - at.y, l.z - at.z};
  const bool is_near = d.x >= -1 && d.x <= 1 && d.y >= -1 && d.y <= 1 && d.z >= -1 && d.z <= 1;
  if (!is_near) around->rival = fminf(around->rival, cost);
}

// The minimum at BestDisplacement(costs), with what was added up of all costs.
INTRAWARP_HD inline CostMinimum MinimumAt(const float* costs, int best, const CostSurroundings& around) {
  const Int3 at = DisplacementOf(best);
  CostMinimum minimum;
  minimum.zero = costs[SearchOf({0, 0, 0})];
  minimum.best = costs[best];
  minimum.mean = around.count > 0 ? static_cast<float>(around.sum / around.count) : 0.0f;
  minimum.rival = HasCost(around.rival) ? around.rival : minimum.mean;
  int stride = 1;
  for (int a = 0; a < 3; ++a, stride *= kSearchSide) {
    const int far = at[a] < 0 ? -at[a] : at[a];
    const float refined =
        far < kSearchRadius ? ParabolaVertex(costs[best - stride], costs[best], costs[best + stride]) : 0.0f;
    minimum.offset[a] = static_cast<float>(at[a]) + refined;
    if (far > minimum.reach) minimum.reach = far;
  }
  return minimum;
}

// The cost of one displacement, smoothed over a block and its neighbours that have one.
INTRAWARP_HD inline float SmoothedCost(const BlockMatchInput& in, Int3 block, int search) {
  float sum = 0, weights = 0;
  for (int z = block.z > 0 ? block.z - 1 : 0; z <= block.z + 1 && z < in.blocks.z; ++z) {
    for (int y = block.y > 0 ? block.y - 1 : 0; y <= block.y + 1 && y < in.blocks.y; ++y) {
      for (int x = block.x > 0 ? block.x - 1 : 0; x <= block.x + 1 && x < in.blocks.x; ++x) {
        const int64_t neighbour = (int64_t{z} * in.blocks.y + y) * in.blocks.x + x;
        const float cost = in.costs[neighbour * kSearchCount + search];
        const int weight = (x == block.x ? 2 : 1) * (y == block.y ? 2 : 1) * (z == block.z ? 2 : 1);
        if (!HasCost(cost)) continue;
        sum += static_cast<float>(weight) * cost;
        weights += static_cast<float>(weight);
      }
    }
  }
  return weights > 0 ? sum / weights : INFINITY;
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status MatchBlocks(const ExecContext& ctx, const BlockMatchInput& in,
                                                      BlockMatch* out);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_BLOCK_MATCH_KERNELS_H_
