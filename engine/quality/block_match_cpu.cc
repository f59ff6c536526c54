// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/quality/block_match_kernels.h"

namespace intrawarp::cpu {
namespace {

constexpr int kWindowSide = kBlockSide + 2 * kSearchRadius;

// The channels of a node, and zeros up to a length that vectorises.
constexpr int kLanes = 16;
struct Lanes {
  uint8_t channel[kLanes];
};

// A block of F, and the window of M that its displacements reach; nodes outside the grid are not valid.
struct Window {
  Lanes fixed[kBlockNodes];
  Lanes moving[kWindowSide * kWindowSide * kWindowSide];
  uint8_t fixed_valid[kBlockNodes];
  uint8_t moving_valid[kWindowSide * kWindowSide * kWindowSide];
  // Every node of both counts.
  bool whole;
};

// Copies the cube of `side` nodes from `first`; returns whether all of it is valid.
bool CopyCube(const DescriptorVolume& from, Int3 size, Int3 first, int side, Lanes* lanes, uint8_t* valid) {
  bool whole = true;
  for (int z = first.z; z < first.z + side; ++z) {
    for (int y = first.y; y < first.y + side; ++y) {
      for (int x = first.x; x < first.x + side; ++x, ++lanes, ++valid) {
        const bool inside = x >= 0 && y >= 0 && z >= 0 && x < size.x && y < size.y && z < size.z;
        const int64_t place = (int64_t{z} * size.y + y) * size.x + x;
        *valid = inside && from.valid[place] != 0;
        *lanes = Lanes{};
        if (*valid != 0) std::copy_n(from.descriptors[place].channel, kDescriptorChannels, lanes->channel);
        whole = whole && *valid != 0;
      }
    }
  }
  return whole;
}

// The place in the window of the node at l from the block's first node.
int WindowPlace(Int3 l) {
  return ((l.z + kSearchRadius) * kWindowSide + l.y + kSearchRadius) * kWindowSide + l.x + kSearchRadius;
}

// The squared distance of `nodes` neighbours that all count.
template <int nodes>
int RowDistance(const Lanes* a, const Lanes* b) {
  const uint8_t* p = a->channel;
  const uint8_t* q = b->channel;
  int sum = 0;
  for (int i = 0; i < nodes * kLanes; ++i) {
    const int16_t d = static_cast<int16_t>(p[i] - q[i]);
    sum += d * d;
  }
  return sum;
}

float WholeCost(const Window& w, Int3 l) {
  int64_t sum = 0;
  const Lanes* moving = w.moving + WindowPlace(l);
  for (int z = 0; z < kBlockSide; ++z) {
    for (int y = 0; y < kBlockSide; ++y) {
      sum += RowDistance<kBlockSide>(w.fixed + (z * kBlockSide + y) * kBlockSide,
                                     moving + (z * kWindowSide + y) * kWindowSide);
    }
  }
  return MeanCost(sum, kBlockNodes, kBlockNodes);
}

float PartCost(const Window& w, Int3 l, int nodes) {
  int64_t sum = 0;
  int count = 0;
  for (int i = 0; i < kBlockNodes; ++i) {
    const int x = i % kBlockSide, y = i / kBlockSide % kBlockSide, z = i / (kBlockSide * kBlockSide);
    const int there = WindowPlace({l.x + x, l.y + y, l.z + z});
    if (w.fixed_valid[i] == 0 || w.moving_valid[there] == 0) continue;
    sum += RowDistance<1>(w.fixed + i, w.moving + there);
    ++count;
  }
  return MeanCost(sum, count, nodes);
}

// The nodes that count without a displacement, and whether the block is to be matched.
BlockMatch CountNodes(const BlockMatchInput& in, Int3 first, const Window& w) {
  BlockMatch match;
  BlockSums sums;
  for (int i = 0; i < kBlockNodes; ++i) {
    const Int3 p{i % kBlockSide, i / kBlockSide % kBlockSide, i / (kBlockSide * kBlockSide)};
    const Int3 node{first.x + p.x, first.y + p.y, first.z + p.z};
    sums.present += node.x < in.size.x && node.y < in.size.y && node.z < in.size.z;
    if (w.fixed_valid[i] == 0 || w.moving_valid[WindowPlace(p)] == 0) continue;
    ++match.nodes;
    const int64_t place = (int64_t{node.z} * in.size.y + node.y) * in.size.x + node.x;
    sums.fixed += in.fixed.descriptors[place].variation;
    sums.moving += in.moving.descriptors[place].variation;
  }
  SetVariation(in, sums, &match);
  return match;
}

// Everything but the minima; the costs go to in.costs.
BlockMatch CostBlock(const BlockMatchInput& in, int block, Window* w) {
  const Int3 at = BlockAt(in.blocks, block);
  const Int3 first{at.x * kBlockSide, at.y * kBlockSide, at.z * kBlockSide};
  const bool whole = CopyCube(in.fixed, in.size, first, kBlockSide, w->fixed, w->fixed_valid);
  const Int3 corner{first.x - kSearchRadius, first.y - kSearchRadius, first.z - kSearchRadius};
  w->whole = CopyCube(in.moving, in.size, corner, kWindowSide, w->moving, w->moving_valid) && whole;
  BlockMatch match = CountNodes(in, first, *w);
  float* costs = in.costs + int64_t{block} * kSearchCount;
  for (int s = 0; s < kSearchCount; ++s) {
    const Int3 l = DisplacementOf(s);
    const bool wanted = match.matched != 0 && IsSearched(in.size, l);
    costs[s] = !wanted ? INFINITY : w->whole ? WholeCost(*w, l) : PartCost(*w, l, match.nodes);
  }
  return match;
}

// The minimum of the costs of all displacements, of which those without one are infinite.
CostMinimum MinimumOf(const float* costs) {
  const int best = BestDisplacement(costs);
  CostSurroundings around;
  for (int s = 0; s < kSearchCount; ++s) AddCost(best, s, costs[s], &around);
  return MinimumAt(costs, best, around);
}

void FillMinima(const BlockMatchInput& in, int block, BlockMatch* match) {
  if (match->matched == 0) return;
  match->own = MinimumOf(in.costs + int64_t{block} * kSearchCount);
  float smoothed[kSearchCount];
  for (int s = 0; s < kSearchCount; ++s) smoothed[s] = SmoothedCost(in, BlockAt(in.blocks, block), s);
  match->smoothed = MinimumOf(smoothed);
}

}  // namespace

absl::Status MatchBlocks(const ExecContext&, const BlockMatchInput& in, BlockMatch* out) {
  const int64_t blocks = BlockCount(in.size);
  ParallelFor(blocks, [&](int64_t i) { out[i] = CostBlock(in, static_cast<int>(i), ThreadScratch<Window>(1)); });
  ParallelFor(blocks, [&](int64_t i) { FillMinima(in, static_cast<int>(i), &out[i]); });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
