// SPDX-License-Identifier: Apache-2.0
#include "engine/image/region.h"

#include <cmath>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class RegionTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(RegionTest);

TEST_P(RegionTest, ClearsTheVoxelsWhoseNearestNodeIsMarked) {
  Geometry mask_grid = ObliqueGeometry({37, 21, 13}, /*left_handed=*/false);
  Geometry region_grid = ObliqueGeometry({9, 8, 7}, /*left_handed=*/true);
  region_grid.spacing = 3.3 * mask_grid.spacing;
  std::vector<uint8_t> region(region_grid.voxels()), mask(mask_grid.voxels());
  std::mt19937 random(4);
  for (uint8_t& r : region) r = random() % 3 == 0 ? static_cast<uint8_t>(1 + random() % 255) : 0;
  for (uint8_t& m : mask) m = random() % 4 != 0;
  uint8_t* on_device = Upload(mask);
  ASSERT_OK(ClearRegion(ctx(), {Upload(region), region_grid}, {on_device, mask_grid}));
  const std::vector<uint8_t> got = Download(on_device, mask.size());
  const AffineMap to_region = Compose(PhysicalToIndex(region_grid), IndexToPhysical(mask_grid));
  int cleared = 0;
  for (int64_t i = 0; i < mask_grid.voxels(); ++i) {
    const Int3 n = mask_grid.size;
    const Vec3d at = to_region({double(i % n.x), double(i / n.x % n.y), double(i / n.x / n.y)});
    int64_t offset = 0;
    bool is_inside = true, is_near_a_border = false;
    for (int axis = 2; axis >= 0; --axis) {
      const double nearest = std::floor(at[axis] + 0.5);
      is_near_a_border = is_near_a_border || std::abs(at[axis] + 0.5 - std::round(at[axis] + 0.5)) < 1e-4;
      is_inside = is_inside && nearest >= 0 && nearest < region_grid.size[axis];
      offset = offset * region_grid.size[axis] + static_cast<int64_t>(nearest);
    }
    if (is_near_a_border) continue;
    const bool is_cleared = is_inside && region[offset] != 0;
    cleared += is_cleared && mask[i] != 0;
    ASSERT_EQ(got[i], is_cleared ? 0 : mask[i]) << i;
  }
  EXPECT_GT(cleared, 50);
}

}  // namespace
}  // namespace intrawarp
