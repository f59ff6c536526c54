// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/device_bulk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/job/job_support.h"
#include "server/status/errors.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/device_parts.h"

namespace intrawarp::server {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Le;
using Read = std::pair<int64_t, int64_t>;

constexpr int64_t kSlab = 1000;

// The byte of a stream at `offset`; neighbouring slabs differ.
char ByteAt(int64_t offset) { return static_cast<char>(offset * 7 + offset / kSlab); }

std::string BytesFrom(int64_t offset, int64_t end) {
  std::string bytes;
  for (int64_t at = offset; at < end; ++at) bytes.push_back(ByteAt(at));
  return bytes;
}

// Notes what is asked of it, and how many copies its lane has meanwhile.
class NotedSource final : public SlabSource {
 public:
  NotedSource(int64_t total, const CopyLane& lane) : SlabSource(total, kSlab), lane_(lane) {}

  absl::Status Read(const ExecContext& /*ctx*/, int64_t begin, int64_t bytes, void* to) override {
    for (int64_t i = 0; i < bytes; ++i) static_cast<char*>(to)[i] = ByteAt(begin + i);
    std::lock_guard<std::mutex> lock(mutex_);
    reads_.emplace_back(begin, bytes);
    pending_.push_back(lane_.pending());
    return static_cast<int64_t>(reads_.size()) == fail_at_ ? absl::DataLossError("unreadable") : absl::OkStatus();
  }
  // The read with this number fails; before Start.
  void FailAt(int64_t read) { fail_at_ = read; }
  std::vector<std::pair<int64_t, int64_t>> reads() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return reads_;
  }
  std::vector<int64_t> pending() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return pending_;
  }

 private:
  const CopyLane& lane_;
  mutable std::mutex mutex_;
  int64_t fail_at_ = 0;
  std::vector<std::pair<int64_t, int64_t>> reads_;
  std::vector<int64_t> pending_;
};

// A stream has told its consumer this.
class Told {
 public:
  DeviceBulk::ChangedFn Fn() {
    return [this](const absl::Status& status) {
      std::lock_guard<std::mutex> lock(mutex_);
      statuses_.push_back(status);
      changed_.notify_all();
      return status.ok() && static_cast<int64_t>(statuses_.size()) < most_;
    };
  }
  // From the answer with this number on it says that nobody waits any more.
  void EndAt(int64_t answer) { most_ = answer; }
  void Await(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return statuses_.size() >= count; });
  }
  size_t count() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return statuses_.size();
  }
  absl::Status last() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return statuses_.back();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<absl::Status> statuses_;
  int64_t most_ = std::numeric_limits<int64_t>::max();
};

class DeviceBulkTest : public testing::Test {
 protected:
  std::shared_ptr<DeviceBulk> Make(int64_t total, int64_t offset) {
    source_ = std::make_shared<NotedSource>(total, parts_.lane());
    Grant grant = parts_.Take({.pinned_bytes = DeviceBulk::RingBytes(total, kSlab, offset)});
    absl::StatusOr<std::shared_ptr<DeviceBulk>> bulk = DeviceBulk::Create(parts_[0], source_, offset, grant);
    EXPECT_TRUE(bulk.ok()) << bulk.status();
    EXPECT_EQ(grant.held().pinned_bytes, 0) << "the ring has all of it";
    return bulk.value_or(nullptr);
  }
  // The bytes that come, in pieces of at most `most`.
  std::string Drain(DeviceBulk& bulk, int64_t offset, int64_t most) {
    std::string bytes;
    while (!bulk.ended()) {
      const size_t told = told_.count();
      const std::optional<BulkPiece> piece = bulk.Take(most);
      if (!piece) {
        told_.Await(told + 1);
        continue;
      }
      EXPECT_EQ(piece->offset, offset + static_cast<int64_t>(bytes.size()));
      EXPECT_GE(piece->bytes, 1);
      EXPECT_LE(piece->bytes, most);
      bytes.append(piece->data, piece->bytes);
    }
    return bytes;
  }
  // Waits until the lane has nothing to do.
  void AwaitLane() {
    std::promise<void> done;
    ASSERT_TRUE(parts_.lane().Submit([&](const auto&) { done.set_value(); }).ok());
    done.get_future().wait();
  }

