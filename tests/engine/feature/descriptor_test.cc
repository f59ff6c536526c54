// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/descriptor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class DescriptorTest : public DeviceTest {
 protected:
  struct Computed {
    std::vector<Descriptor> descriptors;
    float noise = 0;
  };
  // Without `valid` no voxel counts for the noise.
  Computed Compute(const std::vector<float>& image, Int3 size, float floor, std::vector<uint8_t> valid = {},
                   int distance = 1) {
    Geometry grid;
    grid.size = size;
    valid.resize(image.size(), 0);
    auto* out = Poisoned<Descriptor>(image.size());
    auto* noise = Poisoned<float>(1);
    EXPECT_OK(ComputeDescriptors(ctx(), {Upload(image), grid}, Upload(valid), distance, floor, out, noise));
    return {Download(out, image.size()), Download(noise, 1)[0]};
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
  int distance;

  Int3 Clamp(Int3 v) const {
    return {std::clamp(v.x, 0, size.x - 1), std::clamp(v.y, 0, size.y - 1), std::clamp(v.z, 0, size.z - 1)};
  }
  double At(Int3 v) const {
    const Int3 c = Clamp(v);
    return image[(int64_t{c.z} * size.y + c.y) * size.x + c.x];
  }
  // The mean squared difference of a channel.
  double Distance(Int3 voxel, int channel) const {
    const Int3 a = distance * kPairs[channel][0], difference = distance * kPairs[channel][1] - a;
    const Int3 center = Clamp(voxel + a);
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
    const int distance = 1 + size.x % 2;
    const Reference reference{image, size, distance};
    const std::vector<Descriptor> computed = Compute(image, size, floor, {}, distance).descriptors;
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
  const std::vector<Descriptor> a = Compute(image, size, 1e-3f).descriptors,
                                b = Compute(other, size, 16e-3f).descriptors;
  for (size_t i = 0; i < a.size(); ++i) {
    for (int c = 0; c < kDescriptorChannels; ++c) EXPECT_NEAR(a[i].channel[c], b[i].channel[c], 1) << i;
  }
}

TEST_P(DescriptorTest, NoiseBelowTheFloorMakesNoStructure) {
  const std::vector<float> noise = RandomFloats(10 * 10 * 10, 6, 99.5f, 100.5f);
  for (const Descriptor& d : Compute(noise, {10, 10, 10}, 1e4f).descriptors) {
    for (const uint8_t channel : d.channel) EXPECT_EQ(channel, 255);
    EXPECT_LT(d.variation, 1);
  }
}

// A tenth of the variations lie below the noise, to a bin of an eighth of a power of two.
TEST_P(DescriptorTest, NoiseIsTheLeastTenthOfTheVariations) {
  const Int3 size{31, 17, 13};
  const std::vector<float> image = RandomFloats(31 * 17 * 13, 8, 0, 10);
  std::vector<uint8_t> valid(image.size());
  for (size_t i = 0; i < valid.size(); ++i) valid[i] = i % 3 != 0;
  const Computed computed = Compute(image, size, 1e-3f, valid);
  std::vector<float> variations;
  for (size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] != 0) variations.push_back(computed.descriptors[i].variation);
  }
  std::sort(variations.begin(), variations.end());
  EXPECT_NEAR(computed.noise, variations[variations.size() / 10], 0.03 * computed.noise);
}

TEST_P(DescriptorTest, NoiseRaisesTheFloor) {
  const Int3 size{16, 12, 10};
  const std::vector<float> image = RandomFloats(16 * 12 * 10, 9, 0, 10);
  const Computed raised = Compute(image, size, 1e-3f, std::vector<uint8_t>(image.size(), 1));
  const Computed named = Compute(image, size, 4 * raised.noise);
  EXPECT_GT(raised.noise, 1);
  EXPECT_EQ(named.noise, 0);
  for (size_t i = 0; i < image.size(); ++i) {
    for (int c = 0; c < kDescriptorChannels; ++c) {
      ASSERT_EQ(raised.descriptors[i].channel[c], named.descriptors[i].channel[c]) << i;
    }
  }
}

TEST_P(DescriptorTest, AFlatImageHasNoNoise) {
  const Computed flat = Compute(std::vector<float>(60, 7), {5, 4, 3}, 1, std::vector<uint8_t>(60, 1));
  EXPECT_LT(flat.noise, 1e-30);
  for (const Descriptor& d : flat.descriptors) EXPECT_EQ(d.channel[0], 255);
}

TEST_P(DescriptorTest, TheSameBitsEachTime) {
  const std::vector<float> image = RandomFloats(33 * 17 * 5, 7, 0, 1);
  const std::vector<uint8_t> valid(image.size(), 1);
  const Computed a = Compute(image, {33, 17, 5}, 1e-3f, valid), b = Compute(image, {33, 17, 5}, 1e-3f, valid);
  EXPECT_EQ(std::memcmp(a.descriptors.data(), b.descriptors.data(), a.descriptors.size() * sizeof(Descriptor)), 0);
  EXPECT_EQ(a.noise, b.noise);
}

}  // namespace
}  // namespace intrawarp
