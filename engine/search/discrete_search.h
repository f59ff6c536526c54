// SPDX-License-Identifier: Apache-2.0
// Discrete search: for every node of a grid the displacement among all within reach that suits its surroundings best
// (Heinrich et al. 2014, "Non-parametric discrete registration with convex optimisation"; Siebert et al. 2021, "Fast 3D
// registration with accurate optimisation and little learning for Learn2Reg 2021").
//
// The cost of label l at node p is the squared distance of the pooled descriptors F(p) and M(p + l)
// (feature/pooled_descriptor.h), smoothed over the nodes with the weights 1 2 3 2 1 on each axis, normalised where the
// grid ends. A node without a descriptor in F costs nothing; a place outside M, or without a descriptor in it, costs as
// much as a descriptor of zeros, which keeps the body in view. Smoothed costs are held in steps of kCostStep.
//
// Nodes can have weights from 0 to 1. With w and v the weights of p and of p + l, the cost is
//   w (v |F(p) - M(p + l)|^2 + (1 - v) |F(p)|^2):
// a node of small weight leaves its label to its neighbours, and a place of small weight is like one without a
// descriptor.
//
// Coupled steps then bring smoothness: with u = 0 at first, each step takes for every node the label of the least
// cost(l) + c |l - u|^2, with the first of equals in the order of the labels (x fastest), and then u as the mean of the
// labels over the 3 x 3 x 3 nodes around it, in steps of 1/64 node. c grows by kCouplings.
//
// All of this is integer arithmetic: CPU and CUDA give the same bits.
#ifndef INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_H_
#define INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/feature/pooled_descriptor.h"
#include "engine/geometry/vec.h"
#include "engine/search/node_pulls.h"

namespace intrawarp {

// The labels are all l with |l| <= reach on every axis, each at most kMostReach; an axis of one node has a reach of 0.
inline constexpr int kMostReach = 12;
// In squared channels of 1.
inline constexpr double kCostStep = 16.0 / (255 * 255);
// The weights c of the coupled steps, in units of kCostStep / 256 times 64: 6e-5 (which decides where costs are equal),
// and 0.003 to 1.
inline constexpr int kCouplings[] = {1, 49, 163, 488, 1626, 4877, 16256};

inline int64_t LabelCount(Int3 reach) { return int64_t{2 * reach.x + 1} * (2 * reach.y + 1) * (2 * reach.z + 1); }

// One byte a node in steps of 1/255 (PoolDescriptors); null: all weigh 1.
struct NodeWeights {
  const uint8_t* fixed = nullptr;
  const uint8_t* moving = nullptr;
};

// Landmarks add costs to the labels of the nodes around them (node_pulls.h) before the first step.
//
// displacement[3 p + a] for each of the `size` nodes, in nodes: F(p) looks like M(p + displacement). Stream-ordered.
// Workspace: DiscreteSearchWorkspaceBytes, and NodePullsBytes of the landmarks. `pulls` are made for this `reach`.
// Waits for the stream where there are pulls.
absl::Status SearchDisplacements(const ExecContext& ctx, const PooledDescriptor* fixed, const PooledDescriptor* moving,
                                 Int3 size, Int3 reach, float* displacement, const NodePulls& pulls = {},
                                 const NodeWeights& weights = {});
int64_t DiscreteSearchWorkspaceBytes(Int3 size, Int3 reach);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_H_
