// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/descriptor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class DescriptorTest : public DeviceTest {
 protected:
  std::vector<Descriptor> Compute(const std::vector<float>& image, Int3 size, float floor) {
    Geometry grid;
    grid.size = size;
    auto* out = Poisoned<Descriptor>(image.size());
    EXPECT_OK(ComputeDescriptors(ctx(), {Upload(image), grid}, floor, out));
    return Download(out, image.size());
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DescriptorTest);

// Channel by channel, the two neighbours that are compared.
constexpr Int3 kPairs[kDescriptorChannels][2] = {
    {{1, 0, 0}, {0, 1, 0}},  {{0, -1, 0}, {-1, 0, 0}}, {{0, 1, 0}, {0, 0, 1}},  {{0, 0, -1}, {0, -1, 0}},
    {{0, 0, 1}, {1, 0, 0}},  {{-1, 0, 0}, {0, 0, -1}}, {{1, 0, 0}, {0, -1, 0}}, {{0, 1, 0}, {-1, 0, 0}},
    {{0, 1, 0}, {0, 0, -1}}, {{0, 0, 1}, {0, -1, 0}},  {{0, 0, 1}, {-1, 0, 0}}, {{1, 0, 0}, {0, 0, -1}},
};

struct Reference {
  const std::vector<float>& image;
  Int3 size;

  Int3 Clamp(Int3 v) const {
    return {std::clamp(v.x, 0, size.x - 1), std::clamp(v.y, 0, size.y - 1), std::clamp(v.z, 0, size.z - 1)};
  }
  double At(Int3 v) const {
    const Int3 c = Clamp(v);
    return image[(int64_t{c.z} * size.y + c.y) * size.x + c.x];
  }
  // The mean squared difference of a channel.
  double Distance(Int3 voxel, int channel) const {
    const Int3 a = kPairs[channel][0], difference = kPairs[channel][1] - a, center = Clamp(voxel + a);
    double sum = 0;
    for (int i = 0; i < 27; ++i) {
      const Int3 y = Clamp(center + Int3{i % 3 - 1, i / 3 % 3 - 1, i / 9 - 1});
      sum += std::pow(At(y) - At(y + difference), 2);
    }
    return sum / 27;
  }
};

TEST_P(DescriptorTest, EqualsTheDefinition) {
  for (const Int3 size : {Int3{1, 1, 1}, Int3{7, 5, 1}, Int3{2, 2, 2}, Int3{6, 5, 4}, Int3{37, 3, 9}}) {
    const std::vector<float> image =
        RandomFloats(static_cast<size_t>(size.x) * size.y * size.z, static_cast<uint32_t>(size.x), -50, 200);
    const float floor = 900;
    const Reference reference{image, size};
    const std::vector<Descriptor> computed = Compute(image, size, floor);
    for (size_t i = 0; i < image.size(); ++i) {
      const auto place = static_cast<int>(i);
      const Int3 voxel{place % size.x, place / size.x % size.y, place / size.x / size.y};
      double s[kDescriptorChannels], least = INFINITY, mean = 0;
      for (int c = 0; c < kDescriptorChannels; ++c) {
        s[c] = reference.Distance(voxel, c);
        least = std::min(least, s[c]);
        mean += s[c] / kDescriptorChannels;
      }
      const double variation = mean - least;
      ASSERT_NEAR(computed[i].variation, variation, 1e-4 * (1 + mean)) << i;
      for (int c = 0; c < kDescriptorChannels; ++c) {
        const double expected = 255 * std::exp(-(s[c] - least) / std::max<double>(variation, floor));
        ASSERT_NEAR(computed[i].channel[c], expected, 1.01) << i << " " << c;
      }
    }
  }
}

TEST_P(DescriptorTest, IsTheSameForInvertedAndScaledIntensities) {
  const Int3 size{13, 11, 9};
  const std::vector<float> image = RandomFloats(13 * 11 * 9, 5, 0, 100);
  std::vector<float> other = image;
  for (float& v : other) v = 700 - 4 * v;
  const std::vector<Descriptor> a = Compute(image, size, 1e-3f), b = Compute(other, size, 16e-3f);
  for (size_t i = 0; i < a.size(); ++i) {
    for (int c = 0; c < kDescriptorChannels; ++c) EXPECT_NEAR(a[i].channel[c], b[i].channel[c], 1) << i;
  }
}

TEST_P(DescriptorTest, NoiseBelowTheFloorMakesNoStructure) {
  const std::vector<float> noise = RandomFloats(10 * 10 * 10, 6, 99.5f, 100.5f);
  for (const Descriptor& d : Compute(noise, {10, 10, 10}, 1e4f)) {
    for (const uint8_t channel : d.channel) EXPECT_EQ(channel, 255);
    EXPECT_LT(d.variation, 1);
  }
}

TEST_P(DescriptorTest, TheSameBitsEachTime) {
  const std::vector<float> image = RandomFloats(33 * 17 * 5, 7, 0, 1);
  const std::vector<Descriptor> a = Compute(image, {33, 17, 5}, 1e-3f), b = Compute(image, {33, 17, 5}, 1e-3f);
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(Descriptor)), 0);
}

}  // namespace
}  // namespace intrawarp
