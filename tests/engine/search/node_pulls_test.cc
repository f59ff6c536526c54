// SPDX-License-Identifier: Apache-2.0
#include "engine/search/node_pulls.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/search/discrete_search.h"
#include "engine/transform/landmark.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

Geometry Nodes() {
  Geometry g;
  g.size = {16, 14, 12};
  g.spacing = {6, 6, 6};
  return g;
}

int64_t Place(Int3 node) { return (int64_t{node.z} * 14 + node.y) * 16 + node.x; }

class NodePullsTest : public DeviceTest {
 protected:
  // Images without any structure: only the landmarks speak.
  std::vector<float> Search(const std::vector<NodeLandmark>& landmarks) {
    const Int3 size = Nodes().size, reach{4, 4, 4};
    const auto count = static_cast<int64_t>(landmarks.size());
    OwnedContext owned =
        *OwnedContext::Create(device(), DiscreteSearchWorkspaceBytes(size, reach) + NodePullsBytes(count));
    const std::vector<PooledDescriptor> nothing(Nodes().voxels());
    auto* out = Poisoned<float>(3 * Nodes().voxels());
    EXPECT_OK(SearchDisplacements(owned.context(), Upload(nothing), Upload(nothing), size, reach, out,
                                  MakeNodePulls(landmarks, Nodes())));
    EXPECT_OK(device().Synchronize(owned.context().stream()));
    return Download(out, 3 * Nodes().voxels());
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(NodePullsTest);

TEST_P(NodePullsTest, ALandmarkMovesTheNodesAroundItAndNoOthers) {
  const std::vector<float> found = Search({{{5, 6, 5}, {7, 5, 5}, 1}});
  const int64_t at = 3 * Place({5, 6, 5});
  EXPECT_NEAR(found[at], 2, 0.35);
  EXPECT_NEAR(found[at + 1], -1, 0.35);
  EXPECT_NEAR(found[at + 2], 0, 0.35);
  for (const Int3 far : {Int3{15, 13, 11}, {5, 13, 5}, {14, 6, 5}}) {
    for (int c = 0; c < 3; ++c) EXPECT_EQ(found[3 * Place(far) + c], 0);
  }
}

TEST_P(NodePullsTest, TheSurerOfTwoLandmarksWins) {
  const std::vector<float> found = Search({{{5, 6, 5}, {8, 6, 5}, 0.5}, {{5, 6, 5}, {3, 6, 5}, 5}});
  EXPECT_GT(found[3 * Place({5, 6, 5})], 2);
}

TEST_P(NodePullsTest, WithoutLandmarksNothingMoves) { EXPECT_EQ(Search({}), std::vector<float>(3 * Nodes().voxels())); }

// The costs are the definition's, rounded to the steps of costs.
TEST(MakeNodePullsTest, CostsAreThoseOfTheDefinition) {
  const NodeLandmark landmark{{5.25, 6.5, 5}, {7, 5, 4.5}, 2};
  const NodePulls pulls = MakeNodePulls({landmark}, Nodes());
  ASSERT_FALSE(pulls.nodes.empty());
  ASSERT_EQ(pulls.nodes.size(), pulls.pulls.size());
  const double reach = std::min(kLandmarkReachMm, kMostPullReach * 6);
  int nodes = 0;
  for (int64_t place = 0; place < Nodes().voxels(); ++place) {
    const Vec3d node{static_cast<double>(place % 16), static_cast<double>(place / 16 % 14),
                     static_cast<double>(place / 16 / 14)};
    const double d2 = 36 * Dot(node - landmark.from, node - landmark.from) / (reach * reach);
    if (d2 >= 1) continue;
    ++nodes;
    const auto at =
        std::find_if(pulls.nodes.begin(), pulls.nodes.end(), [&](const PulledNode& n) { return n.node == place; });
    ASSERT_NE(at, pulls.nodes.end());
    const NodePull& pull = pulls.pulls[at->first];
    const Vec3d label{2, -3, 1}, away = label - (landmark.to - landmark.from);
    double cost = 0;
    for (int a = 0; a < 3; ++a) {
      const double steps = kPullSteps * label[a] - pull.target[a];
      cost += static_cast<double>(pull.weight[a]) * steps * steps / static_cast<double>(kPullDivisor);
    }
    const double wanted = kSearchLandmarkWeight * std::pow(1 - d2, 3) * 36 * Dot(away, away) / 4 / kCostStep;
    EXPECT_NEAR(cost, wanted, 0.01 * wanted + 1);
  }
  EXPECT_EQ(nodes, static_cast<int>(pulls.nodes.size()));
  EXPECT_LE(nodes, 7 * 7 * 7);
}

TEST(MakeNodePullsTest, LandmarksOutsideTheNodesAreLeftOut) {
  EXPECT_TRUE(MakeNodePulls({{{-9, 6, 5}, {5, 6, 5}, 1}, {{1e12, 0, 0}, {0, 0, 0}, 1}}, Nodes()).nodes.empty());
  // A moving point far outside pulls as if it were beyond every label.
  EXPECT_FALSE(MakeNodePulls({{{5, 6, 5}, {1e12, 0, -1e12}, 0.1}}, Nodes()).nodes.empty());
}

}  // namespace
}  // namespace intrawarp
