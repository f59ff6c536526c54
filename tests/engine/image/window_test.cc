// SPDX-License-Identifier: Apache-2.0
#include "engine/image/window.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/image/pyramid.h"
#include "engine/image/window_kernels.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

using Values = std::vector<float>;

Geometry Grid(Int3 size) {
  Geometry g;
  g.size = size;
  g.spacing = {1, 1, 2};
  return g;
}

float Normal(std::mt19937& engine, double mean, double sigma) {
  return static_cast<float>(std::normal_distribution<double>(mean, sigma)(engine));
}

// The distance from the axis of a scanner's circle in parts of its radius.
double FromAxis(const Geometry& g, int x, int y) {
  return std::hypot(2.0 * x / (g.size.x - 1) - 1, 2.0 * y / (g.size.y - 1) - 1);
}

// A thorax in HU in a scanner's circle: air, an elliptic body, lungs, a spine; `padding` outside the circle.
Values Thorax(const Geometry& g, float padding, unsigned seed = 1) {
  std::mt19937 engine(seed);
  Values values;
  for (int z = 0; z < g.size.z; ++z) {
    for (int y = 0; y < g.size.y; ++y) {
      for (int x = 0; x < g.size.x; ++x) {
        const double u = 2.0 * x / (g.size.x - 1) - 1, v = 2.0 * y / (g.size.y - 1) - 1;
        double hu = -1000;
        if (u * u / 0.5 + v * v / 0.3 < 1) hu = 40;
        if (hypot(std::abs(u) - 0.35, v) < 0.22) hu = -800;
        if (hypot(u, v - 0.4) < 0.08) hu = 900;
        values.push_back(FromAxis(g, x, y) > 1 ? padding : Normal(engine, hu, 15));
      }
    }
  }
  return values;
}

// What Prepare finds.
class WindowTest : public DeviceTest {
 protected:
  absl::StatusOr<PreparedImage> Prepare(const Values& values, const Geometry& g,
                                        FinestLevel finest = FinestLevel::kAsItCame) {
    contexts_.push_back(*OwnedContext::Create(device(), PreparedImage::WorkspaceBytes(g, PixelType::kFloat32)));
    const void* pixels = device().kind() == DeviceKind::kCuda ? Upload(values) : values.data();
    return PreparedImage::Prepare(contexts_.back().context(), pixels, PixelType::kFloat32, 1, 0, g, finest);
  }
  std::optional<IntensityWindow> WindowOf(const Values& values, const Geometry& g) {
    const absl::StatusOr<PreparedImage> image = Prepare(values, g);
    EXPECT_OK(image) << image.status();
    return image->window();
  }
  Values Finest(const PreparedImage& image) { return Download(image.volume().data, image.geometry().voxels()); }

  std::vector<OwnedContext> contexts_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(WindowTest);

TEST_P(WindowTest, OrdinaryImagesHaveNone) {
  const Geometry g = Grid({61, 57, 19});
  std::mt19937 engine(3);
  EXPECT_FALSE(WindowOf(Thorax(g, -1000), g));
  Values ball, mask, labels, stripped, noise, constant(g.voxels(), 7), bright(g.voxels(), 0);
  for (int64_t i = 0; i < g.voxels(); ++i) {
    const int x = i % g.size.x, y = i / g.size.x % g.size.y;
    const double r = FromAxis(g, x, y);
    ball.push_back(r < 0.6 ? Normal(engine, 1000, 1) : 0);
    mask.push_back(r < 0.6);
    labels.push_back(r < 0.9 ? 1 + static_cast<int>(9 * r) : 0);
    // A brain without its skull: 0 around a rim of cerebrospinal fluid.
    stripped.push_back(r > 0.8 ? 0 : r > 0.74 ? Normal(engine, 250, 40) : Normal(engine, r > 0.4 ? 600 : 900, 40));
    noise.push_back(Normal(engine, 0, 1));
  }
  bright[g.voxels() / 2] = 1;
  EXPECT_FALSE(WindowOf(ball, g)) << "an almost homogeneous body in zeros";
  EXPECT_FALSE(WindowOf(mask, g));
  EXPECT_FALSE(WindowOf(labels, g));
  EXPECT_FALSE(WindowOf(stripped, g));
  EXPECT_FALSE(WindowOf(noise, g));
  EXPECT_FALSE(WindowOf(constant, g));
  EXPECT_FALSE(WindowOf(bright, g)) << "one voxel in zeros is all there is";
  Values in_noise = noise, masked;
  for (int64_t i = 0; i < g.voxels(); ++i) {
    const double r = FromAxis(g, i % g.size.x, i / g.size.x % g.size.y);
    if (r < 0.1) in_noise[i] = Normal(engine, 100, 5);
    // Soft tissue that somebody cut out, the rest air: 0 HU is nothing special.
    masked.push_back(r < 0.7 ? Normal(engine, 40, 20) : -1000);
  }
  EXPECT_FALSE(WindowOf(in_noise, g)) << "a small object is all that noise shows";
  EXPECT_FALSE(WindowOf(masked, g));
}

TEST_P(WindowTest, PaddingBecomesTheAirBesideIt) {
  for (const Int3 size : {Int3{61, 57, 19}, Int3{96, 96, 1}}) {
    const Geometry g = Grid(size);
    for (const float padding : {-2000.f, -3024.f, -32768.f, 1e30f, -1e10f}) {
      const std::optional<IntensityWindow> window = WindowOf(Thorax(g, padding), g);
      ASSERT_TRUE(window) << padding;
      EXPECT_EQ(window->fill, padding);
      EXPECT_NEAR(window->fill_becomes, -1000, 20) << padding;
      EXPECT_EQ(Through(*window, 900.f), 900.f);
      EXPECT_EQ(Through(*window, -1000.f), -1000.f);
    }
  }
}

TEST_P(WindowTest, AnAbsurdFillInsideTheImageIsOneToo) {
  // A volume that another tool resampled: the fill cuts through tissue.
  const Geometry g = Grid({40, 40, 20});
  std::mt19937 engine(5);
  Values values;
  for (int64_t i = 0; i < g.voxels(); ++i) {
    const int x = i % g.size.x;
    values.push_back(x < 14 ? -1e30f : Normal(engine, 300 + 5 * x, 50));
  }
  const std::optional<IntensityWindow> window = WindowOf(values, g);
  ASSERT_TRUE(window);
  EXPECT_NEAR(window->fill_becomes, 370, 40);
}

TEST_P(WindowTest, MetalIsClamped) {
  const Geometry g = Grid({64, 64, 20});
  Values values = Thorax(g, -1000);
  const float largest = *std::max_element(values.begin(), values.end());
  for (int64_t i = 0; i < g.voxels(); ++i) {
    const int x = i % g.size.x, y = i / g.size.x % g.size.y;
    if ((x == 20 || x == 44) && (y == 30 || y == 40)) values[i] = 20 * largest;
  }
  const std::optional<IntensityWindow> window = WindowOf(values, g);
  ASSERT_TRUE(window);
  EXPECT_TRUE(std::isnan(window->fill));
  EXPECT_GT(window->high, 500) << "above all but a part of the spine";
  EXPECT_LT(window->high, 2 * largest);
  EXPECT_LE(window->low, -1000);
}

// The value that a part `q` of the sorted values lies below.
double QuantileOf(Values values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::llround(q * (values.size() - 1))];
}

TEST_P(WindowTest, ThinMetalIsPaintedOver) {
  const Geometry g = Grid({64, 64, 20});
  const Values clean = Thorax(g, -1000);
  const float largest = *std::max_element(clean.begin(), clean.end());
  // Two rods along z in soft tissue, some voxels from lungs and air.
  const auto from_rod = [&](int64_t i) {
    const int x = i % g.size.x, y = i / g.size.x % g.size.y;
    return std::min(std::abs(x - 29), std::abs(x - 35)) + std::abs(y - 22);
  };
  Values values = clean;
  for (int64_t i = 0; i < g.voxels(); ++i) {
    if (from_rod(i) == 0) values[i] = 20 * largest;
  }
  const absl::StatusOr<PreparedImage> image = Prepare(values, g);
  ASSERT_OK(image);
  ASSERT_TRUE(image->window());
  const double low = QuantileOf(values, 0.02), high = QuantileOf(values, 0.98);
  EXPECT_NEAR(image->window()->paint_above, high + (high - low), 0.05 * (high - low)) << "a range beyond";
  EXPECT_EQ(image->window()->paint_below, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(Finest(*image), values) << "the voxels as they came";

  EXPECT_EQ(image->WindowWorkspaceBytes(),
            static_cast<int64_t>(Arena::Rounded(g.voxels() * sizeof(float)) + 2 * Arena::Rounded(g.voxels())));
  contexts_.push_back(*OwnedContext::Create(device(), image->WindowWorkspaceBytes()));
  const ExecContext context = contexts_.back().context();
  ArenaScope scope(context.arena());
  const absl::StatusOr<PreparedImage> through = PreparedImage::ThroughWindow(context, *image);
  ASSERT_OK(through);
  ASSERT_OK(device().Synchronize(context.stream()));
  const Values seen = Finest(*through);
  for (int64_t i = 0; i < g.voxels(); ++i) {
    if (from_rod(i) > 1) {
      ASSERT_EQ(seen[i], std::min(clean[i], image->window()->high)) << i;
    } else {
      ASSERT_NEAR(seen[i], 40, 30) << "the mean of noise of 15 HU: " << i;
    }
  }
  EXPECT_EQ(image->statistics().maximum, *std::max_element(seen.begin(), seen.end()));

  const absl::StatusOr<PreparedImage> frame = Prepare(values, g, FinestLevel::kThroughWindow);
  ASSERT_OK(frame);
  EXPECT_FALSE(frame->window());
  EXPECT_EQ(Finest(*frame), seen);
}

TEST_P(WindowTest, WhatIsNotThinMetalIsNotPaintedOver) {
  const Geometry g = Grid({64, 64, 20});
  std::mt19937 engine(11);
  // Bones of 3000 HU, and air.
  Values bones = Thorax(g, -1000);
  for (float& v : bones) v = v > 600 ? 3000 : v;
  EXPECT_FALSE(WindowOf(bones, g));
  // More rods than a few.
  Values many = Thorax(g, -1000);
  for (int64_t i = 0; i < g.voxels(); ++i) {
    if (i % g.size.x % 8 == 4 && i / g.size.x % g.size.y % 8 == 4) many[i] = 20000;
  }
  const std::optional<IntensityWindow> of_many = WindowOf(many, g);
  ASSERT_TRUE(of_many);
  EXPECT_FALSE(of_many->paints());
  // Vessels in noise that interpolation has smoothed: 3 voxels in a row are correlated, voxels further apart are not.
  Values noise(g.voxels() + 2), vessels;
  for (float& v : noise) v = Normal(engine, 0, 10);
  for (int64_t i = 0; i < g.voxels(); ++i) {
    const int x = i % g.size.x, y = i / g.size.x % g.size.y;
    vessels.push_back(x == y && x > 30 && x < 40 ? 900 : noise[i] + noise[i + 1] + noise[i + 2]);
  }
  const std::optional<IntensityWindow> of_vessels = WindowOf(vessels, g);
  ASSERT_TRUE(of_vessels);
  EXPECT_FALSE(of_vessels->paints());
  // Two values, labels, and a background with a little in it.
  Values two(g.voxels(), 0), labels, dots(g.voxels(), 0);
  for (int64_t i = 0; i < g.voxels(); ++i) {
    two[i] = i % g.size.x == 12;
    labels.push_back(static_cast<float>(i / g.size.x % g.size.y / 9));
    if (i % 3001 == 5) dots[i] = 4000;
  }
  for (const Values& values : {two, labels, dots, Values(g.voxels(), 3)}) EXPECT_FALSE(WindowOf(values, g));
}

TEST_P(WindowTest, LevelsAndStatisticsAreThroughTheWindowAndTheVoxelsAsTheyCame) {
  const Geometry g = Grid({61, 57, 19});
  const Values padded = Thorax(g, -3024);
  const absl::StatusOr<PreparedImage> image = Prepare(padded, g);
  ASSERT_OK(image);
  ASSERT_TRUE(image->window());
  EXPECT_EQ(Finest(*image), padded);
  EXPECT_EQ(image->minimum(), -3024);
  EXPECT_EQ(image->maximum(), *std::max_element(padded.begin(), padded.end()));

  Values seen = padded;
  for (float& v : seen) v = Through(*image->window(), v);
  const absl::StatusOr<PreparedImage> clean = Prepare(seen, g);
  ASSERT_OK(clean);
  EXPECT_FALSE(clean->window());
  EXPECT_EQ(image->statistics().minimum, clean->statistics().minimum);
  EXPECT_EQ(image->statistics().stddev, clean->statistics().stddev);
  EXPECT_EQ(image->statistics().center_of_mass.x, clean->statistics().center_of_mass.x);
  ASSERT_GT(image->levels().size(), 1u);
  for (size_t level = 0; level < image->levels().size(); ++level) {
    EXPECT_EQ(image->levels()[level].mean_gradient, clean->levels()[level].mean_gradient);
    if (level == 0) continue;
    const ConstVolumeView a = image->levels()[level].volume, b = clean->levels()[level].volume;
    EXPECT_EQ(Download(a.data, a.geometry.voxels()), Download(b.data, b.geometry.voxels())) << level;
  }

  EXPECT_EQ(image->WindowWorkspaceBytes(), static_cast<int64_t>(Arena::Rounded(g.voxels() * sizeof(float))));
  contexts_.push_back(*OwnedContext::Create(device(), image->WindowWorkspaceBytes()));
  const ExecContext context = contexts_.back().context();
  ArenaScope scope(context.arena());
  const absl::StatusOr<PreparedImage> through = PreparedImage::ThroughWindow(context, *image);
  ASSERT_OK(through);
  ASSERT_OK(device().Synchronize(context.stream()));
  EXPECT_EQ(Finest(*through), seen);
  EXPECT_EQ(through->WindowWorkspaceBytes(), 0);

  const absl::StatusOr<PreparedImage> frame = Prepare(padded, g, FinestLevel::kThroughWindow);
  ASSERT_OK(frame);
  EXPECT_FALSE(frame->window());
  EXPECT_EQ(Finest(*frame), seen);
}

TEST_P(WindowTest, ThroughNoWindowIsTheImageItself) {
  const Geometry g = Grid({9, 8, 7});
  std::mt19937 engine(9);
  Values values;
  for (int64_t i = 0; i < g.voxels(); ++i) values.push_back(Normal(engine, 10, 3));
  const absl::StatusOr<PreparedImage> image = Prepare(values, g);
  ASSERT_OK(image);
  EXPECT_EQ(image->WindowWorkspaceBytes(), 0);
  const absl::StatusOr<PreparedImage> through = PreparedImage::ThroughWindow(ctx(), *image);
  ASSERT_OK(through);
  EXPECT_EQ(through->volume().data, image->volume().data);
}

TEST(SampledVoxelTest, VisitsEachPartOnceAndStaysInside) {
  for (const int64_t voxels :
       {int64_t{1}, int64_t{63}, int64_t{8191}, int64_t{8192}, int64_t{8193}, int64_t{1} << 33}) {
    int64_t last = -1;
    for (int i = 0; i < SampleCount(voxels); ++i) {
      const int64_t voxel = SampledVoxel(voxels, i);
      ASSERT_GT(voxel, last) << voxels;
      ASSERT_LT(voxel, voxels);
      last = voxel;
    }
  }
}

}  // namespace
}  // namespace intrawarp
