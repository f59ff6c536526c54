// SPDX-License-Identifier: Apache-2.0
// Landmarks (transform/landmark.h) in a discrete search: costs of the labels of the nodes around them. A landmark at f
// that belongs to y, both in nodes, adds
//
//   kSearchLandmarkWeight g |N (l - (y - f))|^2 / s^2
//
// to label l of a node at a distance d of f within the reach, with N from nodes to mm, s the landmark's sigma and
// g = (1 - (d / reach)^2)^3. The reach is kLandmarkReachMm, but 1.5 nodes at least and kMostPullReach at most. Plain
// values, made on the host; the costs are integers, as all of the search is.
#ifndef INTRAWARP_ENGINE_SEARCH_NODE_PULLS_H_
#define INTRAWARP_ENGINE_SEARCH_NODE_PULLS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
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

// A landmark adds to label l the sum over the axes of weight (kPullSteps l - target)^2, over kPullDivisor.
inline constexpr int kPullSteps = 64;
inline constexpr int64_t kPullDivisor = int64_t{1} << 20;
struct NodePull {
  int32_t target[3];
  int64_t weight[3];
};

// A node with its pulls [first, first + count).
struct PulledNode {
  int32_t node = 0;
  int32_t first = 0, count = 0;
};

struct NodePulls {
  std::vector<PulledNode> nodes;
  std::vector<NodePull> pulls;
};

NodePulls MakeNodePulls(absl::Span<const NodeLandmark> landmarks, const Geometry& nodes);
// Device memory of the pulls of so many landmarks at most.
int64_t NodePullsBytes(int64_t landmarks);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SEARCH_NODE_PULLS_H_
