// SPDX-License-Identifier: Apache-2.0
#include "engine/image/convert.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class ConvertTest : public DeviceTest {
 protected:
  // Converts and compares with the formula, at lengths around the vector width and the size of a block.
  template <typename T>
  void ExpectFormula(PixelType type, double slope, double intercept) {
    for (int count : {1, 3, 4, 255, 1023, 1024, 1030}) {
      std::mt19937 engine(count);
      std::vector<T> pixels(count);
      for (T& p : pixels) p = Random<T>(engine);
      pixels.front() = std::numeric_limits<T>::max();
      pixels.back() = std::numeric_limits<T>::lowest();
      if (std::is_floating_point_v<T>) pixels.front() = T(1e6), pixels.back() = T(-3);
      const VolumeView out{Poisoned<float>(count), Grid(count)};
      ASSERT_OK(ConvertPixels(ctx(), Upload(pixels), type, slope, intercept, out));
      const std::vector<float> got = Download(out.data, count);
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(got[i], static_cast<float>(static_cast<double>(pixels[i]) * slope + intercept)) << count << " " << i;
      }
    }
  }
  template <typename T>
  static T Random(std::mt19937& engine) {
    if constexpr (std::is_floating_point_v<T>) return std::uniform_real_distribution<T>(-1000, 1000)(engine);
    return static_cast<T>(engine());
  }
  static Geometry Grid(int count) {
    Geometry g;
    g.size = {count, 1, 1};
    return g;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(ConvertTest);

TEST_P(ConvertTest, EveryPixelType) {
  for (auto [slope, intercept] : {std::pair{1.0, 0.0}, {0.25, -1024.0}, {-3.1, 0.7}}) {
    ExpectFormula<uint8_t>(PixelType::kUint8, slope, intercept);
    ExpectFormula<int8_t>(PixelType::kInt8, slope, intercept);
    ExpectFormula<uint16_t>(PixelType::kUint16, slope, intercept);
    ExpectFormula<int16_t>(PixelType::kInt16, slope, intercept);
    ExpectFormula<uint32_t>(PixelType::kUint32, slope, intercept);
    ExpectFormula<int32_t>(PixelType::kInt32, slope, intercept);
    ExpectFormula<float>(PixelType::kFloat32, slope, intercept);
    ExpectFormula<double>(PixelType::kFloat64, slope, intercept);
  }
}

TEST_P(ConvertTest, UnalignedStart) {
  const std::vector<uint8_t> pixels = {9, 1, 2, 3, 4, 5, 6, 7, 8};
  const VolumeView out{Poisoned<float>(8), Grid(8)};
  ASSERT_OK(ConvertPixels(ctx(), Upload(pixels) + 1, PixelType::kUint8, 2, 0, out));
  EXPECT_EQ(Download(out.data, 8), (std::vector<float>{2, 4, 6, 8, 10, 12, 14, 16}));
}

TEST_P(ConvertTest, NotFiniteStaysSo) {
  const std::vector<double> pixels = {std::nan(""), 1e300, -1e300, std::numeric_limits<double>::infinity()};
  const VolumeView out{Poisoned<float>(4), Grid(4)};
  ASSERT_OK(ConvertPixels(ctx(), Upload(pixels), PixelType::kFloat64, 1, 0, out));
  const std::vector<float> got = Download(out.data, 4);
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_EQ(got[1], INFINITY);
  EXPECT_EQ(got[2], -INFINITY);
  EXPECT_EQ(got[3], INFINITY);
}

TEST_P(ConvertTest, BinarizeMask) {
  for (int count : {1, 5, 1027}) {
    std::vector<float> values = RandomFloats(count, count, -1, 1);
    for (int i = 0; i < count; i += 3) values[i] = i % 2 ? 0.0f : -0.0f;
    const MaskView out{Poisoned<uint8_t>(count), Grid(count)};
    ASSERT_OK(BinarizeMask(ctx(), {Upload(values), Grid(count)}, out));
    const std::vector<uint8_t> got = Download(out.data, count);
    for (int i = 0; i < count; ++i) ASSERT_EQ(got[i], values[i] != 0 ? 1 : 0) << count << " " << i;
  }
  EXPECT_EQ(BinarizeMask(ctx(), {nullptr, Grid(3)}, {nullptr, Grid(4)}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ConvertTest, WeightsAreKeptIn255thsAndNeverLost) {
  for (int count : {5, 1027}) {
    std::vector<float> weights = RandomFloats(count, count), mask(count, -3.0f);
    for (int i = 0; i < count; i += 7) mask[i] = 0;
    const float ends[] = {0, 1, 1e-30f, 0.5f, 1.0f / 255};
    std::copy(std::begin(ends), std::end(ends), weights.end() - 5);
    std::fill(mask.end() - 5, mask.end(), 1.0f);
    for (bool is_masked : {false, true}) {
      const MaskView out{Poisoned<uint8_t>(count), Grid(count)};
      const ConstVolumeView of_mask{is_masked ? Upload(mask) : nullptr, Grid(count)};
      ASSERT_OK(QuantizeWeights(ctx(), {Upload(weights), Grid(count)}, of_mask, out));
      const std::vector<uint8_t> got = Download(out.data, count);
      for (int i = 0; i < count; ++i) {
        double want = weights[i] > 0 ? std::max(1.0, std::round(255.0 * weights[i])) : 0.0;
        if (is_masked && mask[i] == 0) want = 0;
        ASSERT_EQ(got[i], want) << count << " " << i << " " << weights[i];
      }
    }
  }
  const ConstVolumeView three{nullptr, Grid(3)}, four{Upload(std::vector<float>(4)), Grid(4)};
  EXPECT_EQ(QuantizeWeights(ctx(), three, {}, {nullptr, Grid(4)}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(QuantizeWeights(ctx(), three, four, {nullptr, Grid(3)}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp
