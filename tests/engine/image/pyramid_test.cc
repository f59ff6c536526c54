// SPDX-License-Identifier: Apache-2.0
#include "engine/image/pyramid.h"

#include <cmath>
#include <limits>

#include "engine/image/gradient.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

// The two corners of a grid's domain.
Vec3d Corner(const Geometry& g, bool upper) {
  if (!upper) return IndexToPhysical(g)({-0.5, -0.5, -0.5});
  return IndexToPhysical(g)({g.size.x - 0.5, g.size.y - 0.5, g.size.z - 0.5});
}

std::vector<Int3> Sizes(Int3 size, Vec3d spacing) {
  Geometry g = ObliqueGeometry(size);
  g.spacing = spacing;
  std::vector<Int3> sizes;
  for (const Geometry& level : PyramidGeometries(g)) sizes.push_back(level.size);
  return sizes;
}

TEST(PyramidGeometriesTest, HalvesWhatCanBeHalved) {
  EXPECT_EQ(Sizes({64, 64, 64}, {1, 1, 1}), (std::vector<Int3>{{64, 64, 64}, {32, 32, 32}, {16, 16, 16}, {8, 8, 8}}));
  EXPECT_EQ(Sizes({15, 15, 15}, {1, 1, 1}), (std::vector<Int3>{{15, 15, 15}}));
  EXPECT_EQ(Sizes({1, 1, 1}, {1, 1, 1}), (std::vector<Int3>{{1, 1, 1}}));
  EXPECT_EQ(Sizes({37, 16, 1}, {1, 1, 1}), (std::vector<Int3>{{37, 16, 1}, {18, 8, 1}, {9, 8, 1}}));
}

// Thick slices wait until the others have come near their thickness.
TEST(PyramidGeometriesTest, LeavesCoarseAxesAlone) {
  EXPECT_EQ(Sizes({128, 128, 32}, {1, 1, 4}),
            (std::vector<Int3>{{128, 128, 32}, {64, 64, 32}, {32, 32, 32}, {16, 16, 16}, {8, 8, 8}}));
  EXPECT_EQ(Sizes({64, 64, 32}, {1, 1, 1.49}).at(1), (Int3{32, 32, 16}));
  EXPECT_EQ(Sizes({64, 64, 32}, {1, 1, 1.51}).at(1), (Int3{32, 32, 32}));
  // An axis too short to be halved does not hold back the rest.
  EXPECT_EQ(Sizes({64, 64, 10}, {2, 2, 1}).at(1), (Int3{32, 32, 10}));
}

TEST(PyramidGeometriesTest, KeepsTheDomain) {
  for (bool left_handed : {false, true}) {
    const Geometry finest = ObliqueGeometry({181, 217, 37}, left_handed);
    const std::vector<Geometry> levels = PyramidGeometries(finest);
    ASSERT_GT(levels.size(), 3u);
    EXPECT_TRUE(levels.front() == finest);
    for (const Geometry& g : levels) {
      for (bool upper : {false, true})
        for (int a = 0; a < 3; ++a) EXPECT_NEAR(Corner(g, upper)[a], Corner(finest, upper)[a], 1e-9);
    }
  }
}

// A grid of another size on the same domain.
Geometry Resized(const Geometry& g, Int3 size) {
  Geometry out = g;
  out.size = size;
  Vec3d first;
  for (int a = 0; a < 3; ++a) {
    out.spacing[a] = g.spacing[a] * g.size[a] / size[a];
    first[a] = 0.5 * g.size[a] / size[a] - 0.5;
  }
  out.origin = IndexToPhysical(g)(first);
  return out;
}

double Overlap(int i, int j, double ratio) {
  return std::max(0.0, std::min(i + 1.0, (j + 1) * ratio) - std::max<double>(i, j * ratio)) / ratio;
}

