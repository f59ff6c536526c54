// SPDX-License-Identifier: Apache-2.0
// The scheduler's memory and slots, and its streams on partitions of a device.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/device/parallel.h"
#include "engine/schedule/scheduler.h"
#include "tests/engine/device_test.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace intrawarp::schedule_test {
namespace {

// Host memory that is counted, and streams that know their partitions.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(DeviceKind kind = DeviceKind::kCpu) : kind_(kind) {}
  DeviceKind kind() const override { return kind_; }
  const std::string& name() const override { return name_; }
  const std::string& model() const override { return name_; }
  absl::StatusOr<DeviceMemory> memory() const override { return DeviceMemory{}; }
  absl::Status health() const override { return absl::OkStatus(); }
  absl::StatusOr<Stream> CreateStream(Partition partition) override { return Stream(this, new FakeStream{partition}); }
  bool partitioned() const override { return true; }
  absl::StatusOr<Event> CreateEvent() override { return Event(this, nullptr); }
  absl::StatusOr<Buffer> Allocate(size_t bytes, StreamView stream) override {
    in_use += bytes;
    void* data = std::malloc(sizeof(size_t) + bytes);
    *static_cast<size_t*>(data) = bytes;
    return Buffer(this, data, bytes, stream);
  }
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t) override { return absl::UnimplementedError("pinned"); }
  absl::Status Copy(void*, const void*, size_t, StreamView) override { return absl::OkStatus(); }
  absl::Status Fill(void*, uint8_t, size_t, StreamView) override { return absl::OkStatus(); }
  absl::Status Synchronize(StreamView stream) override {
    ++Of(stream).drained;
    return absl::OkStatus();
  }

  struct FakeStream {
    const Partition partition;
    std::atomic<int> drained = 0;
  };
  static FakeStream& Of(StreamView stream) { return *static_cast<FakeStream*>(stream.handle()); }

  std::atomic<size_t> in_use = 0;

 private:
  void DestroyStream(void* handle) override { delete static_cast<FakeStream*>(handle); }
  void DestroyEvent(void*) override {}
  absl::Status RecordEvent(void*, StreamView) override { return absl::OkStatus(); }
  absl::Status WaitEvent(void*) override { return absl::OkStatus(); }
  void Free(void* data, StreamView) override {
    in_use -= *static_cast<size_t*>(data);
    std::free(data);
  }
  void FreePinned(void*) override {}
  const DeviceKind kind_;
  const std::string name_ = "fake";
};

TEST(SchedulerMemoryTest, WorkspacesTakeTheLargestOfEachClassAtMost) {
  FakeDevice device;
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device, {});
  Checker batch, interactive;
  Job job = batch.job(kBatch);
  job.workspace_bytes = 1 << 20;
  ASSERT_OK(scheduler->Submit(std::move(job)));
  batch.started.Wait();
  job = interactive.job(kInteractive);
  job.workspace_bytes = 1 << 18;
  ASSERT_OK(scheduler->Submit(std::move(job)));
  interactive.started.Wait();
  // More of both wait, without memory of their own.
  Answer more_batch, more_interactive, frame;
  job = more_batch.job(kBatch);
  job.workspace_bytes = 1 << 20;
  ASSERT_OK(scheduler->Submit(std::move(job)));
  job = more_interactive.job(kInteractive);
  job.workspace_bytes = 1 << 18;
  ASSERT_OK(scheduler->Submit(std::move(job)));
  size_t in_use = 0;
  job = MakeJob(kFrame, [&](const Context& ctx) {
    in_use = device.in_use;
    frame.status.Set(ctx.status());
  });
  job.workspace_bytes = 1 << 10;
  ASSERT_OK(scheduler->Submit(std::move(job)));
  EXPECT_OK(frame.Wait());
  EXPECT_EQ(in_use, (1u << 20) + (1u << 18) + (1u << 10));
  interactive.end = true;
  batch.end = true;
  EXPECT_OK(more_interactive.Wait());
  EXPECT_OK(more_batch.Wait());
  scheduler->Shutdown();
  EXPECT_EQ(device.in_use, 0);
}

TEST(SchedulerPartitionTest, StreamsAreOfThePartitionThatSuitsTheirJobs) {
  FakeDevice device;
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device, {.partitioned = true});
  const auto partition_of = [&](JobClass job_class) {
    const Signal<Partition> partition;
    EXPECT_OK(scheduler->Submit(MakeJob(
        job_class, [partition](const Context& ctx) { partition.Set(FakeDevice::Of((*ctx)->stream()).partition); })));
    return partition.Wait();
  };
  for (bool open : {false, true, false}) {
    scheduler->SetFramesOpen(open);
    EXPECT_EQ(partition_of(kFrame), Partition::kFrames);
    EXPECT_EQ(partition_of(kInteractive), open ? Partition::kFrames : Partition::kWhole);
    EXPECT_EQ(partition_of(kBatch), open ? Partition::kBatch : Partition::kWhole);
  }
}

// Sums over an image on the host, say, which take longer than a frame has.
TEST(SchedulerPartitionTest, ARegistrationGivesWayToAFrameInsideALoopOnTheHost) {
  FakeDevice device(DeviceKind::kCuda);
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device, {.slots = 4, .partitioned = true});
  scheduler->SetFramesOpen(true);
  const Signal<bool> started;
  std::atomic<bool> end = false, ended = false;
  ASSERT_OK(scheduler->Submit(MakeJob(kInteractive, [&](const Context&) {
    started.Set(true);
    ParallelFor(int64_t{1} << 22, [&](int64_t) {
      if (!end) std::this_thread::sleep_for(std::chrono::microseconds(10));
    });
    ended = true;
  })));
  started.Wait();
  Answer frame;
  EXPECT_OK(scheduler->Submit(frame.job(kFrame)));
  EXPECT_OK(frame.Wait());
  EXPECT_FALSE(ended) << "the loop goes on";
  end = true;
  scheduler.reset();
}

