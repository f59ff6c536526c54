// SPDX-License-Identifier: Apache-2.0
#include "server/session/frame_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace intrawarp::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

AnsweredFrame Frame(int64_t number) {
  AnsweredFrame frame;
  frame.number = number;
  return frame;
}

std::vector<int64_t> Numbers(const std::vector<AnsweredFrame>& frames) {
  std::vector<int64_t> numbers;
  for (const AnsweredFrame& frame : frames) numbers.push_back(frame.number);
  return numbers;
}

TEST(FrameHistory, CountsAnswersFromOneWhateverTheFramesAreCalled) {
  FrameHistory history;
  EXPECT_THAT(history.Since(0), IsEmpty());
  AnsweredFrame first = Frame(70);
  first.sequence = 99;
  history.Add(first);
  history.Add(Frame(50));
  const std::vector<AnsweredFrame> frames = history.Since(0);
  EXPECT_THAT(Numbers(frames), ElementsAre(70, 50));
  EXPECT_EQ(frames[0].sequence, 1);
  EXPECT_EQ(frames[1].sequence, 2);
}

TEST(FrameHistory, GivesWhatCameAfterTheLastLook) {
  FrameHistory history;
  for (int64_t number : {10, 11, 12}) history.Add(Frame(number));
  EXPECT_THAT(Numbers(history.Since(1)), ElementsAre(11, 12));
  EXPECT_THAT(history.Since(3), IsEmpty());
  history.Add(Frame(13));
  EXPECT_THAT(Numbers(history.Since(3)), ElementsAre(13));
}

TEST(FrameHistory, ForgetsTheOldestAndCountsOn) {
  FrameHistory history;
  const auto size = static_cast<int64_t>(FrameHistory::kSize);
  for (int64_t number = 1; number <= size + 2; ++number) history.Add(Frame(number));
  const std::vector<AnsweredFrame> frames = history.Since(0);
  ASSERT_EQ(frames.size(), FrameHistory::kSize);
  EXPECT_EQ(frames.front().number, 3);
  EXPECT_EQ(frames.front().sequence, 3);
  EXPECT_EQ(frames.back().sequence, size + 2);
}

TEST(FrameHistory, KeepsWhatIsToldOfAFrame) {
  FrameHistory history;
  AnsweredFrame frame = Frame(5);
  frame.answered = std::chrono::steady_clock::time_point(std::chrono::seconds(9));
  frame.limit = std::chrono::milliseconds(40);
  frame.fate = FrameFate::kLate;
  frame.needs_review = true;
  frame.latency.set_total(std::chrono::milliseconds(55));
  history.Add(frame);
  const AnsweredFrame got = history.Since(0).at(0);
  EXPECT_EQ(got.answered, frame.answered);
  EXPECT_EQ(got.limit, frame.limit);
  EXPECT_EQ(got.fate, FrameFate::kLate);
  EXPECT_TRUE(got.needs_review);
  EXPECT_EQ(got.latency.total(), std::chrono::milliseconds(55));
}

}  // namespace
}  // namespace intrawarp::server
