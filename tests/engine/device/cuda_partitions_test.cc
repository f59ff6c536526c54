// SPDX-License-Identifier: Apache-2.0
// The partitions of a GPU as kernels see them. Threads have the primary context current, as everywhere in the engine.
#include "engine/device/cuda_partitions.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/recording.h"
#include "tests/engine/device/multiprocessor_ids.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

using Work = std::function<absl::Status(const ExecContext&, uint8_t*)>;

class CudaPartitionsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU";
    Open({});
    if (!device().partitioned()) GTEST_SKIP() << "no green contexts";
  }
  void Open(const CudaPartitionOptions& options) { device_ = *OpenCudaDevice(0, options); }
  Device& device() { return *device_; }

  // The multiprocessors that `work` marks on `stream`; a thread of its own runs it.
  std::set<int> Marked(StreamView stream, const Work& work = MarkMultiprocessors) {
    std::set<int> marked;
    std::thread([&] { marked = MarkedHere(stream, work); }).join();
    return marked;
  }
  std::set<int> Marked(Partition partition) {
    const Stream stream = *device().CreateStream(partition);
    return Marked(stream.view());
  }

 private:
  std::set<int> MarkedHere(StreamView stream, const Work& work) {
    Arena none;
    const ExecContext ctx(device(), stream, none);
    const Buffer seen = *device().Allocate(kMostMultiprocessors, stream);
    EXPECT_OK(device().Fill(seen.as<void>(), 0, kMostMultiprocessors, stream));
    const absl::Status done = work(ctx, seen.as<uint8_t>());
    EXPECT_OK(done) << done;
    std::vector<uint8_t> host(kMostMultiprocessors);
    EXPECT_OK(device().Copy(host.data(), seen.as<void>(), kMostMultiprocessors, stream));
    EXPECT_OK(device().Synchronize(stream));
    std::set<int> marked;
    for (int i = 0; i < kMostMultiprocessors; ++i)
      if (host[i] != 0) marked.insert(i);
    return marked;
  }

  std::unique_ptr<Device> device_;
};

std::set<int> Common(const std::set<int>& a, const std::set<int>& b) {
  std::set<int> common;
  for (int i : a)
    if (b.contains(i)) common.insert(i);
  return common;
}

TEST_F(CudaPartitionsTest, KernelsKeepToTheMultiprocessorsOfTheirStream) {
  const std::set<int> frames = Marked(Partition::kFrames), batch = Marked(Partition::kBatch);
  EXPECT_EQ(static_cast<int>(frames.size()), device().multiprocessors(Partition::kFrames));
  EXPECT_EQ(static_cast<int>(batch.size()), device().multiprocessors(Partition::kBatch));
  EXPECT_THAT(Common(frames, batch), testing::IsEmpty());
  EXPECT_EQ(static_cast<int>(Marked(Partition::kWhole).size()), device().multiprocessors(Partition::kWhole));
}

TEST_F(CudaPartitionsTest, FramesHaveAboutThreeQuartersByDefaultAndWhatIsAskedOtherwise) {
  const int all = device().multiprocessors(Partition::kWhole), frames = device().multiprocessors(Partition::kFrames);
  EXPECT_EQ(frames + device().multiprocessors(Partition::kBatch), all);
  EXPECT_GT(frames, all * 0.65);
  EXPECT_LT(frames, all * 0.85);
  Open({.frames_multiprocessors = 32});
  ASSERT_TRUE(device().partitioned());
  EXPECT_EQ(device().multiprocessors(Partition::kFrames), 32);
  EXPECT_EQ(Marked(Partition::kFrames).size(), 32u);
  EXPECT_EQ(static_cast<int>(Marked(Partition::kBatch).size()), all - 32);
}

TEST_F(CudaPartitionsTest, WithoutGreenContextsEveryStreamHasTheWholeGpu) {
  for (const CudaPartitionOptions& options :
       {CudaPartitionOptions{.green_contexts = false}, CudaPartitionOptions{.frames_multiprocessors = 1},
        CudaPartitionOptions{.frames_multiprocessors = 1 << 20}}) {
    Open(options);
    EXPECT_FALSE(device().partitioned());
    const int all = device().multiprocessors(Partition::kWhole);
    for (const Partition partition : {Partition::kFrames, Partition::kBatch}) {
      EXPECT_EQ(device().multiprocessors(partition), all);
      EXPECT_EQ(static_cast<int>(Marked(partition).size()), all);
    }
  }
}

int Priority(StreamView stream) {
  int priority = 0;
  EXPECT_EQ(cudaStreamGetPriority(static_cast<cudaStream_t>(stream.handle()), &priority), cudaSuccess);
  return priority;
}

TEST_F(CudaPartitionsTest, FramesGoFirstWithAndWithoutGreenContexts) {
  int least = 0, greatest = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  for (const bool green_contexts : {true, false}) {
    Open({.green_contexts = green_contexts});
    const Stream frames = *device().CreateStream(Partition::kFrames), batch = *device().CreateStream(Partition::kBatch);
    EXPECT_EQ(Priority(frames.view()), greatest);
    EXPECT_EQ(Priority(batch.view()), least);
    const Stream like = *device().CreateStreamLike(frames.view());
    EXPECT_EQ(Priority(like.view()), greatest);
    EXPECT_EQ(Marked(like.view()), Marked(frames.view()));
  }
}