  FaultyDevice device_{*OpenDevice("cpu")};
  DeviceParts parts_{{&device_}};
  std::shared_ptr<NotedSource> source_;
  Told told_;
};

TEST_F(DeviceBulkTest, EveryByteComesOnceAndInOrder) {
  for (const int64_t total : {int64_t{1}, kSlab - 1, kSlab, kSlab + 1, 4 * kSlab, 10 * kSlab + 3}) {
    for (const int64_t most : {int64_t{1} << 20, int64_t{300}}) {
      const std::shared_ptr<DeviceBulk> bulk = Make(total, 0);
      ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
      EXPECT_EQ(Drain(*bulk, 0, most), BytesFrom(0, total)) << total << " in pieces of " << most;
      EXPECT_FALSE(bulk->Take(most).has_value());
    }
  }
}

TEST_F(DeviceBulkTest, SlabsAreReadWholeWhereverAStreamBegins) {
  constexpr int64_t kTotal = 3 * kSlab + 500;
  for (const int64_t offset : {int64_t{1}, kSlab - 1, kSlab, 2 * kSlab + 7, kTotal - 1}) {
    const std::shared_ptr<DeviceBulk> bulk = Make(kTotal, offset);
    ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
    EXPECT_EQ(Drain(*bulk, offset, 300), BytesFrom(offset, kTotal)) << offset;
    for (const auto& [begin, bytes] : source_->reads()) {
      EXPECT_EQ(begin % kSlab, 0);
      EXPECT_EQ(bytes, std::min(kSlab, kTotal - begin));
    }
    EXPECT_EQ(source_->reads().front().first, offset / kSlab * kSlab);
  }
}

TEST_F(DeviceBulkTest, AStreamThatBeginsAtItsEndHasNothingToSend) {
  const std::shared_ptr<DeviceBulk> bulk = Make(3 * kSlab, 3 * kSlab);
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 0);
  EXPECT_TRUE(bulk->ended());
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  AwaitLane();
  EXPECT_THAT(source_->reads(), IsEmpty());
  EXPECT_EQ(told_.count(), 0);
}

TEST(DeviceBulkRing, IsOfFourSlabsAtMostAndNoLargerThanTheRest) {
  EXPECT_EQ(DeviceBulk::RingBytes(0, kSlab, 0), 0);
  EXPECT_EQ(DeviceBulk::RingBytes(5, kSlab, 0), PinnedClaim(5));
  EXPECT_EQ(DeviceBulk::RingBytes(kSlab, kSlab, 0), PinnedClaim(kSlab));
  EXPECT_EQ(DeviceBulk::RingBytes(kSlab + 1, kSlab, 0), 2 * PinnedClaim(kSlab));
  EXPECT_EQ(DeviceBulk::RingBytes(4 * kSlab, kSlab, 0), 4 * PinnedClaim(kSlab));
  EXPECT_EQ(DeviceBulk::RingBytes(int64_t{1} << 40, kSlab, 0), 4 * PinnedClaim(kSlab));
  // The slab that holds the offset counts whole.
  EXPECT_EQ(DeviceBulk::RingBytes(3 * kSlab, kSlab, kSlab - 1), 3 * PinnedClaim(kSlab));
  EXPECT_EQ(DeviceBulk::RingBytes(3 * kSlab, kSlab, kSlab), 2 * PinnedClaim(kSlab));
  EXPECT_EQ(DeviceBulk::RingBytes(3 * kSlab + 5, kSlab, 3 * kSlab + 1), PinnedClaim(5));
  EXPECT_EQ(DeviceBulk::RingBytes(3 * kSlab, kSlab, 3 * kSlab), 0);
}

