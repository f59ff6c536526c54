// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/copy_lane.h"

#include <atomic>
#include <future>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/device/parallel.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class CopyLaneTest : public DeviceTest {
 protected:
  CopyLaneTest() : lane_(*CopyLane::Create(device())) {}
  std::unique_ptr<CopyLane> lane_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(CopyLaneTest);

TEST_P(CopyLaneTest, CopiesThereAndBackInOrder) {
  std::vector<int> there(100000), back(100000, -1);
  std::iota(there.begin(), there.end(), 0);
  const size_t bytes = there.size() * sizeof(int);
  Buffer buffer;
  std::promise<void> done;
  EXPECT_OK(lane_->Submit([&](const absl::StatusOr<const ExecContext*>& ctx) {
    ASSERT_TRUE(ctx.ok()) << ctx.status();
    buffer = *(*ctx)->device().Allocate(bytes, (*ctx)->stream());
    EXPECT_OK((*ctx)->device().Copy(buffer.as<void>(), there.data(), bytes, (*ctx)->stream()));
    EXPECT_OK((*ctx)->device().Synchronize((*ctx)->stream()));
  }));
  EXPECT_OK(lane_->Submit([&](const absl::StatusOr<const ExecContext*>& ctx) {
    EXPECT_OK((*ctx)->device().Copy(back.data(), buffer.as<void>(), bytes, (*ctx)->stream()));
    EXPECT_OK((*ctx)->device().Synchronize((*ctx)->stream()));
    done.set_value();
  }));
  done.get_future().wait();
  EXPECT_EQ(back, there);
}

TEST_P(CopyLaneTest, NoNumberOfCopiesIsRefused) {
  std::promise<void> release, done;
  EXPECT_OK(lane_->Submit([&](const absl::StatusOr<const ExecContext*>&) { release.get_future().wait(); }));
  constexpr int kMany = 1000;
  int ran = 0;
  for (int i = 0; i < kMany; ++i) {
    EXPECT_OK(lane_->Submit([&](const absl::StatusOr<const ExecContext*>&) {
      if (++ran == kMany) done.set_value();
    }));
  }
  EXPECT_EQ(lane_->pending(), kMany + 1);
  release.set_value();
  done.get_future().wait();
}

TEST_P(CopyLaneTest, GivesWayBeforeACopyAndInsideItOnTheCpu) {
  std::atomic<int> given = 0;
  std::unique_ptr<CopyLane> lane = *CopyLane::Create(device(), [&] { ++given; });
  std::promise<int> before, after;
  EXPECT_OK(lane->Submit([&](const absl::StatusOr<const ExecContext*>&) {
    before.set_value(given);
    std::vector<double> sums(20000);
    ParallelFor(static_cast<int64_t>(sums.size()), [&](int64_t i) {
      for (int k = 1; k < 2000; ++k) sums[i] += 1.0 / (static_cast<double>(i) + k);
    });
    after.set_value(given);
  }));
  const bool is_cpu = device().kind() == DeviceKind::kCpu;
  const int first = before.get_future().get();
  EXPECT_EQ(first, is_cpu ? 1 : 0);
  const int last = after.get_future().get();
  EXPECT_EQ(last > first, is_cpu) << last;
}

TEST_P(CopyLaneTest, WhatWaitsAtTheEndIsTold) {
  std::promise<void> started, release;
  EXPECT_OK(lane_->Submit([&](const absl::StatusOr<const ExecContext*>&) {
    started.set_value();
    release.get_future().wait();
  }));
  absl::Status told;
  EXPECT_OK(lane_->Submit([&](const absl::StatusOr<const ExecContext*>& ctx) { told = ctx.status(); }));
  started.get_future().wait();
  std::thread stop([&] { lane_->Shutdown(); });
  // Once a copy is refused, the stop has begun.
  while (lane_->Submit([](const absl::StatusOr<const ExecContext*>&) {}).ok()) std::this_thread::yield();
  release.set_value();
  stop.join();
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace intrawarp
