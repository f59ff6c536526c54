// SPDX-License-Identifier: Apache-2.0
#include "server/placement/device_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/job/job_support.h"
#include "server/status/errors.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/device_parts.h"

namespace intrawarp::server {
namespace {

using Copied = absl::StatusOr<std::vector<Buffer>>;

// The content of a slab of a transfer.
constexpr int64_t kSlab = int64_t{8} << 20;

class DeviceTransferTest : public testing::Test {
 protected:
  // Bytes whose period no slab is a multiple of.
  static std::vector<char> Bytes(int64_t size, size_t begin) {
    std::vector<char> period(4099);
    for (size_t i = 0; i < period.size(); ++i) period[i] = static_cast<char>((i + begin) * (i + begin) / 7);
    std::vector<char> bytes;
    bytes.reserve(static_cast<size_t>(size) + period.size());
    while (static_cast<int64_t>(bytes.size()) < size) bytes.insert(bytes.end(), period.begin(), period.end());
    bytes.resize(static_cast<size_t>(size));
    return bytes;
  }
  // Pieces of these sizes on the first device, whose bytes tell where they are.
  ResidentBytes Pieces(const std::vector<int64_t>& sizes) {
    for (const int64_t size : sizes) {
      const std::vector<char> bytes = Bytes(size, contents_.size());
      Buffer on_device = *from_.Allocate(bytes.size(), stream_.view());
      EXPECT_TRUE(from_.Copy(on_device.as<void>(), bytes.data(), bytes.size(), stream_.view()).ok());
      pieces_.push_back({on_device.as<void>(), size});
      buffers_.push_back(std::move(on_device));
      contents_.push_back(bytes);
    }
    return {owner_, pieces_};
  }
  // Begins a transfer; `ended_` has its end.
  void Start(ResidentBytes bytes) {
    StartTransfer(parts_[0], parts_[1], std::move(bytes), Share::kCommon, [this](Copied copied) {
      ++ends_;
      end_thread_ = std::this_thread::get_id();
      pinned_at_end_ = parts_.in_use(Resource::kPinned);
      ended_.set_value(std::move(copied));
    });
  }
  // Waits for the end of the transfer, and until the lanes hold nothing of it.
  Copied Await() {
    Copied copied = ended_.get_future().get();
    for (int device = 0; device < 2; ++device) AwaitLane(device);
    EXPECT_EQ(ends_, 1);
    return copied;
  }
  Copied Transfer(ResidentBytes bytes) {
    Start(std::move(bytes));
    return Await();
  }
  void AwaitLane(int device) {
    std::promise<void> idle;
    if (parts_.lane(device).Submit([&](const auto&) { idle.set_value(); }).ok()) idle.get_future().wait();
  }
  void ExpectWhole(const Copied& copied) {
    ASSERT_TRUE(copied.ok()) << copied.status();
    ASSERT_EQ(copied->size(), contents_.size());
    for (size_t i = 0; i < contents_.size(); ++i) {
      ASSERT_EQ((*copied)[i].bytes(), contents_[i].size());
      std::vector<char> back(contents_[i].size());
      ASSERT_TRUE(to_.Copy(back.data(), (*copied)[i].as<void>(), back.size(), stream_.view()).ok());
      EXPECT_TRUE(back == contents_[i]) << "piece " << i;
    }
  }
  // A transfer that ended badly holds nothing.
  void ExpectNothingHeld() const {
    EXPECT_EQ(parts_.in_use(Resource::kPinned), 0);
    EXPECT_EQ(to_.live().buffers, 0);
    EXPECT_EQ(owner_.use_count(), 1);
  }

