// SPDX-License-Identifier: Apache-2.0
// The scheduler: order, turns, memory, cancel, shutdown.
#include "engine/schedule/scheduler.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/device/cpu_device.h"
#include "engine/device/parallel.h"
#include "tests/engine/device_test.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace intrawarp::schedule_test {
namespace {

using std::chrono::milliseconds;

INTRAWARP_INSTANTIATE_DEVICE_TEST(SchedulerTest);

TEST_P(SchedulerTest, RunsInOrderWithTheWorkspaceAskedFor) {
  std::unique_ptr<Scheduler> scheduler = Create();
  std::vector<size_t> capacities;
  for (int64_t bytes : {0, 256, 5000}) {
    Job job = MakeJob(kInteractive, [&](const Context& ctx) {
      ASSERT_OK(ctx) << ctx.status();
      capacities.push_back((*ctx)->arena().capacity());
      EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kContinue);
    });
    job.workspace_bytes = bytes;
    ASSERT_OK(scheduler->Submit(std::move(job)));
  }
  Answer refused;
  Job job = refused.job(kInteractive);
  job.workspace_bytes = int64_t{1} << 50;
  ASSERT_OK(scheduler->Submit(std::move(job)));
  EXPECT_EQ(refused.Wait().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(capacities, (std::vector<size_t>{0, 256, 5120}));
}

TEST_P(SchedulerTest, RefusesBeyondTheQueueOfAClassAndAfterShutdown) {
  std::unique_ptr<Scheduler> scheduler = Create({.capacity = {1, 1, 1}});
  Gate gate(*scheduler, kInteractive);
  Answer waiting, other_class;
  ASSERT_OK(scheduler->Submit(waiting.job(kInteractive)));
  EXPECT_EQ(scheduler->Submit(MakeJob(kInteractive, nullptr)).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_OK(scheduler->Submit(other_class.job(kBatch)));
  EXPECT_EQ(scheduler->waiting(kInteractive), 1);
  EXPECT_EQ(scheduler->started(kInteractive), 1);
  EXPECT_EQ(scheduler->pending(), 3);
  // From two threads at once: both wait, neither twice. Jobs that wait need not wait for the one that has started.
  std::thread one([&] { scheduler->Shutdown(); }), two([&] { scheduler->Shutdown(); });
  EXPECT_EQ(waiting.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(other_class.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(scheduler->Submit(MakeJob(kFrame, nullptr)).code(), absl::StatusCode::kUnavailable);
  gate.Go();
  one.join();
  two.join();
  EXPECT_EQ(scheduler->pending(), 0);
}

TEST_P(SchedulerTest, AHeldJobKeepsItsWorkspaceWhileAFrameComputes) {
  std::unique_ptr<Scheduler> scheduler = Create();
  const Signal<bool> started, ended;
  std::atomic<bool> frame_ran = false;
  std::atomic<int> holds = 0;
  Job batch = MakeJob(kBatch, [&](const Context& ctx) {
    ASSERT_OK(ctx);
    const ExecContext& batch_ctx = **ctx;
    uint8_t* memory = *batch_ctx.arena().Allocate<uint8_t>(1000);
    EXPECT_OK(batch_ctx.device().Fill(memory, 7, 1000, batch_ctx.stream()));
    started.Set(true);
    while (!frame_ran) EXPECT_EQ(batch_ctx.Checkpoint({}), Decision::kContinue);
    std::vector<uint8_t> host(1000);
    EXPECT_OK(batch_ctx.device().Copy(host.data(), memory, 1000, batch_ctx.stream()));
    EXPECT_OK(batch_ctx.device().Synchronize(batch_ctx.stream()));
    EXPECT_EQ(host, std::vector<uint8_t>(1000, 7));
    ended.Set(true);
  });
  batch.workspace_bytes = 1024;
  batch.on_held = [&](SchedulerClock::Duration held) {
    EXPECT_GT(held.count(), 0);
    ++holds;
  };
  ASSERT_OK(scheduler->Submit(std::move(batch)));
  started.Wait();
  Job frame = MakeJob(kFrame, [&](const Context& ctx) {
    ASSERT_OK(ctx);
    uint8_t* memory = *(*ctx)->arena().Allocate<uint8_t>(1000);
    EXPECT_OK((*ctx)->device().Fill(memory, 9, 1000, (*ctx)->stream()));
    EXPECT_EQ(scheduler->started(kBatch), 1);
    frame_ran = true;
  });
  frame.workspace_bytes = 1024;
  ASSERT_OK(scheduler->Submit(std::move(frame)));
  ended.Wait();
  scheduler->Shutdown();
  EXPECT_EQ(holds, 1);
}

// Goes by what a test says. For one scheduler.
class ManualClock final : public SchedulerClock {
 public:
  Time Now() const override { return Time(Duration(now_ns_.load())); }
  void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time) override {
    waiter_ = {&changed, lock.mutex()};
    waits_.store(true);
    changed.wait(lock);
  }
  // Once somebody waits for it.
  void Advance(Duration by) {
    while (!waits_) std::this_thread::yield();
    std::lock_guard<std::mutex> lock(*waiter_.mutex);
    now_ns_ += by.count();
    waiter_.changed->notify_all();
  }

 private:
  struct Waiter {
    std::condition_variable* changed = nullptr;
    std::mutex* mutex = nullptr;
  };
  std::atomic<int64_t> now_ns_ = 0;
  Waiter waiter_;
  std::atomic<bool> waits_ = false;
};

TEST_P(SchedulerTest, AJobThatLosesItsDeadlineWhileItWaitsNeverRuns) {
  ManualClock clock;
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device(), {}, clock);
  Gate gate(*scheduler, kBatch);
  Answer early, late;
  Job job = early.job(kInteractive);
  job.deadline = clock.Now() + std::chrono::milliseconds(5);
  ASSERT_OK(scheduler->Submit(std::move(job)));
  job = late.job(kInteractive);
  job.deadline = clock.Now() + std::chrono::hours(1);
  ASSERT_OK(scheduler->Submit(std::move(job)));
  clock.Advance(std::chrono::milliseconds(5));
  EXPECT_EQ(early.Wait().code(), absl::StatusCode::kDeadlineExceeded) << "while the device is busy";
  gate.Go();
  EXPECT_OK(late.Wait());
}

TEST_P(SchedulerTest, CancelTakesAWaitingJobOutOfTheQueueAtOnce) {
  std::unique_ptr<Scheduler> scheduler = Create({.capacity = {1, 2, 1}});
  Gate gate(*scheduler, kInteractive);
  int mine = 0, other = 0;
  Answer cancelled, stays;
  ASSERT_OK(scheduler->Submit(cancelled.job(kInteractive, &mine)));
  ASSERT_OK(scheduler->Submit(stays.job(kInteractive, &other)));
  scheduler->Cancel(&mine);
  EXPECT_EQ(scheduler->waiting(kInteractive), 1);
  EXPECT_EQ(cancelled.Wait().code(), absl::StatusCode::kCancelled) << "while the device is busy";
  gate.Go();
  EXPECT_OK(stays.Wait());
}

TEST_P(SchedulerTest, CancelEndsAHeldJobWhileTheBetterOneComputes) {
  std::unique_ptr<Scheduler> scheduler = Create();
  int owner = 0;
  Checker batch;
  ASSERT_OK(scheduler->Submit(batch.job(kBatch, &owner)));
  batch.started.Wait();
  Gate gate(*scheduler, kInteractive);  // computes only once the batch job is held
  scheduler->Cancel(&owner);
  EXPECT_EQ(batch.decision.Wait(), Decision::kCancel);
  gate.Go();
  Answer next;
  ASSERT_OK(scheduler->Submit(next.job(kBatch)));
  EXPECT_OK(next.Wait());
}

TEST_P(SchedulerTest, CancelReachesAJobThatComputesAtItsNextCheckpoint) {
  std::unique_ptr<Scheduler> scheduler = Create();
  int owner = 0;
  Checker computing, next;
  ASSERT_OK(scheduler->Submit(computing.job(kInteractive, &owner)));
  computing.started.Wait();
  scheduler->Cancel(&owner);
  EXPECT_EQ(computing.decision.Wait(), Decision::kCancel);
  next.end = true;
  ASSERT_OK(scheduler->Submit(next.job(kInteractive, &owner)));
  EXPECT_EQ(next.decision.Wait(), Decision::kContinue) << "a later job of the owner is not cancelled";
}

TEST_P(SchedulerTest, ShutdownWaitsForHeldJobs) {
  std::unique_ptr<Scheduler> scheduler = Create();
  Checker batch;
  ASSERT_OK(scheduler->Submit(batch.job(kBatch)));
  batch.started.Wait();
  Gate gate(*scheduler, kFrame);
  std::thread shutdown([&] { scheduler->Shutdown(); });
  while (scheduler->Submit(MakeJob(kFrame, [](const Context&) {})).code() != absl::StatusCode::kUnavailable) {
    std::this_thread::yield();
  }
  batch.end = true;
  gate.Go();
  shutdown.join();
  EXPECT_EQ(batch.decision.Wait(), Decision::kContinue);
  EXPECT_EQ(scheduler->pending(), 0);
}

TEST_P(SchedulerTest, RefusesOptionsThatLetNobodyCompute) {
  for (const SchedulingOptions& options : std::vector<SchedulingOptions>{{.lanes = {1, 0, 1}}, {.slots = 0}}) {
    EXPECT_EQ(Scheduler::Create(device(), options).status().code(), absl::StatusCode::kInvalidArgument);
  }
  if (device().partitioned()) return;
  EXPECT_EQ(Scheduler::Create(device(), {.partitioned = true}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(SchedulerTest, ByDefaultTheLongJobsOfFourOwnersHaveLanes) {
  const SchedulingOptions options = DefaultScheduling(device());
  const auto interactive = static_cast<int>(kInteractive);
  EXPECT_GE(options.lanes[interactive] - options.short_lanes[interactive], 4 * options.at_once[interactive]);
  EXPECT_OK(Scheduler::Create(device(), options).status());
}

TEST_P(SchedulerTest, ByDefaultOneOwnerMayUseAllOfALargeDevice) {
  const SchedulingOptions options = DefaultScheduling(device());
  const int of_an_owner = options.at_once[static_cast<int>(kInteractive)];
  EXPECT_LE(of_an_owner, options.slots);
  const bool is_large_gpu = device().kind() == DeviceKind::kCuda && device().memory()->total_bytes >= int64_t{32} << 30;
  if (is_large_gpu || device().kind() == DeviceKind::kCpu) {
    EXPECT_EQ(of_an_owner, options.slots);
  }
}

TEST_P(SchedulerTest, ByDefaultTwoInteractiveJobsComputeBesideFrames) {
  const SchedulingOptions options = DefaultScheduling(device());
  const bool is_gpu = device().kind() == DeviceKind::kCuda;
  EXPECT_THAT(options.beside_frames, testing::ElementsAre(0, is_gpu ? 2 : 0, 0));
}

TEST_P(SchedulerTest, AJobThatWaitsStartsWhenFramesAreNoLongerOpen) {
  std::unique_ptr<Scheduler> scheduler =
      Create({.lanes = {1, 2, 1}, .at_once = {1, 2, 1}, .beside_frames = {0, 1, 0}, .slots = 2});
  scheduler->SetFramesOpen(true);
  Gate first(*scheduler, kInteractive);
  Answer second;
  ASSERT_OK(scheduler->Submit(second.job(kInteractive)));
  EXPECT_EQ(scheduler->waiting(kInteractive), 1);
  scheduler->SetFramesOpen(false);
  EXPECT_OK(second.Wait());
  first.Go();
}

TEST_P(SchedulerTest, FramesComputeAtOnceWhereThereAreSlots) {
  std::unique_ptr<Scheduler> scheduler = Create({.lanes = {2, 1, 1}, .slots = 2});
  Gate first(*scheduler, kFrame), second(*scheduler, kFrame);
  Answer third;
  ASSERT_OK(scheduler->Submit(third.job(kFrame)));
  EXPECT_EQ(scheduler->waiting(kFrame), 1);
  EXPECT_EQ(scheduler->started(kFrame), 2);
  second.Go();
  EXPECT_OK(third.Wait());
  first.Go();
}

SchedulingOptions WithTurns() {
  return {.lanes = {1, 3, 1}, .at_once = {1, 1, 1}, .owner_turn = std::chrono::microseconds(1)};
}

TEST_P(SchedulerTest, AnotherOwnersJobNeedNotWaitForTheEndOfALongOne) {
  std::unique_ptr<Scheduler> scheduler = Create(WithTurns());
  Checker long_job;
  Job job = long_job.job(kInteractive);
  job.party = "alice";
  std::atomic<int> held = 0;
  job.on_held = [&](SchedulerClock::Duration) { ++held; };
  ASSERT_OK(scheduler->Submit(std::move(job)));
  long_job.started.Wait();
  for (const char* party : {"bob", "alice"}) {
    Answer answer;
    Job other = answer.job(kInteractive);
    other.party = party;
    other.is_short = other.party == "alice";
    ASSERT_OK(scheduler->Submit(std::move(other)));
    EXPECT_OK(answer.Wait()) << party;
  }
  long_job.end = true;
  EXPECT_EQ(long_job.decision.Wait(), Decision::kContinue);
  EXPECT_GE(held, 1);
}

// A pass over an image without a checkpoint of its own.
TEST(SchedulerLoopTest, OnTheCpuAJobGivesWayInsideItsLoops) {
  const std::unique_ptr<Device> cpu = OpenCpuDevice();
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(*cpu, WithTurns());
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
  for (JobClass job_class : {kFrame, kInteractive}) {
    Answer answer;
    Job job = answer.job(job_class);
    job.party = "bob";
    EXPECT_OK(scheduler->Submit(std::move(job)));
    EXPECT_OK(answer.Wait());
  }
  EXPECT_FALSE(ended) << "the pass goes on";
  end = true;
  scheduler.reset();
}

TEST_P(SchedulerTest, AwaitsTheFramesThatAreThere) {
  std::unique_ptr<Scheduler> scheduler = Create();
  scheduler->AwaitFrames(std::chrono::hours(1));
  Gate frame(*scheduler, kFrame);
  scheduler->AwaitFrames(milliseconds(1));
  std::atomic<bool> quiet = false;
  std::thread waits([&] {
    scheduler->AwaitFrames(std::chrono::hours(1));
    quiet = true;
  });
  EXPECT_FALSE(quiet);
  frame.Go();
  waits.join();
}

}  // namespace
}  // namespace intrawarp::schedule_test
