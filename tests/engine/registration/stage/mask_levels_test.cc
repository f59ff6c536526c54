// SPDX-License-Identifier: Apache-2.0
// The masks of a registration against what their sources say voxel by voxel.
#include "engine/registration/stage/mask_levels.h"

#include <algorithm>
#include <vector>

#include "engine/base/field_error.h"
#include "engine/quality/residual_probe.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class MaskLevelsTest : public DeviceTest {
 protected:
  PreparedImage Prepare(const std::vector<float>& values) {
    return *PreparedImage::Prepare(ctx(), values.data(), PixelType::kFloat32, 1, 0, grid_);
  }
  std::vector<uint8_t> BytesOf(ConstMaskView mask) { return Download(mask.data, mask.geometry.voxels()); }
  // The levels in an arena of exactly the size that is asked for.
  absl::StatusOr<std::vector<MaskLevel>> Build(const MaskSources& sources) {
    arenas_.push_back(*OwnedContext::Create(device(), MaskLevelsWorkspaceBytes(image_)));
    return BuildMaskLevels(arenas_.back().context(), "name", image_, sources);
  }
  // Missing tissue at the nodes of one half of the image.
  MissingTissue UpperHalf() const {
    MissingTissue missing;
    missing.grid = ProbeGrid(grid_);
    missing.nodes.assign(missing.grid.voxels(), 0);
    for (size_t i = missing.nodes.size() / 2; i < missing.nodes.size(); ++i) missing.nodes[i] = 1;
    return missing;
  }

  const Geometry grid_ = ObliqueGeometry({37, 33, 18});
  const size_t voxels_ = grid_.voxels();
  const PreparedImage image_ = Prepare(RandomFloats(voxels_, 1));
  std::vector<OwnedContext> arenas_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MaskLevelsTest);

TEST_P(MaskLevelsTest, NoSourceMakesNoMask) {
  const absl::StatusOr<ConstMaskView> mask = BuildMask(ctx(), grid_, {});
  ASSERT_OK(mask);
  EXPECT_EQ(mask->data, nullptr);
  const absl::StatusOr<std::vector<MaskLevel>> levels = Build({});
  ASSERT_OK(levels);
  ASSERT_EQ(levels->size(), image_.levels().size());
  for (size_t i = 0; i < levels->size(); ++i) {
    EXPECT_EQ((*levels)[i].mask.data, nullptr);
    EXPECT_EQ((*levels)[i].count, image_.levels()[i].volume.geometry.voxels());
  }
}

TEST_P(MaskLevelsTest, AMaskHasBytesOfZeroAndOne) {
  std::vector<float> values = RandomFloats(voxels_, 2, -1, 1);
  for (size_t i = 0; i < voxels_; i += 3) values[i] = 0;
  const PreparedImage mask = Prepare(values);
  const absl::StatusOr<std::vector<MaskLevel>> levels = Build({.mask = &mask});
  ASSERT_OK(levels);
  const std::vector<uint8_t> got = BytesOf(levels->front().mask);
  for (size_t i = 0; i < voxels_; ++i) ASSERT_EQ(got[i], values[i] != 0 ? 1 : 0) << i;
  for (const MaskLevel& level : *levels) {
    EXPECT_EQ(level.mask.weight_per_unit, 1);
    for (uint8_t byte : BytesOf(level.mask)) ASSERT_LE(byte, 1);
  }
}

TEST_P(MaskLevelsTest, WeightsMaskAndMissingTissueMultiply) {
  std::vector<float> weights = RandomFloats(voxels_, 3), values(voxels_, 5.0f);
  for (size_t i = 0; i < voxels_; i += 5) weights[i] = 0;
  for (size_t i = 0; i < voxels_; i += 4) values[i] = 0;
  const PreparedImage weight = Prepare(weights), mask = Prepare(values);
  const MissingTissue missing = UpperHalf();
  int left_out = 0;
  for (const MaskSources& sources : {MaskSources{.weight = &weight}, MaskSources{&mask, &weight},
                                     MaskSources{nullptr, &weight, &missing}, MaskSources{&mask, &weight, &missing}}) {
    const absl::StatusOr<ConstMaskView> view = BuildMask(ctx(), grid_, sources);
    ASSERT_OK(view);
    EXPECT_EQ(view->weight_per_unit, kWeightPerUnit);
    const std::vector<uint8_t> got = BytesOf(*view);
    const AffineMap to_physical = IndexToPhysical(grid_);
    for (size_t i = 0; i < voxels_; ++i) {
      const int x = static_cast<int>(i) % grid_.size.x, row = static_cast<int>(i) / grid_.size.x;
      const Vec3d p = to_physical({double(x), double(row % grid_.size.y), double(row / grid_.size.y)});
      // The least weight that is kept is 1/255.
      double want = weights[i] > 0 ? std::max(weights[i], kWeightPerUnit) : 0;
      if (sources.mask != nullptr && values[i] == 0) want = 0;
      if (sources.left_out != nullptr && missing.Contains(p)) want = 0, ++left_out;
      ASSERT_NEAR(double(MaskWeight(got[i], view->weight_per_unit)), want, 0.5 / 255 + 1e-7) << i;
    }
  }
  EXPECT_GT(left_out, 1000);
}

// Every level says how much its voxels count, and how many do.
TEST_P(MaskLevelsTest, WeightsGoDownThePyramid) {
  const PreparedImage weight = Prepare(std::vector<float>(voxels_, 0.3f));
  std::vector<float> half(voxels_, 1.0f);
  std::fill(half.begin(), half.begin() + voxels_ / 2, 0.0f);
  const PreparedImage mask = Prepare(half);
  const absl::StatusOr<std::vector<MaskLevel>> levels = Build({.mask = &mask, .weight = &weight});
  const absl::StatusOr<std::vector<MaskLevel>> hard = Build({.mask = &mask});
  ASSERT_OK(levels);
  ASSERT_OK(hard);
  ASSERT_GT(levels->size(), 1u);
  for (size_t i = 0; i < levels->size(); ++i) {
    const ConstMaskView view = (*levels)[i].mask;
    EXPECT_EQ(view.weight_per_unit, kWeightPerUnit);
    EXPECT_EQ((*levels)[i].count, (*hard)[i].count);
    const std::vector<uint8_t> got = BytesOf(view), counts = BytesOf((*hard)[i].mask);
    // 0.3 * 255 = 76.5, whose nearest float32 is above it.
    for (size_t v = 0; v < got.size(); ++v) ASSERT_EQ(got[v], counts[v] ? 77 : 0) << i << " " << v;
  }
}

TEST_P(MaskLevelsTest, WeightsThatSelectNothingAreAnError) {
  const PreparedImage none = Prepare(std::vector<float>(voxels_, 0.0f));
  const absl::Status status = Build({.weight = &none}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "name: selects no voxel");
  EXPECT_EQ(FieldOf(status), "name");
}

}  // namespace
}  // namespace intrawarp
