// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/device_test.h"

#include <cstdint>
#include <numeric>

#include "engine/device/pinned_pool.h"

namespace intrawarp {
namespace {

class DeviceMemoryTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DeviceMemoryTest);

TEST_P(DeviceMemoryTest, CopiesThroughDeviceAndPinnedMemory) {
  for (size_t count : {size_t{1}, size_t{255}, size_t{3} << 20}) {
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), 7);
    absl::StatusOr<PinnedBuffer> pinned = device().AllocatePinned(count * sizeof(int));
    ASSERT_OK(pinned) << pinned.status();
    int* on_device = Upload(values);
    ASSERT_OK(device().Copy(pinned->as<int>(), on_device, count * sizeof(int), ctx().stream()));
    ASSERT_OK(device().Synchronize(ctx().stream()));
    EXPECT_TRUE(std::equal(values.begin(), values.end(), pinned->as<int>()));
  }
}

TEST_P(DeviceMemoryTest, RefusesWhatDoesNotFitAndGoesOn) {
  EXPECT_EQ(device().Allocate(size_t{1} << 50, ctx().stream()).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_OK(device().health());
  EXPECT_EQ(Download(Upload(std::vector<int>{1, 2, 3}), 3), (std::vector<int>{1, 2, 3}));
}

TEST_P(DeviceMemoryTest, EventsMarkPointsInAStream) {
  absl::StatusOr<Event> event = device().CreateEvent();
  ASSERT_OK(event);
  ASSERT_OK(event->Record(ctx().stream()));
  EXPECT_OK(event->Wait());
}

TEST_P(DeviceMemoryTest, EveryPartitionHasStreams) {
  for (const Partition partition : {Partition::kWhole, Partition::kFrames, Partition::kBatch}) {
    const absl::StatusOr<Stream> stream = device().CreateStream(partition);
    ASSERT_OK(stream) << stream.status();
    const absl::StatusOr<Stream> like = device().CreateStreamLike(stream->view());
    ASSERT_OK(like) << like.status();
    ASSERT_OK(device().Synchronize(like->view()));
  }
}

TEST_P(DeviceMemoryTest, WarmsWhatIsAskedAndRefusesLessThanNothing) {
  EXPECT_OK(device().Warm(0));
  EXPECT_OK(device().Warm(1 << 20));
  EXPECT_EQ(device().Warm(-1).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceMemoryTest, ArenaGivesBackByScopeAndRefusesBeyondItsEnd) {
  OwnedContext owned = *OwnedContext::Create(device(), 4096);
  const ExecContext small = owned.context();
  {
    ArenaScope scope(small.arena());
    ASSERT_OK(small.arena().Allocate<float>(1000));
    EXPECT_EQ(small.arena().Allocate<float>(100).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(small.arena().used(), 0u);
  EXPECT_EQ(small.arena().AllocateBytes(SIZE_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(small.arena().Allocate<double>(SIZE_MAX / 8 + 2).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_OK(small.arena().Allocate<float>(1024));
}

TEST_P(DeviceMemoryTest, PinnedPoolLeasesUpToItsCapacityAndKeepsWhatComesBack) {
  constexpr size_t kCapacity = 3 * 4096 + 100;
  PinnedPool pool(device(), kCapacity);
  void* first = nullptr;
  {
    absl::StatusOr<std::shared_ptr<PinnedBuffer>> all = pool.Lease(kCapacity);
    ASSERT_OK(all) << all.status();
    EXPECT_GE((*all)->bytes(), kCapacity);
    EXPECT_EQ(pool.leased_bytes(), kCapacity);
    EXPECT_EQ(pool.Lease(1).status().code(), absl::StatusCode::kResourceExhausted);
    first = (*all)->as<void>();
  }
  EXPECT_EQ(pool.leased_bytes(), 0u);
  EXPECT_EQ(pool.kept_bytes(), kCapacity);
  EXPECT_EQ((*pool.Lease(kCapacity - 5))->as<void>(), first);
  EXPECT_OK(pool.Lease(4096));  // in place of the one kept, which is too large for it
  EXPECT_LE(pool.kept_bytes(), kCapacity);
  EXPECT_EQ(pool.Lease(kCapacity + 1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(DeviceMemoryTest, PinnedPoolDropsTheLargestBufferForANewOne) {
  constexpr size_t kPage = 4096;
  PinnedPool pool(device(), 10 * kPage);
  {
    const auto small = pool.Lease(kPage), large = pool.Lease(8 * kPage);
    ASSERT_OK(small);
    ASSERT_OK(large);
  }
  EXPECT_EQ(pool.kept_bytes(), 9 * kPage);
  ASSERT_OK(pool.Lease(3 * kPage));
  EXPECT_EQ(pool.kept_bytes(), (1 + 3) * kPage);
}

TEST(OpenDeviceTest, KnowsItsWords) {
  EXPECT_EQ((*OpenDevice("cpu"))->name(), "cpu");
  EXPECT_OK(OpenDevice("auto"));
  EXPECT_EQ(OpenDevice("gpu").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenDevice("cuda:x").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(OpenDevice("cuda:99").ok());
}

}  // namespace
}  // namespace intrawarp
