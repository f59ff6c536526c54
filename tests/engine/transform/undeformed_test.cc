// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/undeformed.h"

#include <utility>
#include <vector>

#include "engine/transform/velocity.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class UndeformedTest : public DeviceTest {
 protected:
  Buffer Vectors(const Geometry& grid, float value) {
    const std::vector<float> values(3 * grid.voxels(), value);
    Buffer memory = *device().Allocate(values.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), values.data(), values.size() * sizeof(float), ctx().stream()));
    return memory;
  }
  void ExpectZero(ConstFieldView field) {
    EXPECT_THAT(Download(field.data, 3 * field.geometry.voxels()), testing::Each(0.0f));
  }

  Geometry grid_ = ObliqueGeometry({9, 8, 7});
  AffineMap affine_ = Stretched();

 private:
  static AffineMap Stretched() {
    AffineMap map = AffineMap::Identity();
    map.m[0][0] = 1.5;
    map.m[1][3] = 12;
    return map;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(UndeformedTest);

TEST_P(UndeformedTest, KeepsTheAffinePartAndTheForm) {
  const Transform spline = *Undeformed(ctx(), Transform(affine_, Vectors(grid_, 2), grid_, grid_));
  ASSERT_TRUE(spline.has_control_grid());
  EXPECT_EQ(spline.control_grid().geometry, grid_);
  EXPECT_EQ(*spline.domain(), grid_);
  EXPECT_EQ(spline.affine().m[0][0], 1.5);
  EXPECT_EQ(spline.affine().m[1][3], 12);
  ExpectZero(spline.control_grid());

  const Transform velocity = *Undeformed(ctx(), *MakeVelocityTransform(ctx(), affine_, Vectors(grid_, 1), grid_));
  ASSERT_TRUE(velocity.has_velocity());
  EXPECT_EQ(velocity.affine().m[1][3], 12);
  ExpectZero(velocity.velocity());
  ExpectZero(velocity.displacement());
  ExpectZero(velocity.backward());

  const Transform dense = *Undeformed(ctx(), Transform(Vectors(grid_, 3), grid_));
  ASSERT_TRUE(dense.has_displacement());
  EXPECT_FALSE(dense.has_velocity());
  ExpectZero(dense.displacement());
}

TEST_P(UndeformedTest, LeavesAnAffineMapAndCopiesAlone) {
  EXPECT_TRUE(Undeformed(ctx(), Transform(affine_, grid_))->is_affine());
  const Transform spline(affine_, Vectors(grid_, 2), grid_, grid_);
  ASSERT_OK(Undeformed(ctx(), spline).status());
  EXPECT_THAT(Download(spline.control_grid().data, 3 * grid_.voxels()), testing::Each(2.0f));
}

}  // namespace
}  // namespace intrawarp
