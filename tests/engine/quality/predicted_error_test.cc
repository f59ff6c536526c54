// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/predicted_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace intrawarp {
namespace {

BlockMatch Matched(float offset, int reach, float best) {
  BlockMatch match;
  match.nodes = 125;
  match.covered = match.matched = 1;
  match.own = {{offset, 0, 0}, reach, best + 1, best, 100, 80};
  match.smoothed = match.own;
  return match;
}

BlockMatch Sharp() { return Matched(0.1f, 0, 10); }
// Unrelated images give a minimum anywhere, hardly below its rival.
BlockMatch Vague() { return Matched(3, 3, 98); }

ResidualProbe ProbeOf(std::vector<BlockMatch> matches, int slices = 2) {
  ResidualProbe probe;
  probe.blocks.size = {static_cast<int>(matches.size()) / slices, 1, slices};
  probe.node_mm = {2, 2, 2};
  probe.matches = std::move(matches);
  return probe;
}

TEST(PredictedErrorTest, GrowsWithWhatIsLeftToMoveAndWithDoubt) {
  const Vec3d node{2, 2, 2};
  const BlockError still = PredictBlockError(Sharp(), node);
  const BlockError moved = PredictBlockError(Matched(2, 2, 10), node);
  const BlockError vague = PredictBlockError(Matched(0.1f, 0, 98), node);
  EXPECT_GT(still.expected_mm, 0);
  EXPECT_LT(still.expected_mm, 1);
  EXPECT_GT(moved.expected_mm, still.expected_mm + 2);
  EXPECT_GT(vague.expected_mm, still.expected_mm + 1);
  for (const BlockError& error : {still, moved, vague}) EXPECT_GE(error.bound_mm, error.expected_mm);
  EXPECT_GT(moved.bound_mm, still.bound_mm);
  EXPECT_GT(vague.bound_mm, still.bound_mm);
}

TEST(PredictedErrorTest, IsInMillimetres) {
  const BlockError fine = PredictBlockError(Sharp(), {1, 1, 1}), coarse = PredictBlockError(Sharp(), {3, 3, 3});
  EXPECT_NEAR(coarse.expected_mm, 3 * fine.expected_mm, 1e-12);
  EXPECT_NEAR(coarse.bound_mm, 3 * fine.bound_mm, 1e-12);
}

TEST(PredictedErrorTest, SumsUpTheMatchedBlocks) {
  std::vector<BlockMatch> matches(40, Sharp());
  for (int i = 0; i < 10; ++i) matches[i] = Vague();
  // Covered, but without structure; and outside the overlap.
  for (int i = 30; i < 35; ++i) matches[i].matched = 0;
  for (int i = 35; i < 40; ++i) matches[i] = BlockMatch();
  const std::optional<ErrorEstimate> error = PredictError(ProbeOf(matches));
  ASSERT_TRUE(error.has_value());
  const BlockError sharp = PredictBlockError(Sharp(), {2, 2, 2}), vague = PredictBlockError(Vague(), {2, 2, 2});
  EXPECT_NEAR(error->expected_mm, sharp.expected_mm, 1e-12);
  EXPECT_NEAR(error->bound_mm, sharp.bound_mm, 1e-12);
  EXPECT_NEAR(error->bound_p95_mm, vague.bound_mm, 1e-12);
  EXPECT_NEAR(error->bound_max_mm, vague.bound_mm, 1e-12);
  EXPECT_NEAR(error->judged_fraction, 30.0 / 35, 1e-12);
  EXPECT_NEAR(error->agreement, 20.0 / 30, 1e-12);
  EXPECT_NEAR(error->chance, 27.0 / 343, 1e-12);
  EXPECT_FALSE(error->affine_expected_mm || error->deformation_mm);
}

TEST(PredictedErrorTest, KnowsItsReach) {
  EXPECT_NEAR(PredictError(ProbeOf(std::vector<BlockMatch>(40, Sharp())))->reach_mm, 3 * 2, 1e-12);
  ResidualProbe uneven = ProbeOf(std::vector<BlockMatch>(40, Sharp()));
  uneven.node_mm = {2, 1.5, 3};
  EXPECT_NEAR(PredictError(uneven)->reach_mm, 3 * 1.5, 1e-12);
  // The axis of a plane that is not searched has no part in it.
  ResidualProbe plane = ProbeOf(std::vector<BlockMatch>(40, Sharp()), 1);
  plane.node_mm = {2, 2, 0.1};
  EXPECT_NEAR(PredictError(plane)->reach_mm, 3 * 2, 1e-12);
}

// Smoothed with the weights 1 2 1, an axis of many blocks says as much as 1 / 2.67 as many; one of 2 blocks as one.
TEST(PredictedErrorTest, BlocksThatShareTheirCostsCountForFewer) {
  ResidualProbe probe = ProbeOf(std::vector<BlockMatch>(10 * 10 * 10, Sharp()));
  probe.blocks.size = {10, 10, 10};
  EXPECT_NEAR(PredictError(probe)->independent_blocks, 1000 / std::pow(16.0 / 6, 3), 1e-9);
  EXPECT_NEAR(PredictError(ProbeOf(std::vector<BlockMatch>(40, Sharp())))->independent_blocks, 40 / 2 / (16.0 / 6),
              1e-9);
}

TEST(PredictedErrorTest, SaysWhereItIsWorst) {
  // 8 x 8 x 2 blocks; those of one of the eight octants are vague, which the median does not see.
  std::vector<BlockMatch> matches(8 * 8 * 2, Sharp());
  for (int i = 0; i < 128; ++i) {
    if (i % 8 >= 4 && i / 8 % 8 >= 4 && i >= 64) matches[i] = Vague();
  }
  ResidualProbe probe = ProbeOf(matches);
  probe.blocks.size = {8, 8, 2};
  const std::optional<ErrorEstimate> error = PredictError(probe);
  ASSERT_TRUE(error.has_value());
  const BlockError sharp = PredictBlockError(Sharp(), {2, 2, 2}), vague = PredictBlockError(Vague(), {2, 2, 2});
  EXPECT_NEAR(error->expected_mm, sharp.expected_mm, 1e-12);
  EXPECT_NEAR(error->worst_region_expected_mm.value(), vague.expected_mm, 1e-12);
  EXPECT_EQ(error->worst_region_agreement, 0);
}

TEST(PredictedErrorTest, ARegionOfFewBlocksIsNotJudged) {
  // Two rows of 15 blocks are two regions, each too small.
  EXPECT_FALSE(PredictError(ProbeOf(std::vector<BlockMatch>(30, Sharp())))->worst_region_agreement.has_value());
  EXPECT_FALSE(PredictError(ProbeOf(std::vector<BlockMatch>(30, Sharp())))->worst_region_expected_mm.has_value());
}

TEST(PredictedErrorTest, SaysHowMuchBothImagesShow) {
  std::vector<BlockMatch> matches(40, Sharp());
  for (BlockMatch& match : matches) match.shown = 1;
  EXPECT_EQ(PredictError(ProbeOf(matches))->visible_fraction, 1);
  for (int i = 0; i < 10; ++i) matches[i].shown = 0;        // in the fixed image alone
  for (int i = 10; i < 20; ++i) matches[i].matched = 0;     // in the moving image alone
  for (int i = 20; i < 24; ++i) matches[i] = BlockMatch();  // in neither
  EXPECT_NEAR(PredictError(ProbeOf(matches))->visible_fraction, 16.0 / 36, 1e-12);
}

TEST(PredictedErrorTest, ChanceInAPlaneIsGreater) {
  const std::optional<ErrorEstimate> error = PredictError(ProbeOf(std::vector<BlockMatch>(20, Sharp()), 1));
  ASSERT_TRUE(error.has_value());
  EXPECT_NEAR(error->chance, 9.0 / 49, 1e-12);
}

TEST(PredictedErrorTest, TooFewBlocksAreNoEvidence) {
  EXPECT_FALSE(PredictError(ProbeOf(std::vector<BlockMatch>(kLeastBlocks - 1, Sharp()), 1)).has_value());
  EXPECT_TRUE(PredictError(ProbeOf(std::vector<BlockMatch>(kLeastBlocks, Sharp()), 1)).has_value());
  EXPECT_FALSE(PredictError(ProbeOf({}, 1)).has_value());
}

// Three blocks along x, 10 mm apart from (0, 5, 5) on; the one in the middle is not matched.
ResidualProbe ThreeBlocks() {
  BlockMatch flat = Sharp();
  flat.matched = 0;
  ResidualProbe probe = ProbeOf({Sharp(), flat, Vague()}, 1);
  probe.blocks.spacing = {10, 10, 10};
  probe.blocks.origin = {0, 5, 5};
  return probe;
}

TEST(PredictedErrorTest, AMapHasTheFiguresOfEachBlock) {
  const ErrorMap map = MapErrors(ThreeBlocks());
  EXPECT_EQ(map.blocks.size, (Int3{3, 1, 1}));
  ASSERT_EQ(map.expected_mm.size(), 3u);
  ASSERT_EQ(map.bound_mm.size(), 3u);
  const BlockError sharp = PredictBlockError(Sharp(), {2, 2, 2}), vague = PredictBlockError(Vague(), {2, 2, 2});
  EXPECT_FLOAT_EQ(map.expected_mm[0], static_cast<float>(sharp.expected_mm));
  EXPECT_FLOAT_EQ(map.bound_mm[0], static_cast<float>(sharp.bound_mm));
  EXPECT_TRUE(std::isnan(map.expected_mm[1]) && std::isnan(map.bound_mm[1]));
  EXPECT_FLOAT_EQ(map.bound_mm[2], static_cast<float>(vague.bound_mm));
}

TEST(PredictedErrorTest, APointHasTheFiguresOfTheNearestBlockWithStructure) {
  const std::vector<PointError> errors =
      PredictErrorsAt(ThreeBlocks(), {{1, 5, 5}, {10, 5, 5}, {11, 5, 5}, {20, 5, 105}});
  ASSERT_EQ(errors.size(), 4u);
  const BlockError sharp = PredictBlockError(Sharp(), {2, 2, 2}), vague = PredictBlockError(Vague(), {2, 2, 2});
  const double bounds[] = {sharp.bound_mm, sharp.bound_mm, vague.bound_mm, vague.bound_mm};
  const double distances[] = {1, 10, 9, 100};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(errors[i].error.bound_mm, bounds[i]) << i;
    EXPECT_NEAR(errors[i].distance_mm, distances[i], 1e-12) << i;
  }
  EXPECT_EQ(errors[0].error.expected_mm, sharp.expected_mm);
}

TEST(PredictedErrorTest, WithoutABlockThereIsNothingToSayAtAPoint) {
  EXPECT_TRUE(PredictErrorsAt(ProbeOf({BlockMatch()}, 1), {{0, 0, 0}}).empty());
  EXPECT_TRUE(MapErrors(ProbeOf({}, 1)).bound_mm.empty());
}

}  // namespace
}  // namespace intrawarp