TEST_F(DeviceBulkTest, AClientThatDoesNotReadHoldsTheRingAndNoMore) {
  constexpr int64_t kTotal = 10 * kSlab;
  const std::shared_ptr<DeviceBulk> bulk = Make(kTotal, 0);
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 4 * PinnedClaim(kSlab)) << "before the first byte";
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  told_.Await(4);
  AwaitLane();
  EXPECT_THAT(source_->reads(),
              ElementsAre(Read(0, kSlab), Read(kSlab, kSlab), Read(2 * kSlab, kSlab), Read(3 * kSlab, kSlab)));
  // A slab that was taken is not free until the transport lets go of it.
  std::optional<BulkPiece> piece = bulk->Take(kSlab);
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->bytes, kSlab);
  AwaitLane();
  EXPECT_EQ(source_->reads().size(), 4);
  EXPECT_EQ(std::string(piece->data, kSlab), BytesFrom(0, kSlab));
  piece.reset();
  told_.Await(5);
  AwaitLane();
  EXPECT_EQ(source_->reads().size(), 5);
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 4 * PinnedClaim(kSlab));
  EXPECT_EQ(Drain(*bulk, kSlab, kTotal), BytesFrom(kSlab, kTotal));
  EXPECT_THAT(source_->pending(), Each(Le(1))) << "one slab at a time";
}

TEST_F(DeviceBulkTest, ASlabIsFreeOnceEveryPieceOfItIs) {
  const std::shared_ptr<DeviceBulk> bulk = Make(5 * kSlab, 0);
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  told_.Await(4);
  std::optional<BulkPiece> first = bulk->Take(400);
  std::optional<BulkPiece> rest = bulk->Take(kSlab);
  ASSERT_TRUE(first && rest);
  EXPECT_EQ(rest->bytes, 600);
  rest.reset();
  AwaitLane();
  EXPECT_EQ(source_->reads().size(), 4);
  first.reset();
  told_.Await(5);
  EXPECT_EQ(source_->reads().size(), 5);
}

TEST_F(DeviceBulkTest, ThePiecesOutliveTheirStream) {
  std::shared_ptr<DeviceBulk> bulk = Make(2 * kSlab, 0);
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  told_.Await(2);
  AwaitLane();
  std::optional<BulkPiece> piece = bulk->Take(kSlab);
  ASSERT_TRUE(piece.has_value());
  bulk.reset();
  EXPECT_EQ(std::string(piece->data, kSlab), BytesFrom(0, kSlab));
  EXPECT_EQ(parts_.in_use(Resource::kPinned), PinnedClaim(kSlab));
  piece.reset();
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 0);
  EXPECT_EQ(device_.live().pinned_buffers, 0);
}

TEST_F(DeviceBulkTest, AnErrorOfTheSourceEndsTheStream) {
  const std::shared_ptr<DeviceBulk> bulk = Make(10 * kSlab, 0);
  source_->FailAt(2);
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  told_.Await(2);
  AwaitLane();
  EXPECT_TRUE(absl::IsDataLoss(told_.last())) << told_.last();
  EXPECT_EQ(source_->reads().size(), 2) << "nothing is asked for after it";
  EXPECT_TRUE(bulk->ended());
  EXPECT_FALSE(bulk->Take(kSlab).has_value());
}

TEST_F(DeviceBulkTest, AnErrorOfTheDeviceEndsTheStream) {
  const std::shared_ptr<DeviceBulk> bulk = Make(10 * kSlab, 0);
  device_.FailAt(1, absl::UnavailableError("fell off the bus"), DeviceCall::kSynchronize);
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  told_.Await(1);
  AwaitLane();
  EXPECT_TRUE(absl::IsUnavailable(told_.last())) << told_.last();
  EXPECT_NE(ReasonOf(told_.last()), v1::SERVER_STOPPING);
  EXPECT_TRUE(bulk->ended());
}

TEST_F(DeviceBulkTest, EndsWhenNobodyWaits) {
  const std::shared_ptr<DeviceBulk> bulk = Make(10 * kSlab, 0);
  told_.EndAt(2);
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  told_.Await(2);
  AwaitLane();
  EXPECT_EQ(source_->reads().size(), 2);
  EXPECT_TRUE(bulk->ended());
  EXPECT_FALSE(bulk->Take(kSlab).has_value()) << "what was ready is dropped";
}

