// SPDX-License-Identifier: Apache-2.0
#include "engine/search/discrete_search.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "engine/base/field_error.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

using testing::HasSubstr;

int64_t Count(Int3 size) { return int64_t{size.x} * size.y * size.z; }

int64_t Place(Int3 size, Int3 p) { return (int64_t{p.z} * size.y + p.y) * size.x + p.x; }

bool IsIn(Int3 size, Int3 p) {
  return p.x >= 0 && p.y >= 0 && p.z >= 0 && p.x < size.x && p.y < size.y && p.z < size.z;
}

template <typename Body>
void ForEach(Int3 first, Int3 last, const Body& body) {
  for (int z = first.z; z <= last.z; ++z)
    for (int y = first.y; y <= last.y; ++y)
      for (int x = first.x; x <= last.x; ++x) body(Int3{x, y, z});
}

template <typename Body>
void ForNodes(Int3 size, const Body& body) {
  ForEach({0, 0, 0}, size - Int3{1, 1, 1}, body);
}

// Every seventh node or so has no descriptor.
std::vector<PooledDescriptor> RandomDescriptors(Int3 size, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> channel(1, 255), missing(0, 6);
  std::vector<PooledDescriptor> nodes(Count(size));
  for (PooledDescriptor& node : nodes) {
    node = {};
    if (missing(engine) == 0) continue;
    for (uint8_t& c : node.channel) c = static_cast<uint8_t>(channel(engine));
    for (const uint8_t c : node.channel) node.squares += c * c;
  }
  return nodes;
}

// Some nodes weigh nothing, some all; empty: none has a weight.
std::vector<uint8_t> RandomWeights(Int3 size, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> byte(-60, 315);
  std::vector<uint8_t> weights(Count(size));
  for (uint8_t& weight : weights) weight = static_cast<uint8_t>(std::clamp(byte(engine), 0, 255));
  return weights;
}

struct Weights {
  std::vector<uint8_t> fixed, moving;
};

// The search as its header describes it, one node and label at a time.
class Reference {
 public:
  Reference(const std::vector<PooledDescriptor>& fixed, const std::vector<PooledDescriptor>& moving, Int3 size,
            Int3 reach, const Weights& weights = {})
      : fixed_(fixed), moving_(moving), weights_(weights), size_(size) {
    ForEach(-1 * reach, reach, [&](Int3 l) { labels_.push_back(l); });
    for (const Int3 l : labels_) costs_.push_back(SmoothedCosts(l));
  }

  std::vector<float> Displacements() const {
    std::vector<Int3> u(Count(size_), Int3{0, 0, 0});
    for (const int coupling : kCouplings) u = Average(BestLabels(u, coupling));
    std::vector<float> out;
    for (const Int3 node : u) {
      for (int a = 0; a < 3; ++a) out.push_back(static_cast<float>(node[a]) / 64);
    }
    return out;
  }

 private:
  int64_t Cost(Int3 p, Int3 l) const {
    const PooledDescriptor& f = fixed_[Place(size_, p)];
    if (f.squares == 0) return 0;
    PooledDescriptor m{};
    if (IsIn(size_, p + l)) m = moving_[Place(size_, p + l)];
    int64_t sum = 0;
    for (int c = 0; c < kDescriptorChannels; ++c) sum += std::pow(f.channel[c] - m.channel[c], 2);
    // In steps of 1/256, each product rounded down.
    const int of_moving = IsIn(size_, p + l) ? Steps(weights_.moving, Place(size_, p + l)) : 0;
    const double mixed = f.squares + std::floor(of_moving / 256.0 * (sum - static_cast<double>(f.squares)));
    return static_cast<int64_t>(std::floor(Steps(weights_.fixed, Place(size_, p)) / 256.0 * mixed));
  }

  static int Steps(const std::vector<uint8_t>& weights, int64_t node) {
    if (weights.empty()) return 256;
    return weights[node] < 128 ? weights[node] : weights[node] + 1;
  }

  std::vector<int64_t> SmoothedCosts(Int3 l) const {
    std::vector<int64_t> costs(Count(size_));
    ForNodes(size_, [&](Int3 p) {
      int64_t sum = 0;
      int weights = 0;
      ForEach({-2, -2, -2}, {2, 2, 2}, [&](Int3 d) {
        if (!IsIn(size_, p + d)) return;
        const int weight = (3 - std::abs(d.x)) * (3 - std::abs(d.y)) * (3 - std::abs(d.z));
        sum += weight * Cost(p + d, l);
        weights += weight;
      });
      costs[Place(size_, p)] = std::lrintf(static_cast<float>(sum) * (1.0f / static_cast<float>(16 * weights)));
    });
    return costs;
  }

  std::vector<Int3> BestLabels(const std::vector<Int3>& u, int64_t coupling) const {
    std::vector<Int3> best(Count(size_));
    for (int64_t p = 0; p < Count(size_); ++p) {
      int64_t least = std::numeric_limits<int64_t>::max();
      for (size_t i = 0; i < labels_.size(); ++i) {
        const int64_t score =
            256 * costs_[i][p] + coupling * (64 * Dot(labels_[i], labels_[i]) - 2 * Dot(labels_[i], u[p]));
        if (score >= least) continue;
        least = score;
        best[p] = labels_[i];
      }
    }
    return best;
  }

