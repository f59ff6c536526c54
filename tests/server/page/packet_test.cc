// SPDX-License-Identifier: Apache-2.0
#include "server/page/packet.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "server/page/page_json.h"

namespace intrawarp::server {
namespace {

Packet TwoParts() {
  return Packet(Json{{"frame", 7}}, {{"image", std::make_shared<std::string>("hello")},
                                     {"field", std::make_shared<std::string>(std::string(9, 'x'))}});
}

std::string ReadIn(const Packet& packet, double now, size_t step) {
  std::string all;
  while (true) {
    std::string piece(step, '?');
    const size_t count = packet.Read(now, all.size(), piece.data(), step);
    if (count == 0) return all;
    all.append(piece, 0, count);
  }
}

TEST(Packet, HasItsPartsAtMultiplesOfEight) {
  const std::string bytes = ReadIn(TwoParts(), 1.5, 1000);
  uint32_t rest = 0, head = 0;
  double now = 0;
  std::memcpy(&rest, bytes.data(), 4);
  std::memcpy(&head, bytes.data() + 4, 4);
  std::memcpy(&now, bytes.data() + 8, 8);
  EXPECT_EQ(rest + 4, bytes.size());
  EXPECT_EQ(now, 1.5);
  const Json json = Json::parse(bytes.substr(16, head));
  EXPECT_EQ(json["frame"], 7);
  EXPECT_EQ(json["parts"], Json::parse(R"([["image", 5], ["field", 9]])"));
  const size_t first = (16 + head + 7) / 8 * 8;
  EXPECT_EQ(bytes.substr(first, 5), "hello");
  EXPECT_EQ(bytes.substr(first + 8, 9), std::string(9, 'x'));
  EXPECT_EQ(bytes.size(), first + 8 + 16);
}

TEST(Packet, IsTheSameInPiecesOfAnySize) {
  const Packet packet = TwoParts();
  const std::string whole = ReadIn(packet, 2, 1000);
  for (const size_t step : {1, 3, 7, 8, 16, 17, 33}) EXPECT_EQ(ReadIn(packet, 2, step), whole) << step;
}

TEST(Packet, TextThatIsNoUtf8DoesNotBreakTheHead) { EXPECT_NO_THROW(Packet(Json{{"text", "\xff\xfe"}}, {})); }

}  // namespace
}  // namespace intrawarp::server
