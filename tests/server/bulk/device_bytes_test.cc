// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/device_bytes.h"

#include <string>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp::server {
namespace {

class DeviceBytesTest : public DeviceTest {
 protected:
  DevicePiece Piece(const std::string& text) {
    return {Upload(std::vector<char>(text.begin(), text.end())), static_cast<int64_t>(text.size())};
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DeviceBytesTest);

TEST_P(DeviceBytesTest, EveryRangeIsThatOfThePiecesInARow) {
  // A matrix without entries has empty arrays.
  const DeviceBytes pieces = {{}, Piece("ab"), Piece("cdefg"), {}, {}, Piece("h"), {}};
  const std::string all = "abcdefgh";
  ASSERT_EQ(TotalBytes(pieces), 8);
  for (size_t begin = 0; begin <= all.size(); ++begin) {
    for (size_t bytes = 0; begin + bytes <= all.size(); ++bytes) {
      std::string got(all.size() + 1, '#');
      ASSERT_OK(CopyRange(ctx(), pieces, static_cast<int64_t>(begin), static_cast<int64_t>(bytes), got.data()));
      ASSERT_OK(device().Synchronize(ctx().stream()));
      EXPECT_EQ(got, all.substr(begin, bytes) + std::string(all.size() + 1 - bytes, '#')) << begin << " " << bytes;
    }
  }
}

TEST_P(DeviceBytesTest, NothingHasNoBytes) {
  EXPECT_EQ(TotalBytes({}), 0);
  EXPECT_OK(CopyRange(ctx(), {}, 0, 0, nullptr));
}

}  // namespace
}  // namespace intrawarp::server
