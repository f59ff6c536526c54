// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/block_match.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr float kLeastVariation = 0.5f;

struct Volume {
  std::vector<Descriptor> descriptors;
  std::vector<uint8_t> valid;
};

Volume RandomVolume(Int3 size, uint32_t seed, double valid_part) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  Volume volume;
  for (int64_t i = 0; i < int64_t{size.x} * size.y * size.z; ++i) {
    Descriptor d;
    for (uint8_t& channel : d.channel) channel = static_cast<uint8_t>(255 * uniform(engine));
    d.variation = static_cast<float>(1 + uniform(engine));
    volume.descriptors.push_back(d);
    volume.valid.push_back(uniform(engine) < valid_part);
  }
  return volume;
}

class BlockMatchTest : public DeviceTest {
 protected:
  std::vector<BlockMatch> Match(const Volume& fixed, const Volume& moving, Int3 size, float noise = 0) {
    auto* out = Poisoned<BlockMatch>(BlockCount(size));
    const float* on_device = Upload(std::vector<float>{noise});
    EXPECT_OK(MatchBlocks(ctx(), {Upload(fixed.descriptors), Upload(fixed.valid), on_device, kLeastVariation},
                          {Upload(moving.descriptors), Upload(moving.valid), on_device, kLeastVariation}, size, out));
    return Download(out, BlockCount(size));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(BlockMatchTest);

using Displacement = std::tuple<int, int, int>;
// The costs of the displacements that have one.
using Costs = std::map<Displacement, double>;

struct Reference {
  const Volume& fixed;
  const Volume& moving;
  Int3 size;

  bool Inside(Int3 v) const { return v.x >= 0 && v.y >= 0 && v.z >= 0 && v.x < size.x && v.y < size.y && v.z < size.z; }
  int64_t Place(Int3 v) const { return (int64_t{v.z} * size.y + v.y) * size.x + v.x; }
  std::vector<Int3> Nodes(Int3 block) const {
    std::vector<Int3> nodes;
    for (int i = 0; i < 125; ++i) {
      const Int3 node{5 * block.x + i % 5, 5 * block.y + i / 5 % 5, 5 * block.z + i / 25};
      if (Inside(node)) nodes.push_back(node);
    }
    return nodes;
  }
  // Sum and number over the nodes that count.
  std::pair<double, int> Sum(Int3 block, Int3 l) const {
    double sum = 0;
    int count = 0;
    for (const Int3 p : Nodes(block)) {
      if (!Inside(p + l) || fixed.valid[Place(p)] == 0 || moving.valid[Place(p + l)] == 0) continue;
      const Descriptor &f = fixed.descriptors[Place(p)], &m = moving.descriptors[Place(p + l)];
      for (int c = 0; c < kDescriptorChannels; ++c) sum += std::pow(double{1} * f.channel[c] - m.channel[c], 2);
      ++count;
    }
    return {sum, count};
  }
  Costs CostsOf(Int3 block) const {
    Costs costs;
    const int nodes = Sum(block, {0, 0, 0}).second;
    if (nodes == 0 || 2 * nodes < static_cast<int>(Nodes(block).size())) return costs;
    for (int z = -3; z <= 3; ++z) {
      for (int y = -3; y <= 3; ++y) {
        for (int x = -3; x <= 3; ++x) {
          if ((size.x == 1 && x != 0) || (size.y == 1 && y != 0) || (size.z == 1 && z != 0)) continue;
          const auto [sum, count] = Sum(block, {x, y, z});
          if (count > 0 && 2 * count >= nodes) costs[{x, y, z}] = sum / count;
        }
      }
    }
    return costs;
  }
  Costs SmoothedCostsOf(Int3 block) const {
    std::map<Displacement, std::pair<double, double>> sums;
    for (int i = 0; i < 27; ++i) {
      const Int3 d{i % 3 - 1, i / 3 % 3 - 1, i / 9 - 1}, neighbour = block + d;
      const Int3 n = BlockCounts(size);
      if (neighbour.x < 0 || neighbour.y < 0 || neighbour.z < 0) continue;
      if (neighbour.x >= n.x || neighbour.y >= n.y || neighbour.z >= n.z) continue;
      const double weight = (2 - std::abs(d.x)) * (2 - std::abs(d.y)) * (2 - std::abs(d.z));
      for (const auto& [l, cost] : CostsOf(neighbour)) {
        sums[l].first += weight * cost;
        sums[l].second += weight;
      }
    }
    Costs costs;
    for (const auto& [l, sum] : sums) costs[l] = sum.first / sum.second;
    return costs;
  }
};

void ExpectMinimum(const CostMinimum& minimum, const Costs& costs) {
  const auto cost_at = [&](int x, int y, int z) {
    const auto found = costs.find({x, y, z});
    return found == costs.end() ? INFINITY : found->second;
  };
  double best = INFINITY, mean = 0;
  Displacement at;
  for (const auto& [l, cost] : costs) {
    mean += cost / static_cast<double>(costs.size());
    if (cost < best) std::tie(best, at) = std::tuple(cost, l);
  }
  const auto [bx, by, bz] = at;
  double rival = INFINITY;
  for (const auto& [l, cost] : costs) {
    const auto [x, y, z] = l;
    if (std::max({std::abs(x - bx), std::abs(y - by), std::abs(z - bz)}) > 1) rival = std::min(rival, cost);
  }
  EXPECT_NEAR(minimum.best, best, 1e-5 * best);
  EXPECT_NEAR(minimum.mean, mean, 1e-5 * mean);
  EXPECT_NEAR(minimum.rival, std::isfinite(rival) ? rival : mean, 1e-5 * mean);
  EXPECT_NEAR(minimum.zero, cost_at(0, 0, 0), 1e-5 * mean);
  EXPECT_EQ(minimum.reach, std::max({std::abs(bx), std::abs(by), std::abs(bz)}));
  const int whole[3] = {bx, by, bz};
  for (int a = 0; a < 3; ++a) {
    const int dx = a == 0, dy = a == 1, dz = a == 2;
    const double below = cost_at(bx - dx, by - dy, bz - dz), above = cost_at(bx + dx, by + dy, bz + dz);
    const double refined =
        std::isfinite(below) && std::isfinite(above) ? 0.5 * (below - above) / (below + above - 2 * best) : 0;
    EXPECT_NEAR(minimum.offset[a], whole[a] + refined, 1e-3) << a;
  }
}

TEST_P(BlockMatchTest, EqualsTheDefinition) {
  for (const Int3 size : {Int3{5, 5, 5}, Int3{11, 7, 6}, Int3{13, 9, 1}, Int3{4, 3, 2}, Int3{1, 1, 1}}) {
    for (const double valid : {1.0, 0.8}) {
      const Volume fixed = RandomVolume(size, 1, valid), moving = RandomVolume(size, 2, valid);
      const Reference reference{fixed, moving, size};
      const std::vector<BlockMatch> matches = Match(fixed, moving, size);
      const Int3 n = BlockCounts(size);
      for (int i = 0; i < static_cast<int>(matches.size()); ++i) {
        const Int3 block{i % n.x, i / n.x % n.y, i / n.x / n.y};
        EXPECT_EQ(matches[i].nodes, reference.Sum(block, {0, 0, 0}).second);
        const Costs own = reference.CostsOf(block);
        ASSERT_EQ(matches[i].matched, !own.empty());
        ASSERT_EQ(matches[i].covered, !own.empty());
        if (own.empty()) continue;
        ExpectMinimum(matches[i].own, own);
        ExpectMinimum(matches[i].smoothed, reference.SmoothedCostsOf(block));
      }
    }
  }
}

TEST_P(BlockMatchTest, FindsAShiftOfWholeNodes) {
  const Int3 size{25, 20, 15}, shift{2, -1, 3};
  const Volume fixed = RandomVolume(size, 3, 1);
  Volume moving = RandomVolume(size, 4, 1);
  const Reference places{fixed, moving, size};
  for (int64_t i = 0; i < static_cast<int64_t>(fixed.descriptors.size()); ++i) {
    const Int3 p{static_cast<int>(i % 25), static_cast<int>(i / 25 % 20), static_cast<int>(i / 500)};
    if (places.Inside(p + shift)) moving.descriptors[places.Place(p + shift)] = fixed.descriptors[i];
  }
  const std::vector<BlockMatch> matches = Match(fixed, moving, size);
  // The block in the middle, whose nodes all have their counterparts.
  const BlockMatch& match = matches[(1 * 4 + 2) * 5 + 2];
  EXPECT_EQ(match.own.best, 0);
  EXPECT_EQ(match.own.reach, 3);
  EXPECT_NEAR(match.own.offset[0], 2, 0.1);
  EXPECT_NEAR(match.own.offset[1], -1, 0.1);
  EXPECT_EQ(match.own.offset[2], 3);
  EXPECT_GT(match.own.rival, 1000);
}

TEST_P(BlockMatchTest, LeavesOutBlocksWithoutStructure) {
  const Int3 size{10, 5, 5};
  Volume fixed = RandomVolume(size, 5, 1);
  const Volume moving = RandomVolume(size, 6, 1);
  for (int64_t i = 0; i < static_cast<int64_t>(fixed.descriptors.size()); ++i) {
    if (i % 10 < 5) fixed.descriptors[i].variation = 0.1f;
  }
  const std::vector<BlockMatch> matches = Match(fixed, moving, size);
  EXPECT_EQ(matches[0].covered, 1);
  EXPECT_EQ(matches[0].matched, 0);
  EXPECT_EQ(matches[0].own.best, 0);
  EXPECT_NEAR(matches[0].variation, 0.1, 1e-6);
  ASSERT_EQ(matches[1].matched, 1);
  // Its neighbour has no part in its smoothed costs.
  EXPECT_NEAR(matches[1].smoothed.best, matches[1].own.best, 1e-5 * matches[1].own.best);
}

TEST_P(BlockMatchTest, SaysWhereTheMovingVolumeHasStructure) {
  const Int3 size{15, 5, 5};
  const Volume fixed = RandomVolume(size, 5, 1);
  Volume moving = RandomVolume(size, 6, 1);
  for (int64_t i = 0; i < static_cast<int64_t>(moving.descriptors.size()); ++i) {
    if (i % 15 < 5) moving.descriptors[i].variation = 0.1f;
    if (i % 15 >= 10) moving.valid[i] = 0;
  }
  const std::vector<BlockMatch> matches = Match(fixed, moving, size);
  EXPECT_EQ(matches[0].matched, 1);
  EXPECT_EQ(matches[0].shown, 0);
  EXPECT_EQ(matches[1].shown, 1);
  EXPECT_EQ(matches[2].covered, 0);
  EXPECT_EQ(matches[2].shown, 0);
}

TEST_P(BlockMatchTest, LeavesOutBlocksThatVaryNoMoreThanNoise) {
  const Int3 size{10, 5, 5};
  Volume fixed = RandomVolume(size, 5, 1);
  const Volume moving = RandomVolume(size, 6, 1);
  for (int64_t i = 0; i < static_cast<int64_t>(fixed.descriptors.size()); ++i) {
    fixed.descriptors[i].variation = i % 10 < 5 ? 9.0f : 11.0f;
  }
  const std::vector<BlockMatch> matches = Match(fixed, moving, size, 5);
  EXPECT_EQ(matches[0].covered, 1);
  EXPECT_EQ(matches[0].matched, 0);
  EXPECT_EQ(matches[1].matched, 1);
}

TEST_P(BlockMatchTest, OfEqualCostsTheShortestDisplacementIsTheBest) {
  const Int3 size{15, 15, 15};
  Volume flat = RandomVolume(size, 9, 1);
  for (Descriptor& d : flat.descriptors) std::fill_n(d.channel, kDescriptorChannels, uint8_t{255});
  for (const BlockMatch& match : Match(flat, flat, size)) {
    ASSERT_EQ(match.matched, 1);
    EXPECT_EQ(match.own.reach, 0);
    EXPECT_EQ(match.own.best, 0);
    EXPECT_EQ(match.smoothed.reach, 0);
  }
}

TEST_P(BlockMatchTest, TheSameBitsEachTime) {
  const Int3 size{23, 17, 11};
  const Volume fixed = RandomVolume(size, 7, 0.9), moving = RandomVolume(size, 8, 0.9);
  const std::vector<BlockMatch> a = Match(fixed, moving, size), b = Match(fixed, moving, size);
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(BlockMatch)), 0);
}

}  // namespace
}  // namespace intrawarp
