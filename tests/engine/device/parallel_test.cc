// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/device/loop_pause.h"

namespace intrawarp {
namespace {

TEST(ThreadScratchTest, HoldsTheLargestRequest) {
  float* const large = ThreadScratch<float>(1000);
  large[999] = 7;
  float* const small = ThreadScratch<float>(10);
  EXPECT_EQ(small, large);
  EXPECT_EQ(small[999], 7);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(ThreadScratch<float>(5000)) % 64, 0u);
}

TEST(ThreadScratchTest, IsOfOneThreadAndOneType) {
  const void* const floats = ThreadScratch<float>(100);
  const void* const doubles = ThreadScratch<double>(100);
  EXPECT_NE(floats, doubles);
  const void* other = nullptr;
  std::thread([&] { other = ThreadScratch<float>(100); }).join();
  EXPECT_NE(floats, other);
}

// Some microseconds of work, whose result depends on i alone.
double Work(int64_t i) {
  double sum = static_cast<double>(i);
  for (int k = 1; k < 2000; ++k) sum += 1.0 / (static_cast<double>(i) + k);
  return sum;
}

TEST(LoopPauseTest, ALoopIsCutByTimeAndGivesTheSameBits) {
  constexpr int64_t kCount = 20000;
  std::vector<double> whole(kCount), cut(kCount);
  ParallelFor(kCount, [&](int64_t i) { whole[i] = Work(i); });
  std::atomic<int> bodies = 0;
  int pauses = 0, bodies_in_pause = 0;
  {
    const LoopPause pause([&] {
      ++pauses;
      bodies_in_pause += bodies;
    });
    ParallelFor(kCount, [&](int64_t i) {
      ++bodies;
      cut[i] += Work(i);
      --bodies;
    });
  }
  EXPECT_GT(pauses, 1);
  EXPECT_EQ(bodies_in_pause, 0) << "nothing of the loop runs in a pause";
  EXPECT_EQ(cut, whole) << "each index once";
}

TEST(LoopPauseTest, LoopsInsideALoopAndOfOtherThreadsAreNotCut) {
  int pauses = 0;
  const LoopPause pause([&] { ++pauses; });
  std::atomic<int> with_pause = 0;
  ParallelFor(2, [&](int64_t) {
    if (LoopPause::OfThread() != nullptr) ++with_pause;
    std::vector<double> sums(4000);
    ParallelFor(static_cast<int64_t>(sums.size()), [&](int64_t i) { sums[i] = Work(i); });
  });
  EXPECT_EQ(with_pause, 0);
  EXPECT_LE(pauses, 2) << "between the outer loop's slices";
  std::thread([] { EXPECT_EQ(LoopPause::OfThread(), nullptr); }).join();
  EXPECT_EQ(LoopPause::OfThread(), &pause);
}

TEST(LoopPauseTest, AnInnerPauseStandsInForAnOuterOne) {
  const LoopPause outer([] {});
  {
    const LoopPause inner([] {});
  }
  EXPECT_EQ(LoopPause::OfThread(), &outer);
}

}  // namespace
}  // namespace intrawarp
