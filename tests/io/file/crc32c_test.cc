// SPDX-License-Identifier: Apache-2.0
#include "io/file/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace intrawarp::io {
namespace {

TEST(Crc32c, KnownAnswers) {
  // RFC 3720, B.4.
  const std::string zeros(32, '\0'), ones(32, '\xff');
  std::string ascending(32, '\0');
  for (int i = 0; i < 32; ++i) ascending[i] = static_cast<char>(i);
  EXPECT_EQ(Crc32c(zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones.data(), 32), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(ascending.data(), 32), 0x46dd794eu);
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
}

TEST(Crc32c, PiecesMakeTheWholeAndTheTableAgrees) {
  std::mt19937 random(1);
  std::string bytes(40000, '\0');  // several times what is summed at once
  for (char& c : bytes) c = static_cast<char>(random());
  const uint32_t whole = Crc32c(bytes.data(), bytes.size());
  EXPECT_EQ(Crc32cByTable(bytes.data(), bytes.size()), whole);
  for (int round = 0; round < 200; ++round) {
    const size_t cut = round == 0 ? 0 : round == 1 ? bytes.size() : random() % (bytes.size() + 1);
    const uint32_t front = Crc32c(bytes.data(), cut);
    EXPECT_EQ(Crc32cByTable(bytes.data(), cut), front);
    EXPECT_EQ(Crc32c(bytes.data() + cut, bytes.size() - cut, front), whole);
    std::string copy(bytes.size() - cut, '\0');
    EXPECT_EQ(CopyWithCrc32c(copy.data(), bytes.data() + cut, copy.size(), front), whole);
    EXPECT_EQ(copy, bytes.substr(cut));
    EXPECT_EQ(JoinCrc32c(front, Crc32c(copy.data(), copy.size()), copy.size()), whole);
  }
}

}  // namespace
}  // namespace intrawarp::io
