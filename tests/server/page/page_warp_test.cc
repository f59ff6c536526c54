// SPDX-License-Identifier: Apache-2.0
// The warp of the page, by its coarse field, beside the engine's by the whole one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "client/phantom/phantom.h"
#include "engine/device/device.h"
#include "engine/transform/transform.h"
#include "server/page/plane_picture.h"
#include "server/page/shown_image.h"

namespace intrawarp::server {
namespace {

class PageWarp : public testing::Test {
 protected:
  PageWarp() {
    phantom::PhantomOptions options;
    options.size = {64, 64, 48};
    options.spacing = {5, 5, 5};
    phantom_ = *phantom::MakePhantom(options);
    const auto* const moving = reinterpret_cast<const int16_t*>(phantom_.moving.pixels.data());
    values_.assign(moving, moving + phantom_.moving.geometry.voxels());
    field_.resize(3 * CoarseGrid(fixed()).voxels());
  }
  const Geometry& fixed() const { return phantom_.field.geometry; }

  // Evaluates the phantom's field on the coarse grid, and warps by the whole one.
  void RunEngine() {
    const std::unique_ptr<Device> device = *OpenDevice("cpu");
    const Stream stream = *device->CreateStream();
    Arena arena;
    const ExecContext ctx(*device, stream.view(), arena);
    Buffer memory = *device->Allocate(4 * phantom_.field.displacement.size(), ctx.stream());
    std::memcpy(memory.as<char>(), phantom_.field.displacement.data(), memory.bytes());
    const Transform transform(std::move(memory), fixed());
    const Geometry coarse = CoarseGrid(fixed());
    ASSERT_TRUE(EvaluateField(ctx, transform, coarse, 0, coarse.voxels(), field_.data()).ok());
    warped_.resize(fixed().voxels());
    ASSERT_TRUE(WarpVolume(ctx, transform, false, {values_.data(), phantom_.moving.geometry}, Interpolation::kLinear,
                           -1e6f, {warped_.data(), fixed()})
                    .ok());
    ASSERT_TRUE(device->Synchronize(ctx.stream()).ok());
  }

  phantom::Phantom phantom_;
  std::vector<float> values_, field_, warped_;
};

TEST_F(PageWarp, IsTheEnginesToAFewGreyLevels) {
  RunEngine();
  const ShownField field = ShowField(field_.data(), CoarseGrid(fixed()));
  const ShownImage moving =
      ShowImage(phantom_.moving.pixels.data(), PixelType::kInt16, {}, phantom_.moving.geometry, {}, ShownLimits());
  const AffineMap to_space = IndexToPhysical(fixed());
  std::vector<double> errors;
  for (int64_t i = 0; i < fixed().voxels(); i += 7) {
    const Int3 n = fixed().size;
    const Vec3d p = to_space({double(i % n.x), double(i / n.x % n.y), double(i / n.x / n.y)});
    const std::optional<double> value = moving.At(field.Map(p));
    if (value && warped_[i] > -1e5f) errors.push_back(std::abs(*value - warped_[i]));
  }
  ASSERT_GT(errors.size(), 10000u);
  std::sort(errors.begin(), errors.end());
  double sum = 0;
  for (const double error : errors) sum += error;
  const double mean = sum / static_cast<double>(errors.size());
  const double p99 = errors[errors.size() * 99 / 100];
  std::printf("grey levels (HU) between the page's warp and the engine's: mean %.2f, p99 %.1f, largest %.0f\n", mean,
              p99, errors.back());
  EXPECT_LT(mean, 2);
  EXPECT_LT(p99, 30);
}

TEST_F(PageWarp, PlanesArePicturesOfAllModes) {
  RunEngine();
  const ShownField field = ShowField(field_.data(), CoarseGrid(fixed()));
  const ShownRange range{-160, 240, -1000, 1000};
  const ShownImage still =
      ShowImage(phantom_.fixed.pixels.data(), PixelType::kInt16, {}, fixed(), range, ShownLimits());
  const ShownImage moving =
      ShowImage(phantom_.moving.pixels.data(), PixelType::kInt16, {}, phantom_.moving.geometry, range, ShownLimits());
  ErrorMap error;
  error.blocks = fixed();
  error.blocks.size = {4, 4, 4};
  error.expected_mm.assign(64, 2);
  const PlaneScene whole{&still, &moving, &field, &error};
  const PlaneScene bare{&still, &moving, nullptr, nullptr};
  for (const char* plane : {"axial", "coronal", "sagittal"}) {
    for (const char* mode : {"fixed", "warped", "checkerboard", "difference", "grid", "jacobian", "error"}) {
      for (const PlaneScene* scene : {&whole, &bare}) {
        const auto png = DrawPlane(*scene, *ParsePlane(plane), *ParsePlaneMode(mode), {0, 0, 0}, 40);
        ASSERT_TRUE(png.ok()) << png.status();
        EXPECT_EQ(png->substr(1, 3), "PNG");
      }
    }
  }
  EXPECT_FALSE(ParsePlane("oblique"));
  EXPECT_FALSE(ParsePlaneMode(""));
  EXPECT_TRUE(DrawPlane(whole, Plane::kAxial, PlaneMode::kWarped, {1e7, 1e7, 1e7}, 1).ok());
}

}  // namespace
}  // namespace intrawarp::server