  FaultyDevice from_{*OpenDevice("cpu"), "one"};
  FaultyDevice to_{*OpenDevice("cpu"), "two"};
  Stream stream_ = *from_.CreateStream(Partition::kWhole);
  DeviceParts parts_{{&from_, &to_}};
  std::shared_ptr<int> owner_ = std::make_shared<int>(0);
  DeviceBytes pieces_;
  std::vector<Buffer> buffers_;
  std::vector<std::vector<char>> contents_;
  std::promise<Copied> ended_;
  std::atomic<int> ends_{0};
  std::thread::id end_thread_;
  int64_t pinned_at_end_ = -1;
};

class DeviceTransferSizes : public DeviceTransferTest, public testing::WithParamInterface<std::vector<int64_t>> {};

TEST_P(DeviceTransferSizes, EveryPieceArrivesWhole) {
  {
    const Copied copied = Transfer(Pieces(GetParam()));
    ExpectWhole(copied);
    EXPECT_NE(end_thread_, std::this_thread::get_id()) << "it ends on a lane";
    EXPECT_EQ(pinned_at_end_, 0) << "its slabs are free when it ends";
  }
  ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(AroundSlabs, DeviceTransferSizes,
                         testing::Values(std::vector<int64_t>{1}, std::vector<int64_t>{kSlab},
                                         std::vector<int64_t>{kSlab + 1}, std::vector<int64_t>{2 * kSlab},
                                         std::vector<int64_t>{4 * kSlab + 3},
                                         // A slab with parts of several pieces, and pieces that end where a slab does.
                                         std::vector<int64_t>{kSlab - 5, 3, 1, 1, 7, kSlab - 7, kSlab},
                                         std::vector<int64_t>{100, 3 * kSlab, 1, kSlab / 2}));

// A matrix without entries.
TEST_F(DeviceTransferTest, EmptyPiecesAreCopiedToo) {
  const Copied copied = Transfer(Pieces({0, 5, 0}));
  ExpectWhole(copied);
}

TEST_F(DeviceTransferTest, NothingIsCopiedAsWell) {
  const Copied copied = Transfer({owner_, {}});
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_TRUE(copied->empty());
  ExpectNothingHeld();
}

TEST_F(DeviceTransferTest, TakesTwoSlabsAtMostAndOneWhereThatIsEnough) {
  for (const auto& [size, claim] : std::vector<std::pair<int64_t, int64_t>>{{1000, PinnedClaim(1000)},
                                                                            {kSlab, PinnedClaim(kSlab)},
                                                                            {kSlab + 1, 2 * PinnedClaim(kSlab)},
                                                                            {5 * kSlab, 2 * PinnedClaim(kSlab)}}) {
    ended_ = {};
    ends_ = 0;
    pieces_.clear();
    int64_t pinned = 0;
    to_.RunAt(
        1, [&] { pinned = parts_.in_use(Resource::kPinned); }, DeviceCall::kAllocate);
    ASSERT_TRUE(Transfer(Pieces({size})).ok());
    EXPECT_EQ(pinned, claim) << size;
  }
}

TEST_F(DeviceTransferTest, FillsOneSlabWhileTheOtherIsEmptiedAndNoMore) {
  const ResidentBytes bytes = Pieces({5 * kSlab});
  const int64_t before = from_.calls(DeviceCall::kCopy);
  to_.BlockAt(1, DeviceCall::kCopy);
  Start(bytes);
  to_.AwaitBlocked();
  AwaitLane(0);
  EXPECT_EQ(from_.calls(DeviceCall::kCopy) - before, 2);
  EXPECT_EQ(ends_, 0);
  to_.Release();
  const Copied copied = Await();
  ExpectWhole(copied);
  EXPECT_EQ(from_.calls(DeviceCall::kCopy) - before, 5) << "a slab is copied once";
}

TEST_F(DeviceTransferTest, KeepsItsSourceUntilItHasEnded) {
  to_.BlockAt(1, DeviceCall::kCopy);
  Start(Pieces({2 * kSlab}));
  to_.AwaitBlocked();
  EXPECT_GT(owner_.use_count(), 1);
  to_.Release();
  EXPECT_TRUE(Await().ok());
  EXPECT_EQ(owner_.use_count(), 1);
}

TEST_F(DeviceTransferTest, WithoutPinnedMemoryItEndsAtOnceAndIsCounted) {
  const ResidentBytes bytes = Pieces({2 * kSlab});
  {
    const Grant all = parts_.Take({.pinned_bytes = DeviceParts::kPinnedBytes - PinnedClaim(kSlab)});
    Start(bytes);
    EXPECT_EQ(ends_, 1) << "within the call";
    const absl::Status status = Await().status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(ReasonOf(status), v1::PINNED_MEMORY);
    EXPECT_EQ(end_thread_, std::this_thread::get_id());
  }
  EXPECT_THAT(parts_.Scrape(),
              testing::HasSubstr("intrawarp_admission_rejections_total{reason=\"pinned_memory\"} 1\n"));
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 0);
  EXPECT_EQ(from_.live().pinned_buffers, 0);
}

// The call of a device that fails, of all that a transfer of two pieces through two slabs makes.
struct Fault {
  bool is_of_source = false;
  DeviceCall call = DeviceCall::kCopy;
  int nth = 1;
};

class DeviceTransferFaults : public DeviceTransferTest, public testing::WithParamInterface<Fault> {};

TEST_P(DeviceTransferFaults, EndItOnceWithTheDevicesError) {
  const ResidentBytes bytes = Pieces({3 * kSlab, 2 * kSlab});
  const std::chrono::nanoseconds predicted = parts_.devices().copy_rate().Predict(int64_t{1} << 30);
  FaultyDevice& device = GetParam().is_of_source ? from_ : to_;
  device.FailAt(GetParam().nth, absl::InternalError("a fault"), GetParam().call);
  {
    const absl::Status status = Transfer(bytes).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_EQ(status.message(), "a fault");
  }
  EXPECT_EQ(parts_.devices().copy_rate().Predict(int64_t{1} << 30), predicted) << "it tells nothing of the rate";
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 0);
  EXPECT_EQ(to_.live().buffers, 0);
}

INSTANTIATE_TEST_SUITE_P(OfEachCall, DeviceTransferFaults,
                         testing::Values(Fault{true, DeviceCall::kAllocatePinned, 2}, Fault{true, DeviceCall::kCopy, 1},
                                         Fault{true, DeviceCall::kCopy, 3}, Fault{true, DeviceCall::kSynchronize, 2},
                                         Fault{false, DeviceCall::kAllocate, 1}, Fault{false, DeviceCall::kAllocate, 2},
                                         Fault{false, DeviceCall::kCopy, 1}, Fault{false, DeviceCall::kCopy, 5},
                                         Fault{false, DeviceCall::kSynchronize, 1}));

TEST_F(DeviceTransferTest, AnErrorWaitsForTheOtherSlab) {
  const ResidentBytes bytes = Pieces({5 * kSlab});
  to_.BlockAt(1, DeviceCall::kCopy);
  from_.FailAt(2, absl::InternalError("a fault"), DeviceCall::kCopy);
  const int64_t before = from_.calls(DeviceCall::kCopy);
  Start(bytes);
  to_.AwaitBlocked();
  AwaitLane(0);
  EXPECT_EQ(ends_, 0) << "a slab is still being emptied";
  to_.Release();
  EXPECT_TRUE(absl::IsInternal(Await().status()));
  EXPECT_EQ(from_.calls(DeviceCall::kCopy) - before, 2) << "it takes no more";
}

TEST_F(DeviceTransferTest, AStoppedLaneEndsIt) {
  for (const int stopped : {0, 1}) {
    SCOPED_TRACE(stopped);
    ended_ = {};
    ends_ = 0;
    const ResidentBytes bytes = Pieces({2 * kSlab});
    parts_.lane(stopped).Shutdown();
    const absl::Status status = Transfer(bytes).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ReasonOf(status), v1::SERVER_STOPPING);
    EXPECT_EQ(end_thread_ == std::this_thread::get_id(), stopped == 1) << "the lane of the target begins";
    EXPECT_EQ(to_.live().buffers, 0);
  }
}

