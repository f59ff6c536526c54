// SPDX-License-Identifier: Apache-2.0
#include "wire/trace_context.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace intrawarp {
namespace {

// The example of the specification.
constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kGood[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

std::string With(size_t begin, const std::string& text) { return std::string(kGood).replace(begin, text.size(), text); }

TEST(TraceIdIn, TakesTheSpecificationsForms) {
  EXPECT_EQ(TraceIdIn(kGood), kTrace);
  EXPECT_EQ(TraceIdIn(With(53, "00")), kTrace) << "not sampled";
  EXPECT_EQ(TraceIdIn(With(53, "ff")), kTrace) << "flags of a later level of the specification";
  EXPECT_EQ(TraceIdIn(With(0, "01")), kTrace) << "a later version";
  EXPECT_EQ(TraceIdIn(With(0, "cc") + "-what-the-future-will-be-like"), kTrace);
  EXPECT_EQ(TraceIdIn(With(0, "fe") + "-"), kTrace);
}

TEST(TraceIdIn, RefusesEverythingElse) {
  const std::string bad[] = {
      "",
      "-",
      "00",
      std::string(kGood, 54),
      std::string(kGood) + "-",
      std::string(kGood) + "-extra",
      std::string(kGood) + "0",
      " " + std::string(kGood),
      std::string(kGood) + " ",
      With(0, "cc") + ".what-the-future-will-be-like",
      With(0, "ff"),
      With(0, "ff") + "-extra",
      With(0, "0A"),
      With(0, "0g"),
      With(2, "_"),
      With(35, "0"),
      With(52, "0"),
      With(3, std::string(32, '0')),
      With(36, std::string(16, '0')),
      With(3, "0AF7651916CD43DD8448EB211C80319C"),
      With(36, "B7AD6B7169203331"),
      With(53, "0G"),
      With(53, "0A"),
      With(10, std::string(1, '\0')),
      With(10, "\n"),
      With(10, "\xc3"),
      std::string(8192, 'a'),
      std::string(8192, '0'),
  };
  for (const std::string& value : bad) EXPECT_EQ(TraceIdIn(value), std::nullopt) << value;
}

// A changed byte is either refused or gives a trace id in the form that is logged.
TEST(TraceIdIn, OnlyEverGivesHexadecimalDigits) {
  std::mt19937 random(std::random_device{}());
  int taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string value = kGood;
    for (int change = 0; change < 2; ++change) value[random() % value.size()] = static_cast<char>(random());
    if (i % 3 == 0) value.resize(random() % 80, static_cast<char>(random()));
    const std::optional<std::string> id = TraceIdIn(value);
    if (!id) continue;
    ++taken;
    EXPECT_EQ(id->size(), 32u);
    EXPECT_EQ(id->find_first_not_of("0123456789abcdef"), std::string::npos) << *id;
  }
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace intrawarp
