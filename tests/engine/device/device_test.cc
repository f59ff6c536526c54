// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/device_test.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "engine/device/pinned_pool.h"
#include "engine/image/pyramid.h"
#include "tests/engine/device/faulty_device.h"

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

TEST_P(DeviceMemoryTest, PinnedPoolKeepsWhatComesBackUpToItsCapacity) {
  constexpr size_t kPage = 4096;
  PinnedPool pool(device(), 4 * kPage);
  void* first = nullptr;
  {
    const absl::StatusOr<std::shared_ptr<PinnedBuffer>> all = pool.Lease(4 * kPage - 5);
    ASSERT_OK(all) << all.status();
    EXPECT_EQ((*all)->bytes(), PinnedPool::RoundedBytes(4 * kPage - 5));
    EXPECT_EQ(pool.leased_bytes(), 4 * kPage);
    first = (*all)->as<void>();
  }
  EXPECT_EQ(pool.leased_bytes(), 0u);
  EXPECT_EQ(pool.pooled_bytes(), 4 * kPage);
  EXPECT_EQ((*pool.Lease(4 * kPage))->as<void>(), first);
  // How much is leased is for the callers to bound; what is beyond the capacity is not kept.
  EXPECT_OK(pool.Lease(5 * kPage));
  EXPECT_EQ(pool.pooled_bytes(), 0u);
}

TEST_P(DeviceMemoryTest, PinnedPoolTakesWhatItSays) {
  PinnedPool pool(device(), 0);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{1000000}, size_t{3} << 20}) {
    const auto lease = pool.Lease(bytes);
    ASSERT_OK(lease);
    EXPECT_GE((*lease)->bytes(), bytes);
    EXPECT_EQ(pool.leased_bytes(), PinnedPool::RoundedBytes(bytes));
    EXPECT_LE(PinnedPool::RoundedBytes(bytes), bytes + bytes / 16 + 4096);
  }
}

TEST_P(DeviceMemoryTest, PinnedPoolDropsTheLargestBufferForANewOne) {
  constexpr size_t kPage = 4096;
  PinnedPool pool(device(), 10 * kPage);
  {
    const auto small = pool.Lease(kPage), large = pool.Lease(8 * kPage);
    ASSERT_OK(small);
    ASSERT_OK(large);
  }
  EXPECT_EQ(pool.pooled_bytes(), 9 * kPage);
  ASSERT_OK(pool.Lease(3 * kPage));
  EXPECT_EQ(pool.pooled_bytes(), (1 + 3) * kPage);
}

TEST(PinnedPoolTest, TheFirstHealthyDevicePageLocks) {
  FaultyDevice first(*OpenDevice("cpu")), second(*OpenDevice("cpu"));
  PinnedPool pool({&first, &second}, 0);
  EXPECT_OK(pool.Lease(1));
  EXPECT_EQ(first.calls(DeviceCall::kAllocatePinned), 1);
  first.FailAt(1, absl::UnavailableError("lost"));
  EXPECT_EQ(pool.Lease(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_OK(pool.Lease(1));
  EXPECT_EQ(second.calls(DeviceCall::kAllocatePinned), 1);
}

// Two devices of one kind: what is freed and page-locked for the one does not disturb the other's work on this thread.
TEST(SeveralDevicesTest, WorkGoesOnWhileMemoryOfAnotherDeviceComesAndGoes) {
  std::vector<std::unique_ptr<Device>> gpus = AllDevices();
  gpus.erase(gpus.begin());
  if (gpus.size() < 2) GTEST_SKIP() << "there are no two GPUs";
  Geometry fine, coarse;
  fine.size = {16, 16, 16};
  coarse.size = {8, 8, 8};
  coarse.spacing = {2, 2, 2};
  coarse.origin = {0.5, 0.5, 0.5};
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(1, 0)}) {
    OwnedContext other = *OwnedContext::Create(*gpus[b], 0), own = *OwnedContext::Create(*gpus[a], 0);
    std::optional<Buffer> foreign = *gpus[b]->Allocate(4096, other.context().stream());
    const Buffer in = *gpus[a]->Allocate(4 * fine.voxels(), own.context().stream());
    const Buffer out = *gpus[a]->Allocate(4 * coarse.voxels(), own.context().stream());
    ASSERT_OK(gpus[a]->Fill(in.as<void>(), 0, in.bytes(), own.context().stream()));
    foreign.reset();
    ASSERT_OK(gpus[b]->AllocatePinned(4096));
    EXPECT_OK(Downsample(own.context(), ConstVolumeView{in.as<float>(), fine}, VolumeView{out.as<float>(), coarse}));
    EXPECT_OK(gpus[a]->Synchronize(own.context().stream()));
  }
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
