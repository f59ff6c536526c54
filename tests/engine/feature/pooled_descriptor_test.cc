// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/pooled_descriptor.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class PooledDescriptorTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(PooledDescriptorTest);

TEST_P(PooledDescriptorTest, IsTheMeanOfWhatIsValid) {
  struct Case {
    Int3 size, block;
  };
  for (const Case& c : {Case{{1, 1, 1}, {1, 1, 1}}, Case{{5, 4, 3}, {2, 3, 4}}, Case{{7, 9, 1}, {4, 4, 1}}}) {
    const Int3 n{c.size.x * c.block.x, c.size.y * c.block.y, c.size.z * c.block.z};
    std::mt19937 engine(n.x);
    std::uniform_int_distribution<int> channel(0, 255), third(0, 2);
    std::vector<Descriptor> descriptors(static_cast<size_t>(n.x) * n.y * n.z);
    std::vector<uint8_t> valid(descriptors.size());
    for (size_t i = 0; i < descriptors.size(); ++i) {
      for (uint8_t& value : descriptors[i].channel) value = static_cast<uint8_t>(channel(engine));
      valid[i] = third(engine) == 0 ? 0 : 7;
    }
    const size_t nodes = static_cast<size_t>(c.size.x) * c.size.y * c.size.z;
    auto* out = Poisoned<PooledDescriptor>(nodes);
    ASSERT_OK(PoolDescriptors(ctx(), Upload(descriptors), Upload(valid), c.size, c.block, out));
    const std::vector<PooledDescriptor> pooled = Download(out, nodes);
    for (size_t node = 0; node < nodes; ++node) {
      const int x = static_cast<int>(node) % c.size.x, y = static_cast<int>(node) / c.size.x % c.size.y,
                z = static_cast<int>(node) / c.size.x / c.size.y;
      double sums[kDescriptorChannels] = {};
      int count = 0;
      for (int i = 0; i < c.block.x * c.block.y * c.block.z; ++i) {
        const int bx = x * c.block.x + i % c.block.x, by = y * c.block.y + i / c.block.x % c.block.y,
                  bz = z * c.block.z + i / c.block.x / c.block.y;
        const size_t place = (static_cast<size_t>(bz) * n.y + by) * n.x + bx;
        if (valid[place] == 0) continue;
        for (int k = 0; k < kDescriptorChannels; ++k) sums[k] += descriptors[place].channel[k];
        ++count;
      }
      uint32_t squares = 0;
      const bool has_one = 2 * count >= c.block.x * c.block.y * c.block.z;
      for (int k = 0; k < kDescriptorChannels; ++k) {
        const double mean = has_one ? std::floor(sums[k] / count + 0.5) : 0;
        ASSERT_NEAR(pooled[node].channel[k], mean, 0) << node << " " << k;
        squares += static_cast<uint32_t>(mean * mean);
      }
      EXPECT_EQ(pooled[node].squares, squares);
    }
  }
}

TEST_P(PooledDescriptorTest, IsTheWeightedMeanOfWhatIsValid) {
  const Int3 size{5, 4, 3}, block{2, 3, 4}, n{10, 12, 12};
  std::mt19937 engine(77);
  std::uniform_int_distribution<int> channel(0, 255), byte(-80, 290);
  std::vector<Descriptor> descriptors(static_cast<size_t>(n.x) * n.y * n.z);
  std::vector<uint8_t> valid(descriptors.size());
  for (size_t i = 0; i < descriptors.size(); ++i) {
    for (uint8_t& value : descriptors[i].channel) value = static_cast<uint8_t>(channel(engine));
    valid[i] = static_cast<uint8_t>(std::clamp(byte(engine), 0, 255));
  }
  const size_t nodes = static_cast<size_t>(size.x) * size.y * size.z;
  auto* out = Poisoned<PooledDescriptor>(nodes);
  auto* weights = Poisoned<uint8_t>(nodes);
  ASSERT_OK(PoolDescriptors(ctx(), Upload(descriptors), Upload(valid), size, block, out, weights));
  const std::vector<PooledDescriptor> pooled = Download(out, nodes);
  const std::vector<uint8_t> got = Download(weights, nodes);
  for (size_t node = 0; node < nodes; ++node) {
    const int x = static_cast<int>(node) % size.x, y = static_cast<int>(node) / size.x % size.y,
              z = static_cast<int>(node) / size.x / size.y;
    double sums[kDescriptorChannels] = {}, total = 0;
    int count = 0;
    for (int i = 0; i < block.x * block.y * block.z; ++i) {
      const int bx = x * block.x + i % block.x, by = y * block.y + i / block.x % block.y,
                bz = z * block.z + i / block.x / block.y;
      const size_t place = (static_cast<size_t>(bz) * n.y + by) * n.x + bx;
      for (int k = 0; k < kDescriptorChannels; ++k) sums[k] += valid[place] * descriptors[place].channel[k];
      total += valid[place];
      count += valid[place] != 0;
    }
    const bool has_one = 2 * count >= block.x * block.y * block.z;
    EXPECT_EQ(got[node], has_one ? std::floor(total / count + 0.5) : 0) << node;
    for (int k = 0; k < kDescriptorChannels; ++k) {
      EXPECT_NEAR(pooled[node].channel[k], has_one ? sums[k] / total : 0, 0.5001) << node << " " << k;
    }
    EXPECT_EQ(pooled[node].squares != 0, has_one);
  }
}

// The largest block, of the largest weights and channels; and weights of one are the bits of none.
TEST_P(PooledDescriptorTest, WeightsOfOneAreTheBitsOfNone) {
  for (const Int3 block : {Int3{3, 5, 1}, Int3{64, 64, 16}}) {
    const Int3 size{2, 1, 1};
    std::mt19937 engine(78);
    std::uniform_int_distribution<int> channel(block.x > 10 ? 255 : 0, 255);
    std::vector<Descriptor> descriptors(2 * static_cast<size_t>(block.x) * block.y * block.z);
    for (Descriptor& descriptor : descriptors) {
      for (uint8_t& value : descriptor.channel) value = static_cast<uint8_t>(channel(engine));
    }
    const uint8_t* valid = Upload(std::vector<uint8_t>(descriptors.size(), 255));
    auto *plain = Poisoned<PooledDescriptor>(2), *weighted = Poisoned<PooledDescriptor>(2);
    auto* weights = Poisoned<uint8_t>(2);
    ASSERT_OK(PoolDescriptors(ctx(), Upload(descriptors), valid, size, block, plain));
    ASSERT_OK(PoolDescriptors(ctx(), Upload(descriptors), valid, size, block, weighted, weights));
    const std::vector<PooledDescriptor> a = Download(plain, 2), b = Download(weighted, 2);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(a[i].squares, b[i].squares);
      for (int k = 0; k < kDescriptorChannels; ++k) EXPECT_EQ(a[i].channel[k], b[i].channel[k]);
    }
    EXPECT_EQ(Download(weights, 2), std::vector<uint8_t>(2, 255));
  }
}

}  // namespace
}  // namespace intrawarp
