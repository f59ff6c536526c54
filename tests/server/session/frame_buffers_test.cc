// SPDX-License-Identifier: Apache-2.0
#include "server/session/frame_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "server/job/job_support.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/device_parts.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kBytes = 5000;

class FrameBuffersTest : public testing::Test {
 protected:
  absl::Status Lease(int count) {
    Grant grant = parts_.Take({.pinned_bytes = count * PinnedClaim(kBytes)});
    return buffers_->Lease(parts_[0], grant, count, kBytes);
  }
  int64_t in_use() const { return parts_.in_use(Resource::kPinned); }

  FaultyDevice device_{*OpenDevice("cpu")};
  DeviceParts parts_{{&device_}};
  std::optional<FrameBuffers> buffers_{std::in_place};
};

TEST_F(FrameBuffersTest, HandsOutWhatWasLeasedAndNoMore) {
  ASSERT_TRUE(Lease(2).ok());
  EXPECT_EQ(buffers_->bytes(), 2 * kBytes);
  EXPECT_EQ(in_use(), 2 * PinnedClaim(kBytes));
  std::shared_ptr<PinnedBuffer> first = buffers_->Take(kBytes), second = buffers_->Take(1);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_NE(first->as<char>(), second->as<char>());
  EXPECT_GE(first->bytes(), kBytes);
  EXPECT_EQ(buffers_->Take(1), nullptr);
  EXPECT_EQ(buffers_->bytes(), 2 * kBytes) << "also those in use";
}

TEST_F(FrameBuffersTest, ABufferIsBackWithTheLastCopyOfItsPointer) {
  ASSERT_TRUE(Lease(1).ok());
  std::shared_ptr<PinnedBuffer> taken = buffers_->Take(kBytes);
  const char* const data = taken->as<char>();
  std::shared_ptr<PinnedBuffer> copy = taken;
  taken.reset();
  EXPECT_EQ(buffers_->Take(kBytes), nullptr);
  copy.reset();
  taken = buffers_->Take(kBytes);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->as<char>(), data);
  EXPECT_EQ(device_.calls(DeviceCall::kAllocatePinned), 1);
}

TEST_F(FrameBuffersTest, ALargerFrameHasNone) {
  ASSERT_TRUE(Lease(1).ok());
  EXPECT_EQ(buffers_->Take(kBytes + 1), nullptr);
  EXPECT_NE(buffers_->Take(kBytes), nullptr);
}

TEST_F(FrameBuffersTest, ThereAreNoneBeforeTheLease) {
  EXPECT_EQ(buffers_->Take(1), nullptr);
  EXPECT_EQ(buffers_->bytes(), 0);
}

TEST_F(FrameBuffersTest, AllAreLeasedOrNone) {
  device_.FailAt(3, absl::ResourceExhaustedError("no page to lock"), DeviceCall::kAllocatePinned);
  const absl::Status status = Lease(3);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(buffers_->Take(1), nullptr);
  EXPECT_EQ(buffers_->bytes(), 0);
  EXPECT_EQ(in_use(), 0);
  EXPECT_EQ(device_.live().pinned_buffers, 0);
}

TEST_F(FrameBuffersTest, AReleaseGivesBackWhatIsFreeAndThenTheRest) {
  ASSERT_TRUE(Lease(3).ok());
  std::shared_ptr<PinnedBuffer> taken = buffers_->Take(kBytes);
  buffers_->Release();
  EXPECT_EQ(in_use(), PinnedClaim(kBytes));
  EXPECT_EQ(buffers_->bytes(), 0);
  EXPECT_EQ(buffers_->Take(1), nullptr);
  taken->as<char>()[kBytes - 1] = 'x';
  taken.reset();
  EXPECT_EQ(in_use(), 0);
  EXPECT_EQ(buffers_->Take(1), nullptr);
  buffers_->Release();
}

TEST_F(FrameBuffersTest, ABufferOutlivesTheObject) {
  ASSERT_TRUE(Lease(2).ok());
  std::shared_ptr<PinnedBuffer> taken = buffers_->Take(kBytes);
  buffers_.reset();
  EXPECT_EQ(in_use(), PinnedClaim(kBytes));
  taken->as<char>()[0] = 'x';
  taken.reset();
  EXPECT_EQ(in_use(), 0);
}

// Its session was closed while it opened.
TEST_F(FrameBuffersTest, ALeaseAfterTheReleaseIsCancelled) {
  buffers_->Release();
  EXPECT_TRUE(absl::IsCancelled(Lease(2)));
  EXPECT_EQ(in_use(), 0);
}

TEST_F(FrameBuffersTest, ThreadsShareThem) {
  constexpr int kBuffers = 3, kThreads = 4, kRounds = 2000;
  ASSERT_TRUE(Lease(kBuffers).ok());
  std::atomic<int> held{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const std::shared_ptr<PinnedBuffer> taken = buffers_->Take(kBytes);
        if (taken == nullptr) continue;
        const int now = ++held;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        --held;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, kBuffers);
  std::vector<std::shared_ptr<PinnedBuffer>> all;
  while (std::shared_ptr<PinnedBuffer> taken = buffers_->Take(kBytes)) all.push_back(std::move(taken));
  EXPECT_EQ(all.size(), kBuffers) << "none was lost";
}

}  // namespace
}  // namespace intrawarp::server