TEST_F(CudaPartitionsTest, RecordingsKeepToThePartitionThatTheyWereMadeIn) {
  const Stream frames = *device().CreateStream(Partition::kFrames), batch = *device().CreateStream(Partition::kBatch);
  const std::set<int> of_batch = Marked(batch.view());
  const Buffer seen = *device().Allocate(kMostMultiprocessors, batch.view());
  Arena none;
  const ExecContext ctx(device(), batch.view(), none);
  const absl::StatusOr<Recording> recording = Recording::Make(ctx, [&](const ExecContext& c) {
    INTRAWARP_RETURN_IF_ERROR(c.device().Fill(seen.as<void>(), 0, kMostMultiprocessors, c.stream()));
    return MarkMultiprocessors(c, seen.as<uint8_t>());
  });
  ASSERT_OK(recording) << recording.status();
  for (const StreamView stream : {batch.view(), frames.view()}) {
    EXPECT_EQ(Marked(stream,
                     [&](const ExecContext& c, uint8_t* out) {
                       INTRAWARP_RETURN_IF_ERROR(recording->Enqueue(c));
                       return c.device().Copy(out, seen.as<void>(), kMostMultiprocessors, c.stream());
                     }),
              of_batch);
  }
}

// The driver's form of a recording is used again by the next one of the same shape, in the partition of that one.
TEST_F(CudaPartitionsTest, ARecordingOfTheShapeOfAnotherKeepsToItsOwnPartition) {
  Arena none;
  for (int round = 0; round < 2; ++round) {
    for (const Partition partition : {Partition::kBatch, Partition::kFrames, Partition::kWhole}) {
      const Stream stream = *device().CreateStream(partition);
      const std::set<int> expected = Marked(stream.view());
      const Buffer seen = *device().Allocate(kMostMultiprocessors, stream.view());
      const ExecContext ctx(device(), stream.view(), none);
      const absl::StatusOr<Recording> recording = Recording::Make(ctx, [&](const ExecContext& c) {
        INTRAWARP_RETURN_IF_ERROR(c.device().Fill(seen.as<void>(), 0, kMostMultiprocessors, c.stream()));
        return MarkMultiprocessors(c, seen.as<uint8_t>());
      });
      ASSERT_OK(recording) << recording.status();
      EXPECT_EQ(Marked(stream.view(),
                       [&](const ExecContext& c, uint8_t* out) {
                         INTRAWARP_RETURN_IF_ERROR(recording->Enqueue(c));
                         return c.device().Copy(out, seen.as<void>(), kMostMultiprocessors, c.stream());
                       }),
                expected)
          << static_cast<int>(partition);
    }
  }
}

TEST_F(CudaPartitionsTest, MemoryAndEventsAreOfAllPartitions) {
  constexpr size_t kCount = 1 << 20, kBytes = kCount * sizeof(int);
  const Partition partitions[] = {Partition::kFrames, Partition::kBatch, Partition::kWhole};
  PinnedBuffer pinned = *device().AllocatePinned(kBytes);
  for (const Partition one : partitions) {
    for (const Partition other : partitions) {
      const Stream first = *device().CreateStream(one), second = *device().CreateStream(other);
      std::iota(pinned.as<int>(), pinned.as<int>() + kCount, static_cast<int>(one));
      const Buffer a = *device().Allocate(kBytes, first.view()), b = *device().Allocate(kBytes, second.view());
      ASSERT_OK(device().Copy(a.as<void>(), pinned.as<void>(), kBytes, first.view()));
      Event copied = *device().CreateEvent();
      ASSERT_OK(copied.Record(first.view()));
      ASSERT_OK(copied.Wait());
      ASSERT_OK(device().Copy(b.as<void>(), a.as<void>(), kBytes, second.view()));
      std::vector<int> values(kCount);
      ASSERT_OK(device().Copy(values.data(), b.as<void>(), kBytes, second.view()));
      ASSERT_OK(device().Synchronize(second.view()));
      EXPECT_TRUE(std::equal(values.begin(), values.end(), pinned.as<int>()));
    }
  }
}

TEST_F(CudaPartitionsTest, WarmMemoryIsAllocatedWithoutTheDriver) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  const auto reserved = [&] {
    uint64_t bytes = 0;
    EXPECT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes), cudaSuccess);
    return bytes;
  };
  const absl::Status warmed = device().Warm(kBytes);
  ASSERT_OK(warmed) << warmed;
  const uint64_t before = reserved();
  EXPECT_GE(before, static_cast<uint64_t>(kBytes));
  const Stream frames = *device().CreateStream(Partition::kFrames), batch = *device().CreateStream(Partition::kBatch);
  const auto half = device().Allocate(kBytes / 2, frames.view()), rest = device().Allocate(kBytes / 2, batch.view());
  ASSERT_OK(half);
  ASSERT_OK(rest);
  EXPECT_EQ(reserved(), before);
  EXPECT_EQ(device().Warm(int64_t{1} << 50).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_OK(device().health());
}

}  // namespace
}  // namespace intrawarp
