// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/image_assembler.h"

#include <gtest/gtest.h>

#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

ImageHeader Slice(int k) {
  ImageHeader header;
  header.pixel_type = PixelType::kUint8;
  header.size = {3, 2, 4};
  header.part_begin = {0, 0, k};
  header.part_size = {3, 2, 1};
  return header;
}

TEST(ImageAssembler, GivesAVolumeOnceEachVoxelHasCome) {
  ImageAssembler assembler(1000);
  for (const int k : {2, 0, 0, 3}) {
    EXPECT_FALSE(assembler.Add({Slice(k), std::string(6, char('0' + k))}).value()) << k;
  }
  EXPECT_TRUE(assembler.Add({Slice(1), "111111"}).value());
  EXPECT_TRUE(assembler.header().is_whole());
  EXPECT_EQ(assembler.voxels(), "000000111111222222333333");
  ImageHeader spot = Slice(2);
  spot.part_begin = {1, 1, 2};
  spot.part_size = {2, 1, 1};
  EXPECT_TRUE(assembler.Add({spot, "xy"}).value());
  EXPECT_EQ(assembler.voxels(), "0000001111112222xy333333");
}

TEST(ImageAssembler, AnotherGridBeginsAnew) {
  ImageAssembler assembler(1000);
  for (int k = 0; k < 4; ++k) ASSERT_TRUE(assembler.Add({Slice(k), "......"}).ok());
  ImageHeader moved = Slice(0);
  moved.matrix[0][3] = 1;
  EXPECT_FALSE(assembler.Add({moved, "......"}).value());
  EXPECT_EQ(assembler.header().matrix[0][3], 1);
}

TEST(ImageAssembler, RefusesAVolumeAboveTheLimit) {
  ImageAssembler assembler(23);
  EXPECT_EQ(FieldOf(assembler.Add({Slice(0), "......"}).status()), "image.size");
  ImageHeader huge = Slice(0);
  huge.size = {65535, 65535, 65535};
  huge.components = 255;
  EXPECT_FALSE(assembler.Add({huge, "......"}).ok());
}

}  // namespace
}  // namespace intrawarp::igtl
