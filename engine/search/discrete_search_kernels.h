// SPDX-License-Identifier: Apache-2.0
// The two versions of the discrete search, and the arithmetic that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_KERNELS_H_
#define INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/feature/pooled_descriptor.h"
#include "engine/search/discrete_search.h"

namespace intrawarp {

// u is held in so many steps a node.
inline constexpr int kDisplacementSteps = 64;
// A smoothed cost is the weighted sum over the sum of weights, in steps of kCostStep.
inline constexpr int kCostDivisor = 16;
// Costs of a label begin at multiples of so many nodes.
inline constexpr int kCostAlignment = 64;

struct DiscreteSearch {
  const PooledDescriptor* fixed = nullptr;
  const PooledDescriptor* moving = nullptr;
  NodeWeights weights = {};
  Int3 size, reach;
  // Workspace: the costs, by label and node; the best label of each node; u, by axis and node. `stride` is the distance
  // of two labels, and of two axes of u.
  int64_t stride = 0;
  uint16_t* costs = nullptr;
  int32_t* best = nullptr;
  int32_t* u = nullptr;
  float* displacement = nullptr;

  bool weighted() const { return weights.fixed != nullptr || weights.moving != nullptr; }
};

// A weight in steps of 1/256: 256 for 255. Costs times it stay within 32 bits.
INTRAWARP_HD inline int WeightSteps(int byte) { return byte + (byte >> 7); }
INTRAWARP_HD inline int WeightSteps(const uint8_t* weights, int64_t node) {
  return weights == nullptr ? 256 : WeightSteps(weights[node]);
}

// The cost of a place from F's squares, and from what M adds to them: M's squares less twice the product. The weights
// are those of both nodes, in steps. Rounds down, and not below 0.
INTRAWARP_HD inline int WeightedCost(int squares, int added, int fixed_steps, int moving_steps) {
  return (fixed_steps * (squares + ((moving_steps * added) >> 8))) >> 8;
}

INTRAWARP_HD inline Int3 LabelAt(Int3 reach, int label) {
  const int nx = 2 * reach.x + 1, ny = 2 * reach.y + 1;
  return {label % nx - reach.x, label / nx % ny - reach.y, label / nx / ny - reach.z};
}

// The weight of a neighbour `offset` nodes away, for offsets -2 to 2.
INTRAWARP_HD inline int SmoothingWeight(int offset) { return 3 - (offset < 0 ? -offset : offset); }

// The sum of the weights of the neighbours of place i of n.
INTRAWARP_HD inline int SmoothingWeights(int i, int n) {
  int sum = 0;
  for (int offset = -2; offset <= 2; ++offset) {
    if (i + offset >= 0 && i + offset < n) sum += SmoothingWeight(offset);
  }
  return sum;
}

// The factor that turns a sum of weighted costs at a node into a cost.
INTRAWARP_HD inline float CostScale(Int3 size, Int3 node) {
  return 1.0f / static_cast<float>(kCostDivisor * SmoothingWeights(node.x, size.x) * SmoothingWeights(node.y, size.y) *
                                   SmoothingWeights(node.z, size.z));
}

// A step of u from the sum of `count` components of labels, rounded.
INTRAWARP_HD inline int MeanStep(int sum, int count) {
  const int numerator = 2 * kDisplacementSteps * sum + count, denominator = 2 * count;
  const int quotient = numerator / denominator;
  return numerator % denominator < 0 ? quotient - 1 : quotient;
}

// Writes u at a node from the best labels around it.
INTRAWARP_HD inline void AverageLabels(const DiscreteSearch& in, int64_t place, Int3 node) {
  Int3 sum{0, 0, 0};
  int count = 0;
  for (int dz = -1; dz <= 1; ++dz) {
    for (int dy = -1; dy <= 1; ++dy) {
      for (int dx = -1; dx <= 1; ++dx) {
        const int x = node.x + dx, y = node.y + dy, z = node.z + dz;
        if (x < 0 || y < 0 || z < 0 || x >= in.size.x || y >= in.size.y || z >= in.size.z) continue;
        sum = sum + LabelAt(in.reach, in.best[(int64_t{z} * in.size.y + y) * in.size.x + x]);
        ++count;
      }
    }
  }
  for (int a = 0; a < 3; ++a) in.u[a * in.stride + place] = MeanStep(sum[a], count);
}

INTRAWARP_HD inline void WriteDisplacement(const DiscreteSearch& in, int64_t place) {
  for (int a = 0; a < 3; ++a) {
    in.displacement[3 * place + a] = static_cast<float>(in.u[a * in.stride + place]) * (1.0f / kDisplacementSteps);
  }
}

// Pulls in device memory.
struct PulledCosts {
  const NodePull* pulls = nullptr;
  int count = 0;
};

// Adds the pull of a node to the cost of a label.
INTRAWARP_HD inline void AddPull(const DiscreteSearch& in, const NodePull& pull, int label) {
  const Int3 l = LabelAt(in.reach, label);
  constexpr int64_t kMostCost = 65535;
  int64_t sum = kPullDivisor / 2 - pull.least;
  for (int a = 0; a < 3; ++a) sum += pull.Along(a, l[a]);
  uint16_t* const cost = in.costs + label * in.stride + pull.node;
  sum = *cost + sum / kPullDivisor;
  *cost = static_cast<uint16_t>(sum < kMostCost ? sum : kMostCost);
}

INTRAWARP_DECLARE_ON_DEVICES(
    // The smoothed costs of every label.
    absl::Status ComputeCosts(const ExecContext& ctx, const DiscreteSearch& in);
    // The costs of the labels of pulled nodes.
    absl::Status PullCosts(const ExecContext& ctx, const DiscreteSearch& in, const PulledCosts& pulled);
    // The best label of every node against u, and u from these.
    absl::Status CoupledStep(const ExecContext& ctx, const DiscreteSearch& in, int coupling);
    absl::Status WriteDisplacements(const ExecContext& ctx, const DiscreteSearch& in);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_KERNELS_H_