  std::vector<Int3> Average(const std::vector<Int3>& labels) const {
    std::vector<Int3> u(Count(size_));
    ForNodes(size_, [&](Int3 p) {
      Int3 sum{0, 0, 0};
      int count = 0;
      ForEach({-1, -1, -1}, {1, 1, 1}, [&](Int3 d) {
        if (!IsIn(size_, p + d)) return;
        sum = sum + labels[Place(size_, p + d)];
        ++count;
      });
      for (int a = 0; a < 3; ++a) u[Place(size_, p)][a] = static_cast<int>(std::floor(64.0 * sum[a] / count + 0.5));
    });
    return u;
  }

  const std::vector<PooledDescriptor>&fixed_, &moving_;
  Weights weights_;
  Int3 size_;
  std::vector<Int3> labels_;
  std::vector<std::vector<int64_t>> costs_;
};

class DiscreteSearchTest : public DeviceTest {
 protected:
  // In an arena of exactly the size that is asked for.
  absl::StatusOr<std::vector<float>> Search(const std::vector<PooledDescriptor>& fixed,
                                            const std::vector<PooledDescriptor>& moving, Int3 size, Int3 reach,
                                            const Weights& weights = {}) {
    OwnedContext owned = *OwnedContext::Create(device(), DiscreteSearchWorkspaceBytes(size, reach));
    auto* out = Poisoned<float>(3 * Count(size));
    const NodeWeights of_nodes{weights.fixed.empty() ? nullptr : Upload(weights.fixed),
                               weights.moving.empty() ? nullptr : Upload(weights.moving)};
    const absl::Status status =
        SearchDisplacements(owned.context(), Upload(fixed), Upload(moving), size, reach, out, {}, of_nodes);
    if (!status.ok()) return status;
    EXPECT_OK(device().Synchronize(owned.context().stream()));
    return Download(out, 3 * Count(size));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DiscreteSearchTest);

TEST_P(DiscreteSearchTest, EqualsTheDefinitionToTheBit) {
  struct Case {
    Int3 size, reach;
  };
  const Case cases[] = {{{1, 1, 1}, {0, 0, 0}}, {{2, 1, 1}, {1, 0, 0}},  {{9, 7, 1}, {3, 2, 0}},
                        {{5, 4, 3}, {2, 2, 2}}, {{17, 3, 6}, {4, 1, 2}}, {{35, 9, 4}, {1, 2, 3}}};
  uint32_t seed = 1;
  for (const Case& c : cases) {
    const std::vector<PooledDescriptor> fixed = RandomDescriptors(c.size, seed),
                                        moving = RandomDescriptors(c.size, seed + 1);
    seed += 2;
    const absl::StatusOr<std::vector<float>> found = Search(fixed, moving, c.size, c.reach);
    ASSERT_OK(found) << found.status();
    EXPECT_EQ(*found, Reference(fixed, moving, c.size, c.reach).Displacements()) << c.size.x << " " << c.size.y;
  }
}

TEST_P(DiscreteSearchTest, WeightsEqualTheDefinitionToTheBit) {
  struct Case {
    Int3 size, reach;
  };
  const Case cases[] = {
      {{1, 1, 1}, {0, 0, 0}}, {{9, 7, 1}, {3, 2, 0}}, {{5, 4, 3}, {2, 2, 2}}, {{35, 9, 4}, {1, 2, 3}}};
  uint32_t seed = 101;
  for (const Case& c : cases) {
    const std::vector<PooledDescriptor> fixed = RandomDescriptors(c.size, seed),
                                        moving = RandomDescriptors(c.size, seed + 1);
    for (int which = 1; which < 4; ++which) {
      Weights weights;
      if (which & 1) weights.fixed = RandomWeights(c.size, seed + 2);
      if (which & 2) weights.moving = RandomWeights(c.size, seed + 3);
      const absl::StatusOr<std::vector<float>> found = Search(fixed, moving, c.size, c.reach, weights);
      ASSERT_OK(found) << found.status();
      EXPECT_EQ(*found, Reference(fixed, moving, c.size, c.reach, weights).Displacements()) << c.size.x << " " << which;
    }
    const std::vector<uint8_t> ones(Count(c.size), 255);
    EXPECT_EQ(*Search(fixed, moving, c.size, c.reach, {ones, ones}), *Search(fixed, moving, c.size, c.reach));
    seed += 4;
  }
}

// Where nodes weigh nothing, they take the shift of their neighbours, whatever their descriptors say.
TEST_P(DiscreteSearchTest, ANodeOfNoWeightFollowsItsNeighbours) {
  const Int3 size{20, 18, 16}, reach{4, 4, 4}, shift{2, -1, 1};
  const std::vector<PooledDescriptor> fixed = RandomDescriptors(size, 131);
  std::vector<PooledDescriptor> moving = RandomDescriptors(size, 132);
  Weights weights{std::vector<uint8_t>(Count(size), 255), {}};
  const auto is_false = [](Int3 p) { return p.x > 8 && p.x < 12 && p.y > 7 && p.y < 11; };
  ForNodes(size, [&](Int3 p) {
    const Int3 to = p + (is_false(p) ? Int3{-3, 3, -3} : shift);
    if (IsIn(size, to)) moving[Place(size, to)] = fixed[Place(size, p)];
    if (is_false(p)) weights.fixed[Place(size, p)] = 2;
  });
  const absl::StatusOr<std::vector<float>> found = Search(fixed, moving, size, reach, weights);
  ASSERT_OK(found) << found.status();
  ForEach({7, 7, 6}, {13, 11, 9}, [&](Int3 p) {
    for (int a = 0; a < 3; ++a) EXPECT_NEAR((*found)[3 * Place(size, p) + a], shift[a], 0.5) << p.x << " " << p.y;
  });
}

// A volume that is shifted by whole nodes is found at every node whose surroundings are seen.
TEST_P(DiscreteSearchTest, FindsAShift) {
  const Int3 size{20, 18, 16}, reach{5, 5, 5}, shift{4, -3, 2};
  const std::vector<PooledDescriptor> fixed = RandomDescriptors(size, 31);
  std::vector<PooledDescriptor> moving = RandomDescriptors(size, 32);
  ForNodes(size, [&](Int3 p) {
    if (IsIn(size, p + shift)) moving[Place(size, p + shift)] = fixed[Place(size, p)];
  });
  const absl::StatusOr<std::vector<float>> found = Search(fixed, moving, size, reach);
  ASSERT_OK(found) << found.status();
  ForEach({7, 7, 7}, size - Int3{8, 8, 8}, [&](Int3 p) {
    for (int a = 0; a < 3; ++a)
      EXPECT_EQ((*found)[3 * Place(size, p) + a], shift[a]) << p.x << " " << p.y << " " << p.z;
  });
}

TEST_P(DiscreteSearchTest, WithoutStructureNothingMoves) {
  const Int3 size{12, 11, 10};
  std::vector<PooledDescriptor> flat(Count(size));
  for (PooledDescriptor& node : flat) {
    std::fill_n(node.channel, kDescriptorChannels, uint8_t{255});
    node.squares = kMostDescriptorDistance;
  }
  const std::vector<PooledDescriptor> nothing(Count(size));
  for (const auto& moving : {flat, nothing}) {
    const absl::StatusOr<std::vector<float>> found = Search(flat, moving, size, {4, 4, 4});
    ASSERT_OK(found) << found.status();
    EXPECT_THAT(*found, testing::Each(0.0f));
  }
}

TEST_P(DiscreteSearchTest, AReachThatIsTooFarIsRefused) {
  const std::vector<PooledDescriptor> nodes = RandomDescriptors({4, 4, 1}, 3);
  for (const Int3 reach : {Int3{kMostReach + 1, 0, 0}, Int3{0, -1, 0}, Int3{0, 0, 1}}) {
    const absl::Status status = Search(nodes, nodes, {4, 4, 1}, reach).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(FieldOf(status), "reach");
    EXPECT_THAT(status.message(), HasSubstr("must be 0 to"));
  }
}

// The farthest labels and the strongest coupling stay within 32 bits.
TEST_P(DiscreteSearchTest, TheFarthestReachDoesNotOverflow) {
  const Int3 size{4, 3, 3}, reach{kMostReach, kMostReach, kMostReach};
  const std::vector<PooledDescriptor> fixed = RandomDescriptors(size, 51), moving = RandomDescriptors(size, 52);
  const absl::StatusOr<std::vector<float>> found = Search(fixed, moving, size, reach);
  ASSERT_OK(found) << found.status();
  EXPECT_EQ(*found, Reference(fixed, moving, size, reach).Displacements());
}

// Nor do weighted costs of descriptors as unlike as there are.
TEST_P(DiscreteSearchTest, WeightsDoNotOverflow) {
  const Int3 size{6, 5, 4}, reach{2, 2, 2};
  std::vector<PooledDescriptor> fixed(Count(size)), moving(Count(size));
  for (int64_t i = 0; i < Count(size); ++i) {
    for (int c = 0; c < kDescriptorChannels; ++c) {
      fixed[i].channel[c] = i % 3 == 0 ? 255 : 1;
      moving[i].channel[c] = i % 2 == 0 ? 255 : 1;
      fixed[i].squares += fixed[i].channel[c] * fixed[i].channel[c];
      moving[i].squares += moving[i].channel[c] * moving[i].channel[c];
    }
  }
  const Weights weights{RandomWeights(size, 141), RandomWeights(size, 142)};
  const absl::StatusOr<std::vector<float>> found = Search(fixed, moving, size, reach, weights);
  ASSERT_OK(found) << found.status();
  EXPECT_EQ(*found, Reference(fixed, moving, size, reach, weights).Displacements());
}

}  // namespace
}  // namespace intrawarp