// The box average, straight from its definition, of value(offset).
template <typename Value>
std::vector<double> BoxMean(Int3 n, Int3 m, const Value& value) {
  std::vector<double> out;
  for (int z = 0; z < m.z; ++z)
    for (int y = 0; y < m.y; ++y)
      for (int x = 0; x < m.x; ++x) {
        double sum = 0;
        for (int k = 0; k < n.z; ++k) {
          const double wz = Overlap(k, z, double(n.z) / m.z);
          for (int j = 0; wz > 0 && j < n.y; ++j) {
            const double wy = wz * Overlap(j, y, double(n.y) / m.y);
            for (int i = 0; wy > 0 && i < n.x; ++i) {
              sum += wy * Overlap(i, x, double(n.x) / m.x) * value((size_t{0} + k * n.y + j) * n.x + i);
            }
          }
        }
        out.push_back(sum);
      }
  return out;
}

struct SizePair {
  Int3 in, out;
};
constexpr SizePair kPairs[] = {{{16, 16, 16}, {8, 8, 8}}, {{17, 19, 21}, {8, 9, 10}}, {{130, 6, 4}, {65, 3, 2}},
                               {{16, 10, 8}, {8, 10, 8}}, {{15, 10, 8}, {15, 5, 4}},  {{64, 9, 10}, {64, 9, 5}},
                               {{131, 9, 1}, {65, 4, 1}}, {{66, 20, 1}, {33, 10, 1}}, {{7, 5, 3}, {7, 5, 3}},
                               {{10, 9, 8}, {1, 2, 3}},   {{1, 1, 1}, {1, 1, 1}},     {{256, 5, 18}, {128, 2, 9}}};

class DownsampleTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DownsampleTest);

TEST_P(DownsampleTest, IsTheMeanOfTheBox) {
  uint32_t seed = 1;
  for (const auto& [in, out] : kPairs) {
    const Geometry fine = ObliqueGeometry(in, seed % 2 == 0), coarse = Resized(fine, out);
    SCOPED_TRACE(SizeString(fine) + " to " + SizeString(coarse));
    const std::vector<float> values = RandomFloats(fine.voxels(), seed++, -1, 1);
    const VolumeView got_view{Poisoned<float>(coarse.voxels()), coarse};
    const absl::Status status = Downsample(ctx(), {Upload(values), fine}, got_view);
    ASSERT_OK(status) << status;
    const std::vector<float> got = Download(got_view.data, coarse.voxels());
    const std::vector<double> want = BoxMean(in, out, [&](size_t i) { return values[i]; });
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 3e-7) << i;
  }
}

TEST_P(DownsampleTest, MaskNeedsHalfTheBox) {
  uint32_t seed = 1;
  for (const auto& [in, out] : kPairs) {
    const Geometry fine = ObliqueGeometry(in), coarse = Resized(fine, out);
    SCOPED_TRACE(SizeString(fine) + " to " + SizeString(coarse));
    std::vector<uint8_t> mask(fine.voxels());
    std::mt19937 engine(seed++);
    for (uint8_t& m : mask) m = engine() % 2 ? 1 + engine() % 255 : 0;
    const MaskView got_view{Poisoned<uint8_t>(coarse.voxels()), coarse};
    ASSERT_OK(DownsampleMask(ctx(), {Upload(mask), fine}, got_view));
    const std::vector<uint8_t> got = Download(got_view.data, coarse.voxels());
    const std::vector<double> share = BoxMean(in, out, [&](size_t i) { return mask[i] != 0 ? 1.0 : 0.0; });
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], share[i] > 0.5 - 1e-9 ? 1 : 0) << i << " " << share[i];
  }
}