TEST_F(DeviceBulkTest, APieceThatComesBackAfterTheEndAsksForNothing) {
  const std::shared_ptr<DeviceBulk> bulk = Make(10 * kSlab, 0);
  told_.EndAt(5);
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  told_.Await(4);
  std::optional<BulkPiece> first = bulk->Take(kSlab), second = bulk->Take(kSlab);
  first.reset();
  told_.Await(5);
  AwaitLane();
  EXPECT_TRUE(bulk->ended());
  EXPECT_EQ(std::string(second->data, kSlab), BytesFrom(kSlab, 2 * kSlab));
  second.reset();
  AwaitLane();
  EXPECT_EQ(source_->reads().size(), 5);
}

TEST_F(DeviceBulkTest, AfterTheLanesShutdownNothingStarts) {
  const std::shared_ptr<DeviceBulk> bulk = Make(3 * kSlab, 0);
  parts_.lane().Shutdown();
  const absl::Status status = bulk->Start(told_.Fn());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::SERVER_STOPPING);
  EXPECT_EQ(told_.count(), 0);
}

TEST_F(DeviceBulkTest, ACopyThatAShutdownOvertakesEndsTheStream) {
  device_.BlockAt(1, DeviceCall::kSynchronize);
  const std::shared_ptr<DeviceBulk> bulk = Make(10 * kSlab, 0);
  ASSERT_TRUE(parts_.lane()
                  .Submit([&](const absl::StatusOr<const ExecContext*>& ctx) {
                    (void)(*ctx)->device().Synchronize((*ctx)->stream());
                  })
                  .ok());
  device_.AwaitBlocked();
  ASSERT_TRUE(bulk->Start(told_.Fn()).ok());
  std::thread stop([&] { parts_.lane().Shutdown(); });
  // Shutdown has begun once the lane takes nothing more.
  while (parts_.lane().Submit([](const auto&) {}).ok()) std::this_thread::yield();
  device_.Release();
  stop.join();
  EXPECT_EQ(told_.count(), 1);
  EXPECT_EQ(ReasonOf(told_.last()), v1::SERVER_STOPPING);
  EXPECT_THAT(source_->reads(), IsEmpty());
  EXPECT_TRUE(bulk->ended());
}

// The consumer is told on the lane's thread, so that it can stop the lane between two slabs.
TEST_F(DeviceBulkTest, ALaneThatStopsBetweenTwoSlabsEndsTheStream) {
  const std::shared_ptr<DeviceBulk> bulk = Make(10 * kSlab, 0);
  std::thread stop;
  DeviceBulk::ChangedFn tell = told_.Fn();
  ASSERT_TRUE(bulk->Start([&](const absl::Status& status) {
                    if (status.ok()) {
                      stop = std::thread([&] { parts_.lane().Shutdown(); });
                      while (parts_.lane().Submit([](const auto&) {}).ok()) std::this_thread::yield();
                    }
                    return tell(status);
                  })
                  .ok());
  told_.Await(2);
  stop.join();
  EXPECT_EQ(told_.count(), 2);
  EXPECT_EQ(ReasonOf(told_.last()), v1::SERVER_STOPPING);
  EXPECT_EQ(source_->reads().size(), 1);
  EXPECT_TRUE(bulk->ended());
}

TEST_F(DeviceBulkTest, WithoutPinnedMemoryThereIsNoStream) {
  device_.FailAt(3, absl::ResourceExhaustedError("no page to lock"), DeviceCall::kAllocatePinned);
  Grant grant = parts_.Take({.pinned_bytes = DeviceBulk::RingBytes(10 * kSlab, kSlab, 0)});
  const auto source = std::make_shared<NotedSource>(10 * kSlab, parts_.lane());
  const auto bulk = DeviceBulk::Create(parts_[0], source, 0, grant);
  EXPECT_TRUE(absl::IsResourceExhausted(bulk.status())) << bulk.status();
  grant = Grant();
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 0);
  EXPECT_EQ(device_.live().pinned_buffers, 0);
}

}  // namespace
}  // namespace intrawarp::server
