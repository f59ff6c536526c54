// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/channel_order.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

// Axis i of the fixed grid runs along axis[i] of the moving one, backwards where is_reversed[i] holds.
struct Exchange {
  int axis[3];
  bool is_reversed[3];

  Geometry Apply(const Geometry& fixed) const {
    Geometry moving = fixed;
    for (int i = 0; i < 3; ++i) {
      moving.size[axis[i]] = fixed.size[i];
      for (int r = 0; r < 3; ++r) moving.direction[r][axis[i]] = (is_reversed[i] ? -1 : 1) * fixed.direction[r][i];
    }
    return moving;
  }
  int64_t Place(const Geometry& fixed, const Geometry& moving, Int3 v) const {
    Int3 u;
    for (int i = 0; i < 3; ++i) u[axis[i]] = is_reversed[i] ? fixed.size[i] - 1 - v[i] : v[i];
    return (int64_t{u.z} * moving.size.y + u.y) * moving.size.x + u.x;
  }
};

std::vector<Exchange> AllExchanges() {
  std::vector<Exchange> all;
  int axis[3] = {0, 1, 2};
  do {
    for (int signs = 0; signs < 8; ++signs) {
      all.push_back({{axis[0], axis[1], axis[2]}, {(signs & 1) != 0, (signs & 2) != 0, (signs & 4) != 0}});
    }
  } while (std::next_permutation(axis, axis + 3));
  return all;
}

template <typename Visit>
void ForEachVoxel(Int3 n, const Visit& visit) {
  int64_t i = 0;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x, ++i) visit(i, Int3{x, y, z});
}

class ChannelOrderTest : public DeviceTest {
 protected:
  std::vector<Descriptor> Describe(const std::vector<float>& image, const Geometry& grid, const ChannelOrder& order) {
    auto* const out = Poisoned<Descriptor>(image.size());
    const std::vector<uint8_t> none(image.size(), 0);
    EXPECT_OK(ComputeDescriptors(ctx(), {Upload(image), grid}, Upload(none), 1, 1e-6f, out, Poisoned<float>(1)));
    EXPECT_OK(ReorderChannels(ctx(), order, static_cast<int64_t>(image.size()), out));
    return Download(out, image.size());
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(ChannelOrderTest);

// The same image on every grid whose axes are another grid's axes in any order and direction.
TEST_P(ChannelOrderTest, DescriptorsAreTheOtherGridsDescriptors) {
  const Geometry fixed = ObliqueGeometry({11, 10, 9});
  const std::vector<float> image = RandomFloats(fixed.voxels(), 5);
  const std::vector<Descriptor> want = Describe(image, fixed, {});
  for (const Exchange& exchange : AllExchanges()) {
    const Geometry moving = exchange.Apply(fixed);
    std::vector<float> exchanged(image.size());
    ForEachVoxel(fixed.size, [&](int64_t i, Int3 v) { exchanged[exchange.Place(fixed, moving, v)] = image[i]; });
    const std::vector<Descriptor> got =
        Describe(exchanged, moving, OrderOfChannels(fixed, moving, AffineMap::Identity()));
    // At a face a neighbour is clamped before its surroundings are.
    ForEachVoxel(fixed.size, [&](int64_t i, Int3 v) {
      for (int a = 0; a < 3; ++a) {
        if (v[a] < 3 || v[a] > fixed.size[a] - 4) return;
      }
      const Descriptor& at = got[exchange.Place(fixed, moving, v)];
      EXPECT_NEAR(at.variation, want[i].variation, 1e-5);
      for (int c = 0; c < kDescriptorChannels; ++c) EXPECT_LE(std::abs(at.channel[c] - want[i].channel[c]), 1) << c;
    });
  }
}

AffineMap TurnAboutZ(double degrees) {
  const double c = std::cos(degrees * M_PI / 180), s = std::sin(degrees * M_PI / 180);
  AffineMap turn = AffineMap::Identity();
  turn.m[0][0] = turn.m[1][1] = c;
  turn.m[0][1] = -s;
  turn.m[1][0] = s;
  return turn;
}

TEST(ChannelOrder, TakesTheNearestTurnOfTheMap) {
  const Geometry grid{.size = {4, 4, 4}};
  EXPECT_EQ(OrderOfChannels(grid, grid, TurnAboutZ(44)), ChannelOrder());
  // x runs along y, and y backwards along x.
  const Exchange quarter{{1, 0, 2}, {false, true, false}};
  const ChannelOrder turned = OrderOfChannels(grid, quarter.Apply(grid), AffineMap::Identity());
  EXPECT_FALSE(turned == ChannelOrder());
  EXPECT_EQ(OrderOfChannels(grid, grid, TurnAboutZ(46)), turned);
  EXPECT_EQ(OrderOfChannels(grid, grid, TurnAboutZ(90)), turned);
}

TEST(ChannelOrder, IsAnOrderWhateverTheMap) {
  const Geometry grid = ObliqueGeometry({4, 4, 4});
  AffineMap bad = AffineMap::Identity();
  bad.m[0][0] = NAN;
  for (const AffineMap& map : {AffineMap(), bad, TurnAboutZ(45)}) {
    const ChannelOrder order = OrderOfChannels(grid, grid, map);
    std::vector<int> places(order.from, order.from + kDescriptorChannels);
    std::sort(places.begin(), places.end());
    for (int c = 0; c < kDescriptorChannels; ++c) EXPECT_EQ(places[c], c);
  }
}

TEST_P(ChannelOrderTest, NoDescriptorIsNothing) {
  const ChannelOrder reversed = {{11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}};
  EXPECT_OK(ReorderChannels(ctx(), reversed, 0, nullptr));
}

}  // namespace
}  // namespace intrawarp
