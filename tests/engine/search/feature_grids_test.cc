// SPDX-License-Identifier: Apache-2.0
#include "engine/search/feature_grids.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/base/field_error.h"
#include "engine/search/discrete_search.h"

namespace intrawarp {
namespace {

Geometry Image(Int3 size, Vec3d spacing) {
  Geometry g;
  g.size = size;
  g.spacing = spacing;
  return g;
}

TEST(SearchLayout, NodesCoverTheDomain) {
  for (const Geometry& image : {Image({192, 160, 224}, {1, 1, 1}), Image({96, 90, 30}, {1.5, 1.6, 4}),
                                Image({300, 200, 1}, {0.4, 0.5, 1}), Image({100, 90, 3}, {1, 1, 2})}) {
    const SearchLayout layout = *LayOutSearch(image, std::nullopt, std::nullopt);
    for (int a = 0; a < 3; ++a) {
      SCOPED_TRACE(a);
      EXPECT_NEAR(layout.nodes.size[a] * layout.nodes.spacing[a], image.size[a] * image.spacing[a], 1e-6);
      EXPECT_EQ(layout.voxels.size[a], layout.nodes.size[a] * layout.block[a]);
      EXPECT_LE(layout.block[a], kMostBlock);
      EXPECT_LE(layout.reach[a], kDefaultReach);
      EXPECT_EQ(layout.reach[a] == 0, layout.nodes.size[a] == 1);
    }
    EXPECT_NEAR(Dot(Center(layout.nodes) - Center(image), Center(layout.nodes) - Center(image)), 0, 1e-9);
  }
}

TEST(SearchLayout, ThickSlicesHaveFewerVoxelsANode) {
  const SearchLayout layout = *LayOutSearch(Image({200, 200, 40}, {1, 1, 4}), 8, 48);
  EXPECT_EQ(layout.nodes.size, (Int3{25, 25, 20}));
  EXPECT_EQ(layout.block, (Int3{4, 4, 2}));
  EXPECT_EQ(layout.reach, (Int3{6, 6, 6}));
}

TEST(SearchLayout, AWishIsKept) {
  const SearchLayout layout = *LayOutSearch(Image({192, 160, 224}, {1, 1, 1}), 6, 48);
  EXPECT_EQ(layout.nodes.size, (Int3{32, 27, 37}));
  EXPECT_EQ(layout.reach.x, 8);
}

TEST(SearchLayout, WrongWishesAreRefused) {
  const Geometry image = Image({192, 160, 224}, {1, 1, 1});
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {0.0, -1.0, nan, infinity, 1e-9, 2.0}) {
    const absl::Status status = LayOutSearch(image, wrong, std::nullopt).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_EQ(FieldOf(status), "node_mm") << wrong;
  }
  for (const double wrong : {0.0, -1.0, nan, infinity, 73.0}) {
    const absl::Status status = LayOutSearch(image, 6, wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_EQ(FieldOf(status), "range_mm") << wrong;
  }
}

TEST(SearchLayout, OneVoxelIsOneNode) {
  const SearchLayout layout = *LayOutSearch(Image({1, 1, 1}, {1, 1, 1}), std::nullopt, std::nullopt);
  EXPECT_EQ(layout.nodes.size, (Int3{1, 1, 1}));
  EXPECT_EQ(LabelCount(layout.reach), 1);
}

}  // namespace
}  // namespace intrawarp