TEST_F(DeviceTransferTest, AStopThatOvertakesItsCopiesEndsIt) {
  const ResidentBytes bytes = Pieces({2 * kSlab});
  std::promise<void> open;
  ASSERT_TRUE(parts_.lane(0).Submit([&](const auto&) { open.get_future().wait(); }).ok());
  Start(bytes);
  AwaitLane(1);  // now both fillings wait in the other lane
  EXPECT_EQ(parts_.lane(0).pending(), 3);
  std::thread stop([&] { parts_.lane(0).Shutdown(); });
  while (parts_.lane(0).Submit([](const auto&) {}).ok()) std::this_thread::yield();
  open.set_value();
  stop.join();
  const absl::Status status = Await().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::SERVER_STOPPING);
}

// A client that is told to come back to a server that stops would wait for nothing.
TEST_F(DeviceTransferTest, ADeviceThatFailedIsNotAServerThatStops) {
  const ResidentBytes bytes = Pieces({kSlab});
  from_.FailAt(1, absl::UnavailableError("fell off the bus"), DeviceCall::kCopy);
  const absl::Status status = Transfer(bytes).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(ReasonOf(status), v1::SERVER_STOPPING);
}

TEST_F(DeviceTransferTest, TheRateOfCopiesIsLearned) {
  const std::chrono::nanoseconds before = parts_.devices().copy_rate().Predict(int64_t{1} << 40);
  ASSERT_TRUE(Transfer(Pieces({4 * kSlab})).ok());
  EXPECT_NE(parts_.devices().copy_rate().Predict(int64_t{1} << 40), before);
}

}  // namespace
}  // namespace intrawarp::server
