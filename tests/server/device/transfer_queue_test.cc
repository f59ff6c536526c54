// SPDX-License-Identifier: Apache-2.0
#include "server/device/transfer_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace intrawarp::server {
namespace {

TEST(TransferQueueTest, TransfersBetweenTwoDevicesFollowOneAnother) {
  TransferQueue queue;
  std::vector<int> begun;
  std::vector<TransferQueue::Turn> turns;
  turns.reserve(8);  // a turn that ends adds the next one
  const auto submit = [&](int number, int from, int to) {
    queue.Submit(from, to, [&, number](TransferQueue::Turn turn) {
      begun.push_back(number);
      turns.push_back(std::move(turn));
    });
  };
  submit(1, 0, 1);
  submit(2, 0, 1);
  submit(3, 0, 1);
  EXPECT_EQ(begun, std::vector<int>({1}));
  // Other pairs do not wait for this one.
  submit(4, 1, 0);
  submit(5, 2, 1);
  EXPECT_EQ(begun, std::vector<int>({1, 4, 5}));
  TransferQueue::Turn copy = turns[0];
  turns[0].reset();
  EXPECT_EQ(begun.size(), 3u);
  copy.reset();
  EXPECT_EQ(begun, std::vector<int>({1, 4, 5, 2}));
  turns[3].reset();
  EXPECT_EQ(begun, std::vector<int>({1, 4, 5, 2, 3}));
  turns.clear();
  submit(6, 0, 1);
  EXPECT_EQ(begun.back(), 6);
  turns.clear();
}

TEST(TransferQueueTest, ATransferThatEndsAtOnceBeginsTheNext) {
  TransferQueue queue;
  std::vector<int> begun;
  TransferQueue::Turn first;
  queue.Submit(0, 1, [&](TransferQueue::Turn turn) { first = std::move(turn); });
  for (int i = 0; i < 3; ++i) queue.Submit(0, 1, [&begun, i](const TransferQueue::Turn&) { begun.push_back(i); });
  first.reset();
  EXPECT_EQ(begun, std::vector<int>({0, 1, 2}));
}

}  // namespace
}  // namespace intrawarp::server