TEST(SchedulerPartitionTest, ABatchJobChangesItsStreamAtACheckpointOnceItIsDrained) {
  FakeDevice device;
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device, {.partitioned = true});
  const Signal<bool> done;
  ASSERT_OK(scheduler->Submit(MakeJob(kBatch, [&](const Context& context) {
    const ExecContext& ctx = **context;
    Arena none;
    const ExecContext derived = ctx.WithArena(none);
    FakeDevice::FakeStream& whole = FakeDevice::Of(ctx.stream());
    EXPECT_EQ(whole.partition, Partition::kWhole);
    const int drained = whole.drained;
    scheduler->SetFramesOpen(true);
    EXPECT_EQ(&FakeDevice::Of(ctx.stream()), &whole) << "between checkpoints";
    EXPECT_EQ(derived.Checkpoint({}), Decision::kContinue);
    EXPECT_EQ(whole.drained, drained + 1);
    EXPECT_EQ(FakeDevice::Of(ctx.stream()).partition, Partition::kBatch);
    EXPECT_EQ(FakeDevice::Of(derived.stream()).partition, Partition::kBatch);
    EXPECT_EQ(ctx.Checkpoint({}), Decision::kContinue);
    EXPECT_EQ(whole.drained, drained + 1) << "nothing to change";
    scheduler->SetFramesOpen(false);
    EXPECT_EQ(ctx.Checkpoint({}), Decision::kContinue);
    EXPECT_EQ(&FakeDevice::Of(ctx.stream()), &whole);
    done.Set(true);
  })));
  done.Wait();
}

TEST(SchedulerPartitionTest, AnInteractiveJobKeepsItsStream) {
  FakeDevice device;
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device, {.partitioned = true});
  const Signal<bool> same;
  ASSERT_OK(scheduler->Submit(MakeJob(kInteractive, [&](const Context& ctx) {
    const void* before = (*ctx)->stream().handle();
    scheduler->SetFramesOpen(true);
    EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kContinue);
    same.Set((*ctx)->stream().handle() == before);
  })));
  EXPECT_TRUE(same.Wait());
}

TEST(SchedulerPartitionTest, BatchComputesBesideAFrame) {
  FakeDevice device;
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device, {.partitioned = true});
  Gate batch(*scheduler, kBatch), frame(*scheduler, kFrame);  // each has started while the other one computes
  batch.Go();
  frame.Go();
}

// Jobs of all classes from several threads, cancelled at random, beside a batch job that gives way to better ones:
// `compute` runs between checkpoints, and each job is answered once.
void Stress(Device& device, SchedulingOptions options, const std::function<void()>& compute) {
  constexpr int kThreads = 3, kJobs = 150;
  std::atomic<int> answered = 0, told = 0;
  int owners[8] = {};
  options.capacity.fill(kThreads * kJobs);
  options.turn = std::chrono::microseconds(1);
  options.on_job = [&](const JobRecord&) { ++told; };
  {
    std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device, options);
    const auto submit = [&](int thread) {
      std::mt19937 random(thread);
      for (int i = 0; i < kJobs; ++i) {
        const int checkpoints = static_cast<int>(random() % 20);
        Job job = MakeJob(static_cast<JobClass>(random() % kJobClasses), [&, checkpoints](const Context& ctx) {
          ++answered;
          for (int c = 0; ctx.ok() && c < checkpoints; ++c) {
            compute();
            if ((*ctx)->Checkpoint({}) == Decision::kCancel) return;
          }
        });
        job.owner = &owners[random() % 8];
        job.party = std::string(1, static_cast<char>('a' + random() % 3));
        job.is_short = random() % 4 == 0;
        if (random() % 4 == 0) job.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
        EXPECT_OK(scheduler->Submit(std::move(job)));
        if (random() % 16 == 0) scheduler->Cancel(&owners[random() % 8]);
        if (random() % 16 == 0) scheduler->SetFramesOpen(random() % 2 == 0);
      }
    };
    Checker first;  // gives way to the others
    Job job = first.job(kBatch);
    ASSERT_OK(scheduler->Submit(std::move(job)));
    first.started.Wait();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back(submit, t);
    for (std::thread& thread : threads) thread.join();
    Answer frame;
    ASSERT_OK(scheduler->Submit(frame.job(kFrame)));
    EXPECT_OK(frame.Wait());
    first.end = true;
    while (scheduler->pending() > 0) std::this_thread::yield();
    EXPECT_EQ(answered, kThreads * kJobs);
    EXPECT_EQ(told, kThreads * kJobs + 2);
  }
}

TEST_P(SchedulerTest, OneJobComputesAtATime) {
  // Plain values: ThreadSanitizer sees when nothing orders two jobs.
  int computing = 0, most = 0;
  Stress(device(), {}, [&] {
    most = std::max(most, ++computing);
    --computing;
  });
  EXPECT_EQ(most, 1);
}

TEST(SchedulerSlotsTest, NoMoreJobsComputeAtOnceThanThereAreSlots) {
  FakeDevice device;
  for (bool partitioned : {false, true}) {
    std::atomic<int> computing = 0, most = 0;
    Stress(device, {.lanes = {3, 2, 2}, .slots = 3, .partitioned = partitioned, .mixed = partitioned}, [&] {
      const int now = ++computing;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      --computing;
    });
    EXPECT_LE(most, partitioned ? 3 + 2 : 3);
  }
  EXPECT_EQ(device.in_use, 0);
}

}  // namespace
}  // namespace intrawarp::schedule_test
