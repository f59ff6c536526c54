// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/slot_loan.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace intrawarp::igtl {
namespace {

TEST(SlotLoan, FillsTheSlotInPlace) {
  std::vector<char> slot(6, '.');
  SlotLoan loan(absl::MakeSpan(slot));
  loan.Append("abc");
  EXPECT_EQ(loan.bytes(), "abc");
  loan.Append("def");
  EXPECT_EQ(loan.bytes(), "abcdef");
  EXPECT_EQ(loan.bytes().data(), slot.data());
}

TEST(SlotLoan, GoesOnWithoutTheSlot) {
  std::vector<char> slot(6, '.');
  SlotLoan loan(absl::MakeSpan(slot));
  loan.Append("abc");
  loan.TakeBack();
  std::fill(slot.begin(), slot.end(), '#');
  loan.Append("def");
  loan.TakeBack();
  EXPECT_EQ(loan.bytes(), "abcdef");
  EXPECT_EQ(std::string(slot.begin(), slot.end()), "######");
}

TEST(SlotLoan, NeverWritesBeyondTheSlot) {
  std::vector<char> memory(8, '.');
  SlotLoan loan(absl::MakeSpan(memory).first(4));
  loan.Append("abc");
  loan.Append("defgh");
  EXPECT_EQ(std::string(memory.begin() + 4, memory.end()), "....");
}

TEST(SlotLoan, IsTakenBackWhileItFills) {
  for (int round = 0; round < 50; ++round) {
    std::vector<char> slot(1 << 16, '.');
    SlotLoan loan(absl::MakeSpan(slot));
    std::thread writer([&] {
      for (int i = 0; i < 256; ++i) loan.Append(std::string(256, static_cast<char>(i)));
    });
    loan.TakeBack();
    std::fill(slot.begin(), slot.end(), '#');
    writer.join();
    const absl::string_view bytes = loan.bytes();
    ASSERT_EQ(bytes.size(), slot.size());
    for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], static_cast<char>(i / 256)) << i;
  }
}

}  // namespace
}  // namespace intrawarp::igtl
