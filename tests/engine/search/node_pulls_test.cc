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
                                  MakeNodePulls(landmarks, Nodes(), reach)));
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

// Labels that are all too dear are not all equal: the best one stays the best.
TEST_P(NodePullsTest, AVerySureLandmarkIsMet) {
  const std::vector<float> found = Search({{{5, 6, 5}, {5.5, 7.5, 5.5}, 0.1}});
  EXPECT_NEAR(found[3 * Place({5, 6, 5}) + 1], 1.5, 0.6);
}

TEST_P(NodePullsTest, ALandmarkBeyondReachPullsAsFarAsItGoes) {
  const std::vector<float> found = Search({{{5, 6, 5}, {5, 16, 5}, 0.5}});
  EXPECT_NEAR(found[3 * Place({5, 6, 5})], 0, 0.35);
  EXPECT_GT(found[3 * Place({5, 6, 5}) + 1], 3);
}

TEST_P(NodePullsTest, ManyLandmarksThatAgreeAreMet) {
  const std::vector<float> found = Search(std::vector<NodeLandmark>(kMaxLandmarks, {{5, 6, 5}, {7, 5, 5}, 0.5}));
  EXPECT_NEAR(found[3 * Place({5, 6, 5})], 2, 0.35);
  EXPECT_NEAR(found[3 * Place({5, 6, 5}) + 1], -1, 0.35);
}

TEST_P(NodePullsTest, WithoutLandmarksNothingMoves) { EXPECT_EQ(Search({}), std::vector<float>(3 * Nodes().voxels())); }

// The costs are the definition's, rounded to the steps of costs.
TEST(MakeNodePullsTest, CostsAreThoseOfTheDefinition) {
  const NodeLandmark landmark{{5.25, 6.5, 5}, {7, 5, 4.5}, 2};
  const NodePulls pulls = MakeNodePulls({landmark}, Nodes(), {4, 4, 4});
  ASSERT_FALSE(pulls.empty());
  const double reach = std::min(kLandmarkReachMm, kMostPullReach * 6);
  int nodes = 0;
  for (int64_t place = 0; place < Nodes().voxels(); ++place) {
    const Vec3d node{static_cast<double>(place % 16), static_cast<double>(place / 16 % 14),
                     static_cast<double>(place / 16 / 14)};
    const double d2 = 36 * Dot(node - landmark.from, node - landmark.from) / (reach * reach);
    if (d2 >= 1) continue;
    ++nodes;
    const auto pull = std::find_if(pulls.begin(), pulls.end(), [&](const NodePull& n) { return n.node == place; });
    ASSERT_NE(pull, pulls.end());
    // A label that is nearest to the landmark's way, which is (1.75, -1.5, -0.5), costs nothing.
    const int label[] = {2, -3, 1}, best[] = {2, -1, 0};
    const Vec3d way = landmark.to - landmark.from;
    double cost = -static_cast<double>(pull->least), wanted = 0;
    for (int a = 0; a < 3; ++a) {
      cost += static_cast<double>(pull->Along(a, label[a]));
      wanted += (label[a] - way[a]) * (label[a] - way[a]) - (best[a] - way[a]) * (best[a] - way[a]);
    }
    cost /= static_cast<double>(kPullDivisor);
    wanted *= kSearchLandmarkWeight * std::pow(1 - d2, 3) * 36 / 4 / kCostStep;
    EXPECT_NEAR(cost, wanted, 0.01 * wanted + 1);
  }
  EXPECT_EQ(nodes, static_cast<int>(pulls.size()));
  EXPECT_LE(nodes, 7 * 7 * 7);
}

TEST(MakeNodePullsTest, LandmarksOutsideTheNodesAreLeftOut) {
  constexpr Int3 kReach{4, 4, 4};
  EXPECT_TRUE(MakeNodePulls({{{-9, 6, 5}, {5, 6, 5}, 1}, {{1e12, 0, 0}, {0, 0, 0}, 1}}, Nodes(), kReach).empty());
  // A moving point far outside pulls as if it were beyond every label.
  EXPECT_FALSE(MakeNodePulls({{{5, 6, 5}, {1e12, 0, -1e12}, 0.1}}, Nodes(), kReach).empty());
}

// The thickness of a plane of nodes says nothing about distances in it.
TEST(MakeNodePullsTest, AnAxisOfOneNodePlaysNoPart) {
  Geometry plane = Nodes();
  plane.size.z = 1;
  const std::vector<NodeLandmark> landmark = {{{5, 6, 0.3}, {7, 5, 0.3}, 1}};
  const NodePulls thick = MakeNodePulls(landmark, plane, {4, 4, 0});
  plane.spacing.z = 0.01;
  const NodePulls thin = MakeNodePulls(landmark, plane, {4, 4, 0});
  EXPECT_GT(thin.size(), 20u);
  ASSERT_EQ(thin.size(), thick.size());
  for (size_t i = 0; i < thin.size(); ++i) {
    EXPECT_EQ(thin[i].node, thick[i].node);
    for (int a = 0; a < 2; ++a) EXPECT_EQ(thin[i].weight[a], thick[i].weight[a]);
  }
}

}  // namespace
}  // namespace intrawarp
