// SPDX-License-Identifier: Apache-2.0
// Every variant makes the right field, since a comparison with a wrong field is worthless.
#include "tests/bench/baselines/bspline_variants.h"

#include "tests/engine/device_test.h"

namespace intrawarp::baselines {
namespace {

class BsplineVariantsTest : public DeviceTest {
 protected:
  FieldError ErrorOf(const Work& work, float* out, FieldLayout layout, const TiledVolume& volume,
                     const std::vector<Float4>& control) {
    EXPECT_OK(work());
    return *CompareRows(ctx(), out, layout, volume.size, 1, ReferenceRows(volume, control, 1));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(BsplineVariantsTest);

// One voxel, sizes that no tile divides, and more tiles than a block of 4 x 4 x 4 holds.
const Int3 kSizes[] = {{1, 1, 1}, {2, 9, 5}, {31, 17, 23}, {37, 13, 1}, {65, 33, 30}};

TEST_P(BsplineVariantsTest, EqualFloat64) {
  const ExecContext context = ctx();
  for (const Variant& variant : Variants(context)) {
    for (const Int3 size : kSizes) {
      for (int tile = kMinTile; tile <= kMaxTile; ++tile) {
        const TiledVolume volume{size, tile};
        const std::vector<Float4> control = RandomControlPoints(volume, 7 * tile + size.x);
        float* out = Poisoned<float>(FieldFloats(context, volume));
        const auto work = variant.make(context, volume, Upload(control), out);
        ASSERT_OK(work.status());
        EXPECT_LE(ErrorOf(*work, out, LayoutOf(context, volume), volume, control).max, variant.tolerance)
            << variant.name << " tile " << tile << " size " << size.x << "x" << size.y << "x" << size.z;
      }
    }
  }
}

TEST_P(BsplineVariantsTest, StayInsideTheirOutput) {
  const ExecContext context = ctx();
  constexpr int kGuard = 64;
  for (const Variant& variant : Variants(context)) {
    for (int tile = kMinTile; tile <= kMaxTile; ++tile) {
      const TiledVolume volume{{33, 10, 11}, tile};
      const int64_t floats = FieldFloats(context, volume);
      float* out = Upload(std::vector<float>(floats + 2 * kGuard, 77.0f));
      const auto work = variant.make(context, volume, Upload(RandomControlPoints(volume, tile)), out + kGuard);
      ASSERT_OK(work.status());
      ASSERT_OK((*work)());
      const std::vector<float> all = Download(out, floats + 2 * kGuard);
      for (int i = 0; i < kGuard; ++i) {
        ASSERT_EQ(all[i], 77.0f) << variant.name << " tile " << tile << " before " << i;
        ASSERT_EQ(all[floats + kGuard + i], 77.0f) << variant.name << " tile " << tile << " after " << i;
      }
    }
  }
}

// The product's kernel is measured on the same problem.
TEST_P(BsplineVariantsTest, ProductionSolvesTheSameProblem) {
  const ExecContext context = ctx();
  for (const Int3 size : {Int3{31, 17, 23}, Int3{65, 33, 30}}) {
    for (int tile = kMinTile; tile <= kMaxTile; ++tile) {
      const TiledVolume volume{size, tile};
      const std::vector<Float4> control = RandomControlPoints(volume, tile);
      float* out = Poisoned<float>(3 * volume.voxels());
      const auto work = MakeProduction(context, volume, control, out);
      ASSERT_OK(work.status());
      EXPECT_LE(ErrorOf(*work, out, InterleavedLayout(3), volume, control).max, 1e-5) << "tile " << tile;
    }
  }
}

// The reference itself: the weights are a partition of unity, and reproduce linear functions.
TEST(BsplineReferenceTest, ReproducesALinearField) {
  const TiledVolume volume{{17, 6, 9}, 5};
  const Int3 nodes = volume.nodes();
  std::vector<Float4> control(volume.node_count());
  for (int z = 0; z < nodes.z; ++z)
    for (int y = 0; y < nodes.y; ++y)
      for (int x = 0; x < nodes.x; ++x) {
        control[(z * nodes.y + y) * nodes.x + x] = {5.0f * (x - 1), 10.0f * (y - 1), 5.0f * (z - 1) + 1, 0};
      }
  const std::vector<double> field = ReferenceRows(volume, control, 1);
  for (int64_t v = 0; v < volume.voxels(); ++v) {
    const int x = v % 17, y = v / 17 % 6, z = v / (17 * 6);
    ASSERT_NEAR(field[3 * v], x, 1e-12);
    ASSERT_NEAR(field[3 * v + 1], 2.0 * y, 1e-12);
    ASSERT_NEAR(field[3 * v + 2], z + 1.0, 1e-12);
  }
}

TEST(FieldErrorTest, SeesNanAndTheComponentAtFault) {
  const auto devices = AllDevices();
  OwnedContext owned = *OwnedContext::Create(*devices[0], 1);
  const std::vector<double> reference = {1, 2, 3, 4, 5, 6};
  std::vector<float> planes = {1, 4, 2, 5, 3, 6.5f};
  const FieldError error =
      *CompareRows(owned.context(), planes.data(), PlanarLayout({2, 1, 1}), {2, 1, 1}, 1, reference);
  EXPECT_EQ(error.max, 0.5);
  EXPECT_DOUBLE_EQ(error.mean, 0.5 / 6);
  planes[0] = NAN;
  EXPECT_EQ(CompareRows(owned.context(), planes.data(), PlanarLayout({2, 1, 1}), {2, 1, 1}, 1, reference)->max,
            INFINITY);
}

}  // namespace
}  // namespace intrawarp::baselines
