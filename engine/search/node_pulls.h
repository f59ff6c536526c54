// SPDX-License-Identifier: Apache-2.0
// Landmarks (transform/landmark.h) in a discrete search: costs of the labels of the nodes around them. A landmark at f
// that belongs to y, both in nodes, adds
//
//   kSearchLandmarkWeight g |N (l - (y - f))|^2 / s^2
//
// to label l of a node at a distance d of f within the distance of pull, with N from nodes to mm, s the landmark's
// sigma and g = (1 - (d / distance of pull)^2)^3. This distance is kLandmarkReachMm, but 1.5 nodes at least and
// kMostPullReach at most, the shortest side of a node being 1; an axis of one node plays no part in either. All
// landmarks of a node make one quadratic, whose least value over the labels is subtracted: the best label keeps the
// cost that the images gave it, however sure the landmarks are, and others that are too dear for an integer are equally
// bad. Plain values, made on the host; the costs are integers, as all of the search is.
#ifndef INTRAWARP_ENGINE_SEARCH_NODE_PULLS_H_
#define INTRAWARP_ENGINE_SEARCH_NODE_PULLS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/host_device.h"
#include "engine/geometry/geometry.h"

namespace intrawarp {

// In the unit of costs, where pooled descriptors of unlike places differ by about 1: a label 10 mm from a landmark that
// is sure to 2 mm costs a half.
inline constexpr double kSearchLandmarkWeight = 0.02;
inline constexpr double kMostPullReach = 3.5;

struct NodeLandmark {
  Vec3d from, to;  // indices of nodes
  double sigma_mm = 1;
};

// Labels and targets are in steps of 1 / kPullSteps of a node.
inline constexpr int kPullSteps = 64;
inline constexpr int64_t kPullDivisor = int64_t{1} << 20;

// The pull on a node: it adds (the sum over the axes of Along() - `least`) / kPullDivisor to the cost of a label.
struct NodePull {
  int32_t node = 0;
  // The sums, over the landmarks, of their weights and of weight times target.
  int64_t weight[3] = {}, moment[3] = {};
  // The least sum over the labels.
  int64_t least = 0;

  // The sum over the landmarks of weight (kPullSteps l - target)^2 along an axis, without its constant part.
  INTRAWARP_HD int64_t Along(int axis, int l) const {
    const int64_t steps = int64_t{kPullSteps} * l;
    return steps * (steps * weight[axis] - 2 * moment[axis]);
  }
};

// One for each node that is pulled, in the order of the nodes.
using NodePulls = std::vector<NodePull>;

// For labels within `reach` nodes (discrete_search.h); at most kMaxLandmarks landmarks (landmark.h).
NodePulls MakeNodePulls(absl::Span<const NodeLandmark> landmarks, const Geometry& nodes, Int3 reach);
// Device memory of the pulls of so many landmarks at most.
int64_t NodePullsBytes(int64_t landmarks);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SEARCH_NODE_PULLS_H_
