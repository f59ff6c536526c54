// SPDX-License-Identifier: Apache-2.0
#include "engine/search/node_pulls.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "engine/device/exec_context.h"
#include "engine/search/discrete_search.h"
#include "engine/transform/landmark.h"

namespace intrawarp {
namespace {

constexpr double kLeastPullReach = 1.5;
// Nodes along an axis within kMostPullReach of a place.
constexpr int64_t kMostNodesAlong = 7;

// Targets beyond every label are as far as another.
constexpr double kFarthestTarget = 4 * kMostReach;
// The most that a landmark weighs on an axis: kMaxLandmarks at the farthest target stay within 63 bits.
constexpr double kMostWeight = 1e9;

bool HasOneNode(const Geometry& nodes, int axis) { return nodes.size[axis] == 1; }

void Add(const NodeLandmark& landmark, Vec3d spacing, double share, NodePull* pull) {
  const Vec3d away = landmark.to - landmark.from;
  const double cost = share * kSearchLandmarkWeight / (landmark.sigma_mm * landmark.sigma_mm) / kCostStep;
  constexpr double kUnit = static_cast<double>(kPullDivisor) / (kPullSteps * kPullSteps);
  for (int a = 0; a < 3; ++a) {
    const double target = std::clamp(away[a], -kFarthestTarget, kFarthestTarget);
    const int64_t weight = std::llround(std::min(cost * spacing[a] * spacing[a] * kUnit, kMostWeight));
    pull->weight[a] += weight;
    pull->moment[a] += weight * std::llround(kPullSteps * target);
  }
}

// The shortest side of a node along the axes that have several.
double ShortestSide(const Geometry& nodes) {
  double side = std::numeric_limits<double>::infinity();
  for (int a = 0; a < 3; ++a) {
    if (!HasOneNode(nodes, a)) side = std::min(side, nodes.spacing[a]);
  }
  return std::isfinite(side) ? side : std::min({nodes.spacing.x, nodes.spacing.y, nodes.spacing.z});
}

// The nodes within `distance` mm of a landmark, with what it adds there.
void AddPulls(const NodeLandmark& landmark, const Geometry& nodes, double distance,
              std::map<int32_t, NodePull>* pulls) {
  Int3 low{}, high{};
  for (int a = 0; a < 3; ++a) {
    if (HasOneNode(nodes, a)) continue;
    const double half = distance / nodes.spacing[a], most = nodes.size[a] - 1;
    low[a] = static_cast<int>(std::clamp(std::ceil(landmark.from[a] - half), 0.0, most + 1));
    high[a] = static_cast<int>(std::clamp(std::floor(landmark.from[a] + half), -1.0, most));
  }
  for (int z = low.z; z <= high.z; ++z) {
    for (int y = low.y; y <= high.y; ++y) {
      for (int x = low.x; x <= high.x; ++x) {
        double near = 1;
        const int at[3] = {x, y, z};
        for (int a = 0; a < 3; ++a) {
          const double away = HasOneNode(nodes, a) ? 0 : (at[a] - landmark.from[a]) * nodes.spacing[a] / distance;
          near -= away * away;
        }
        if (!(near > 0)) continue;
        Add(landmark, nodes.spacing, near * near * near, &(*pulls)[(z * nodes.size.y + y) * nodes.size.x + x]);
      }
    }
  }
}

// The axes are independent of each other.
int64_t LeastOf(const NodePull& pull, Int3 reach) {
  int64_t sum = 0;
  for (int a = 0; a < 3; ++a) {
    int64_t least = pull.Along(a, 0);
    for (int l = -reach[a]; l <= reach[a]; ++l) least = std::min(least, pull.Along(a, l));
    sum += least;
  }
  return sum;
}

}  // namespace

NodePulls MakeNodePulls(absl::Span<const NodeLandmark> landmarks, const Geometry& nodes, Int3 reach) {
  const double side = ShortestSide(nodes);
  const double distance = std::clamp(kLandmarkReachMm, kLeastPullReach * side, kMostPullReach * side);
  std::map<int32_t, NodePull> by_node;
  for (const NodeLandmark& landmark : landmarks) AddPulls(landmark, nodes, distance, &by_node);
  NodePulls result;
  for (const auto& [node, pull] : by_node) {
    result.push_back(pull);
    result.back().node = node;
    result.back().least = LeastOf(pull, reach);
  }
  return result;
}

int64_t NodePullsBytes(int64_t landmarks) {
  const int64_t most = landmarks * kMostNodesAlong * kMostNodesAlong * kMostNodesAlong;
  return Arena::Rounded(most * sizeof(NodePull));
}

}  // namespace intrawarp