// The mean of the weights over the part of a box that counts, of which at least half does.
TEST_P(DownsampleTest, WeightsAreAveragedOverWhatCounts) {
  uint32_t seed = 1;
  for (const auto& [in, out] : kPairs) {
    const Geometry fine = ObliqueGeometry(in), coarse = Resized(fine, out);
    SCOPED_TRACE(SizeString(fine) + " to " + SizeString(coarse));
    std::vector<uint8_t> mask(fine.voxels());
    std::mt19937 engine(seed++);
    for (uint8_t& m : mask) m = engine() % 4 ? 1 + engine() % 255 : 0;
    const MaskView got_view{Poisoned<uint8_t>(coarse.voxels()), coarse, kWeightPerUnit};
    ASSERT_OK(DownsampleMask(ctx(), {Upload(mask), fine, kWeightPerUnit}, got_view));
    const std::vector<uint8_t> got = Download(got_view.data, coarse.voxels());
    const std::vector<double> share = BoxMean(in, out, [&](size_t i) { return mask[i] != 0 ? 1.0 : 0.0; });
    const std::vector<double> sum = BoxMean(in, out, [&](size_t i) { return double(mask[i]); });
    for (size_t i = 0; i < got.size(); ++i) {
      if (share[i] < 0.5 - 1e-9) {
        ASSERT_EQ(got[i], 0) << i << " " << share[i];
      } else {
        ASSERT_NEAR(got[i], sum[i] / share[i], 0.5 + 1e-9) << i << " " << share[i];
        ASSERT_GE(got[i], 1) << i;
      }
    }
  }
}

TEST_P(DownsampleTest, AMaskHasOneUnit) {
  const Geometry fine = ObliqueGeometry({16, 16, 16}), coarse = Resized(fine, {8, 8, 8});
  EXPECT_EQ(DownsampleMask(ctx(), {nullptr, fine, kWeightPerUnit}, {nullptr, coarse}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(DownsampleTest, EmptyMaskViewCountsEverywhere) {
  const Geometry fine = ObliqueGeometry({16, 16, 16}), coarse = Resized(fine, {8, 8, 8});
  const MaskView out{Poisoned<uint8_t>(coarse.voxels()), coarse};
  ASSERT_OK(DownsampleMask(ctx(), {nullptr, fine}, out));
  EXPECT_EQ(Download(out.data, coarse.voxels()), std::vector<uint8_t>(coarse.voxels(), 1));
}

TEST_P(DownsampleTest, RefusesAnotherDomain) {
  const Geometry fine = ObliqueGeometry({16, 16, 16});
  Geometry coarse = Resized(fine, {8, 8, 8});
  coarse.origin.y += 0.5;
  EXPECT_EQ(Downsample(ctx(), {nullptr, fine}, {nullptr, coarse}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DownsampleMask(ctx(), {nullptr, fine}, {nullptr, coarse}).code(), absl::StatusCode::kInvalidArgument);
}

class PreparedImageTest : public DeviceTest {
 protected:
  // Prepares with exactly the workspace that is said to be enough.
  absl::StatusOr<PreparedImage> Prepare(const void* pixels, PixelType type, double slope, double intercept,
                                        const Geometry& g) {
    contexts_.push_back(*OwnedContext::Create(device(), PreparedImage::WorkspaceBytes(g, type)));
    return PreparedImage::Prepare(contexts_.back().context(), pixels, type, slope, intercept, g);
  }
  void ExpectPrepared(const absl::StatusOr<PreparedImage>& image, const Geometry& g, const std::vector<float>& values) {
    ASSERT_OK(image) << image.status();
    EXPECT_TRUE(image->geometry() == g);
    EXPECT_EQ(Download(image->volume().data, values.size()), values);
    const std::vector<Geometry> grids = PyramidGeometries(g);
    ASSERT_EQ(image->levels().size(), grids.size());
    int64_t bytes = 0;
    for (size_t i = 0; i < grids.size(); ++i) {
      const PyramidLevel& level = image->levels()[i];
      EXPECT_TRUE(level.volume.geometry == grids[i]);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(level.volume.data) % Arena::kAlignment, 0u);
      EXPECT_EQ(level.mean_gradient, *MeanGradientMagnitude(ctx(), level.volume));
      bytes += Arena::Rounded(grids[i].voxels() * sizeof(float));
      if (i == 0) continue;
      const std::vector<float> finer = Download(image->levels()[i - 1].volume.data, grids[i - 1].voxels());
      const std::vector<float> got = Download(level.volume.data, grids[i].voxels());
      const std::vector<double> want = BoxMean(grids[i - 1].size, grids[i].size, [&](size_t k) { return finer[k]; });
      for (size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], want[k], 1e-3) << i << " " << k;
    }
    EXPECT_EQ(PreparedImage::Bytes(g), bytes);
    const VolumeStatistics s = *ComputeStatistics(ctx(), image->volume());
    EXPECT_EQ(image->statistics().mean, s.mean);
    EXPECT_EQ(image->statistics().maximum, s.maximum);
    EXPECT_EQ(image->statistics().background, s.background);
    EXPECT_EQ(image->statistics().center_of_mass, s.center_of_mass);
  }
  template <typename T>
  void ExpectPrepares(PixelType type, const Geometry& g, double slope, double intercept) {
    SCOPED_TRACE(SizeString(g) + " type " + std::to_string(static_cast<int>(type)));
    const std::vector<float> random = RandomFloats(g.voxels(), 7, 0, 120);
    const std::vector<T> pixels(random.begin(), random.end());
    std::vector<float> values;
    for (T p : pixels) values.push_back(static_cast<float>(p * slope + intercept));
    const absl::StatusOr<PreparedImage> image = Prepare(pixels.data(), type, slope, intercept, g);
    ExpectPrepared(image, g, values);
  }
  std::vector<OwnedContext> contexts_;  // outlive the images
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(PreparedImageTest);

TEST_P(PreparedImageTest, PreparesEveryPixelType) {
  const Geometry g = ObliqueGeometry({40, 37, 18});
  ExpectPrepares<uint8_t>(PixelType::kUint8, g, 1, 0);
  ExpectPrepares<int8_t>(PixelType::kInt8, g, 2, -5);
  ExpectPrepares<uint16_t>(PixelType::kUint16, g, 1, -1024);
  ExpectPrepares<int16_t>(PixelType::kInt16, g, 0.5, 3);
  ExpectPrepares<uint32_t>(PixelType::kUint32, g, 1, 0);
  ExpectPrepares<int32_t>(PixelType::kInt32, g, -1, 0);
  ExpectPrepares<float>(PixelType::kFloat32, g, 1, 0);
  ExpectPrepares<float>(PixelType::kFloat32, g, 3, 1);
  ExpectPrepares<double>(PixelType::kFloat64, g, 1, 0);
}

TEST_P(PreparedImageTest, PreparesAnySize) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{100, 75, 1}, Int3{64, 64, 64}, Int3{33, 1, 40}, Int3{17, 130, 9}}) {
    ExpectPrepares<int16_t>(PixelType::kInt16, ObliqueGeometry(size, true), 1, 0);
  }
}

