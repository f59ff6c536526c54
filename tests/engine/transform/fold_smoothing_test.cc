// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/fold_smoothing.h"

#include <algorithm>

#include "engine/transform/control_grid.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class FoldSmoothingTest : public DeviceTest {
 protected:
  float SmallestDeterminant(const float* grid, const Geometry& nodes, const Geometry& image) {
    float* out = Poisoned<float>(image.voxels());
    EXPECT_OK(EvaluateControlGridDeterminant(ctx(), {grid, nodes}, {out, image}));
    const std::vector<float> values = Download(out, image.voxels());
    return *std::min_element(values.begin(), values.end());
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FoldSmoothingTest);

Geometry Nodes(const Geometry& image, double spacing) { return *MakeControlGrid(image, spacing * image.spacing); }

TEST_P(FoldSmoothingTest, NoiseNoLongerFolds) {
  for (const Int3 size : {Int3{33, 29, 21}, Int3{40, 31, 1}}) {
    const Geometry image = ObliqueGeometry(size, size.z == 1), nodes = Nodes(image, 4);
    const std::vector<float> noise = RandomFloats(3 * nodes.voxels(), 3, -9, 9);
    float* grid = Upload(noise);
    ASSERT_LT(SmallestDeterminant(grid, nodes, image), 0);
    const auto folded = SmoothFolds(ctx(), {grid, nodes}, image, 200, /*reach=*/1);
    ASSERT_OK(folded.status());
    EXPECT_EQ(*folded, 0);
    EXPECT_GT(SmallestDeterminant(grid, nodes, image), 0);
  }
}

// One control point that jumps: what is out of its reach stays as it was, to the bit.
TEST_P(FoldSmoothingTest, LeavesTheRestAlone) {
  const Geometry image = ObliqueGeometry({60, 40, 30}), nodes = Nodes(image, 5);
  std::vector<float> values = RandomFloats(3 * nodes.voxels(), 4, -0.1f, 0.1f);
  const int64_t jump = (int64_t{4} * nodes.size.y + 5) * nodes.size.x + 3;
  values[3 * jump] += 60;
  float* grid = Upload(values);
  ASSERT_LT(SmallestDeterminant(grid, nodes, image), 0);
  ASSERT_EQ(*SmoothFolds(ctx(), {grid, nodes}, image, 200, /*reach=*/1), 0);
  const std::vector<float> after = Download(grid, values.size());
  EXPECT_NE(after[3 * jump], values[3 * jump]);
  for (int64_t node = 0; node < nodes.voxels(); ++node) {
    if (node % nodes.size.x < 12) continue;
    for (int c = 0; c < 3; ++c) ASSERT_EQ(after[3 * node + c], values[3 * node + c]) << node;
  }
}

TEST_P(FoldSmoothingTest, WhatDoesNotFoldIsNotTouched) {
  const Geometry image = ObliqueGeometry({20, 17, 15}), nodes = Nodes(image, 5);
  const std::vector<float> values = RandomFloats(3 * nodes.voxels(), 5, -0.2f, 0.2f);
  float* grid = Upload(values);
  EXPECT_EQ(*SmoothFolds(ctx(), {grid, nodes}, image, 200, /*reach=*/1), 0);
  EXPECT_EQ(Download(grid, values.size()), values);
}

// Along x, two halves that move towards each other by 16 voxels, on a control point a voxel.
TEST_P(FoldSmoothingTest, AFartherReachUndoesAJumpOverManyNodesSooner) {
  const Geometry image = ObliqueGeometry({61, 12, 9}), nodes = Nodes(image, 1);
  const AffineMap to_physical = IndexToPhysical(image);
  const Vec3d along = to_physical({8, 0, 0}) - to_physical({0, 0, 0});
  std::vector<float> values;
  for (int64_t node = 0; node < nodes.voxels(); ++node) {
    const float sign = node % nodes.size.x < nodes.size.x / 2 ? 1 : -1;
    for (const double c : {along.x, along.y, along.z}) values.push_back(sign * static_cast<float>(c));
  }
  float *near = Upload(values), *far = Upload(values);
  EXPECT_GT(*SmoothFolds(ctx(), {near, nodes}, image, 100, /*reach=*/1), 0);
  EXPECT_EQ(*SmoothFolds(ctx(), {far, nodes}, image, 100, /*reach=*/4), 0);
  EXPECT_GT(SmallestDeterminant(far, nodes, image), 0);
}

// No neighbour lies so far away.
TEST_P(FoldSmoothingTest, AReachBeyondTheGridChangesNothing) {
  const Geometry image = ObliqueGeometry({9, 8, 7}), nodes = Nodes(image, 4);
  ASSERT_LE(nodes.size.x, 7);
  const std::vector<float> values = RandomFloats(3 * nodes.voxels(), 8, -90, 90);
  float *near = Upload(values), *far = Upload(values);
  // The reaches 1 to 7, and 1 to 20.
  EXPECT_GT(*SmoothFolds(ctx(), {near, nodes}, image, 7, /*reach=*/7), 0);
  EXPECT_GT(*SmoothFolds(ctx(), {far, nodes}, image, 20, /*reach=*/20), 0);
  const std::vector<float> after = Download(near, values.size());
  EXPECT_NE(after, values);
  EXPECT_EQ(Download(far, values.size()), after);
}

TEST_P(FoldSmoothingTest, SaysWhatIsLeftWhenRoundsRunOut) {
  const Geometry image = ObliqueGeometry({33, 29, 21}), nodes = Nodes(image, 4);
  float* grid = Upload(RandomFloats(3 * nodes.voxels(), 6, -50, 50));
  EXPECT_GT(*SmoothFolds(ctx(), {grid, nodes}, image, 1, /*reach=*/1), 0);
}

TEST_P(FoldSmoothingTest, RunsAreBitIdenticalAndNeedWhatTheySay) {
  const Geometry image = ObliqueGeometry({33, 29, 21}), nodes = Nodes(image, 3);
  const std::vector<float> noise = RandomFloats(3 * nodes.voxels(), 7, -5, 5);
  std::vector<std::vector<float>> results;
  for (int run = 0; run < 2; ++run) {
    absl::StatusOr<OwnedContext> exact = OwnedContext::Create(device(), SmoothFoldsWorkspaceBytes(nodes, image));
    ASSERT_OK(exact.status());
    float* grid = Upload(noise);
    ASSERT_OK(SmoothFolds(exact->context(), {grid, nodes}, image, 200, /*reach=*/2).status());
    results.push_back(Download(grid, noise.size()));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(FoldSmoothingTest, RefusesAnotherDirection) {
  const Geometry image = ObliqueGeometry({20, 17, 15}), nodes = Nodes(image, 5);
  Geometry turned = image;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) turned.direction[r][c] = r == c;
  float* grid = Upload(std::vector<float>(3 * nodes.voxels(), 0.0f));
  EXPECT_EQ(SmoothFolds(ctx(), {grid, nodes}, turned, 3, /*reach=*/1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp
