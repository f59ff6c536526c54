// SPDX-License-Identifier: Apache-2.0
#include "engine/search/node_pulls.h"

#include <algorithm>
#include <cmath>
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

NodePull MakePull(const NodeLandmark& landmark, Vec3d spacing, double share) {
  NodePull pull{};
  const Vec3d away = landmark.to - landmark.from;
  const double cost = share * kSearchLandmarkWeight / (landmark.sigma_mm * landmark.sigma_mm) / kCostStep;
  constexpr double kUnit = static_cast<double>(kPullDivisor) / (kPullSteps * kPullSteps);
  for (int a = 0; a < 3; ++a) {
    const double target = std::clamp(away[a], -kFarthestTarget, kFarthestTarget);
    pull.target[a] = static_cast<int32_t>(std::lround(kPullSteps * target));
    pull.weight[a] = std::llround(std::min(cost * spacing[a] * spacing[a] * kUnit, 1e9));
  }
  return pull;
}

// The nodes within `reach` mm of a landmark, with what it adds there.
void AddPulls(const NodeLandmark& landmark, const Geometry& nodes, double reach,
              std::map<int32_t, std::vector<NodePull>>* pulls) {
  Int3 low{}, high{};
  for (int a = 0; a < 3; ++a) {
    const double half = reach / nodes.spacing[a], most = nodes.size[a] - 1;
    low[a] = static_cast<int>(std::clamp(std::ceil(landmark.from[a] - half), 0.0, most + 1));
    high[a] = static_cast<int>(std::clamp(std::floor(landmark.from[a] + half), -1.0, most));
  }
  for (int z = low.z; z <= high.z; ++z) {
    for (int y = low.y; y <= high.y; ++y) {
      for (int x = low.x; x <= high.x; ++x) {
        double near = 1;
        const int at[3] = {x, y, z};
        for (int a = 0; a < 3; ++a) {
          const double away = (at[a] - landmark.from[a]) * nodes.spacing[a] / reach;
          near -= away * away;
        }
        if (!(near > 0)) continue;
        (*pulls)[(z * nodes.size.y + y) * nodes.size.x + x].push_back(
            MakePull(landmark, nodes.spacing, near * near * near));
      }
    }
  }
}

}  // namespace

NodePulls MakeNodePulls(absl::Span<const NodeLandmark> landmarks, const Geometry& nodes) {
  const double side = std::min({nodes.spacing.x, nodes.spacing.y, nodes.spacing.z});
  const double reach = std::clamp(kLandmarkReachMm, kLeastPullReach * side, kMostPullReach * side);
  std::map<int32_t, std::vector<NodePull>> by_node;
  for (const NodeLandmark& landmark : landmarks) AddPulls(landmark, nodes, reach, &by_node);
  NodePulls result;
  for (const auto& [node, pulls] : by_node) {
    result.nodes.push_back({node, static_cast<int32_t>(result.pulls.size()), static_cast<int32_t>(pulls.size())});
    result.pulls.insert(result.pulls.end(), pulls.begin(), pulls.end());
  }
  return result;
}

int64_t NodePullsBytes(int64_t landmarks) {
  const int64_t most = landmarks * kMostNodesAlong * kMostNodesAlong * kMostNodesAlong;
  return Arena::Rounded(most * sizeof(PulledNode)) + Arena::Rounded(most * sizeof(NodePull));
}

}  // namespace intrawarp