TEST_P(PreparedImageTest, RefusesVoxelsThatAreNotFinite) {
  const Geometry g = ObliqueGeometry({20, 20, 20});
  for (float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> pixels = RandomFloats(g.voxels(), 1);
    pixels[777] = pixels[7999] = bad;
    const absl::Status status = Prepare(pixels.data(), PixelType::kFloat32, 1, 0, g).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), "voxels: 2 of 8000 are NaN or infinite");
  }
  // Finite as pixels, infinite as float32 after rescaling.
  const std::vector<uint16_t> pixels(g.voxels(), 60000);
  EXPECT_EQ(Prepare(pixels.data(), PixelType::kUint16, 1e35, 0, g).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(PreparedImageTest, RefusesABadGrid) {
  Geometry g = ObliqueGeometry({20, 20, 20});
  g.spacing.z = 0;
  OwnedContext owned = *OwnedContext::Create(device(), 1 << 20);
  const std::vector<float> pixels(8000);
  const absl::Status status =
      PreparedImage::Prepare(owned.context(), pixels.data(), PixelType::kFloat32, 1, 0, g).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()).find("spacing: z"), 0u);
}

TEST_P(PreparedImageTest, SaysWhenTheWorkspaceIsTooSmall) {
  OwnedContext owned = *OwnedContext::Create(device(), 256);
  const Geometry g = ObliqueGeometry({20, 20, 20});
  const std::vector<int16_t> pixels(g.voxels());
  EXPECT_EQ(PreparedImage::Prepare(owned.context(), pixels.data(), PixelType::kInt16, 1, 0, g).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace intrawarp
