// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/device/cpu_device.h"
#include "engine/device/parallel.h"
#include "engine/schedule/retry_after.h"
#include "engine/schedule/unreachable.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr JobClass kFrame = JobClass::kFrame, kInteractive = JobClass::kInteractive, kBatch = JobClass::kBatch;

using std::chrono::milliseconds;
using Context = absl::StatusOr<const ExecContext*>;

class SchedulerTest : public DeviceTest {
 protected:
  std::unique_ptr<Scheduler> Create(const SchedulingOptions& options = {}) {
    return *Scheduler::Create(device(), options);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SchedulerTest);

Job MakeJob(JobClass job_class, std::function<void(const Context&)> run) {
  Job job;
  job.job_class = job_class;
  job.run = std::move(run);
  return job;
}

// Set once by a job; copies are the same signal, so that a test may end while a job still sets it.
template <typename T>
class Signal {
 public:
  void Set(const T& value) const { promise_->set_value(value); }
  T Wait() const { return future_.get(); }

 private:
  std::shared_ptr<std::promise<T>> promise_ = std::make_shared<std::promise<T>>();
  std::shared_future<T> future_ = promise_->get_future().share();
};

// A job that says that it has started and computes until Go, without a checkpoint.
class Gate {
 public:
  Gate(Scheduler& scheduler, JobClass job_class) {
    EXPECT_OK(scheduler.Submit(MakeJob(job_class, [started = started_, go = go_](const Context&) {
      started.Set(true);
      go.Wait();
    })));
    started_.Wait();
  }
  void Go() { go_.Set(true); }

 private:
  const Signal<bool> started_, go_;
};

// A job that ends at once with what it is told: OK, or why it has no context.
struct Answer {
  Job job(JobClass job_class, const void* owner = nullptr) const {
    Job job = MakeJob(job_class, [status = status](const Context& ctx) { status.Set(ctx.status()); });
    job.owner = owner;
    return job;
  }
  absl::Status Wait() const { return status.Wait(); }
  const Signal<absl::Status> status;
};

// A job that passes checkpoints until one does not answer "continue", or until `end`.
struct Checker {
  Job job(JobClass job_class, const void* owner = nullptr) {
    Job job = MakeJob(job_class, [this, started = started, decision = decision](const Context& ctx) {
      started.Set(true);
      Decision answer = (*ctx)->Checkpoint({});
      while (!end && answer == Decision::kContinue) answer = (*ctx)->Checkpoint({});
      decision.Set(answer);
    });
    job.owner = owner;
    return job;
  }
  const Signal<bool> started;
  const Signal<Decision> decision;  // the last one
  std::atomic<bool> end = false;
};

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

// Host memory that is counted, and streams that know their partitions.
class FakeDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
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

TEST_P(SchedulerTest, RefusesOptionsThatLetNobodyCompute) {
  for (const SchedulingOptions& options : std::vector<SchedulingOptions>{{.lanes = {1, 0, 1}}, {.slots = 0}}) {
    EXPECT_EQ(Scheduler::Create(device(), options).status().code(), absl::StatusCode::kInvalidArgument);
  }
  if (device().partitioned()) return;
  EXPECT_EQ(Scheduler::Create(device(), {.partitioned = true}).status().code(), absl::StatusCode::kInvalidArgument);
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

// Goes on by what jobs say that they take.
class WorkClock final : public SchedulerClock {
 public:
  Time Now() const override { return Time(Duration(now_ns_.load())); }
  void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time) override {
    changed.wait(lock);
  }
  void Work(Duration by) { now_ns_ += by.count(); }

 private:
  std::atomic<int64_t> now_ns_ = 0;
};

// What a scheduler says of its jobs.
class Records {
 public:
  JobObserver observer() {
    return [this](const JobRecord& record) {
      std::lock_guard<std::mutex> lock(mutex_);
      records_.push_back(record);
    };
  }
  // Once nothing is pending.
  std::vector<JobRecord> Of(const Scheduler& scheduler) {
    while (scheduler.pending() > 0) std::this_thread::yield();
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(records_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<JobRecord> records_;
};

TEST_P(SchedulerTest, LearnsCostsAndRefusesWhatTheyLeaveNoTimeFor) {
  WorkClock clock;
  Records records;
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device(), {.on_job = records.observer()}, clock);
  const auto make = [&](std::optional<std::chrono::milliseconds> deadline) {
    Job job = MakeJob(kFrame, [&](const Context&) { clock.Work(std::chrono::milliseconds(20)); });
    if (deadline) job.deadline = clock.Now() + *deadline;
    job.cost_kind = "work";
    job.cost_size = 100;
    return job;
  };
  for (int i = 0; i < 40; ++i) {
    ASSERT_OK(scheduler->Submit(make(std::nullopt)));
    records.Of(*scheduler);
  }
  EXPECT_EQ(scheduler->Submit(make(std::chrono::milliseconds(19))).code(), absl::StatusCode::kDeadlineExceeded);
  std::vector<JobRecord> told = records.Of(*scheduler);
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0].outcome, JobOutcome::kRefused);
  ASSERT_TRUE(told[0].predicted.has_value());
  EXPECT_NEAR(static_cast<double>(told[0].predicted->count()), 20e6, 0.1e6);
  EXPECT_EQ(told[0].slack, std::chrono::milliseconds(19));

  ASSERT_OK(scheduler->Submit(make(std::chrono::milliseconds(21))));
  told = records.Of(*scheduler);
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0].outcome, JobOutcome::kDone);
  EXPECT_EQ(told[0].busy, std::chrono::milliseconds(20));
  EXPECT_EQ(told[0].slack, std::chrono::milliseconds(1));
}

// Learnt costs and a clock that jobs move.
class LearntTest : public SchedulerTest {
 protected:
  LearntTest() : scheduler_(*Scheduler::Create(device(), {.on_job = records_.observer()}, clock_)) {}
  // A job of kind "work" that takes so long.
  Job Work(std::optional<milliseconds> deadline, milliseconds takes) {
    Job job = MakeJob(kInteractive, [this, takes](const Context& ctx) {
      if (ctx.ok()) clock_.Work(takes);
    });
    if (deadline) job.deadline = clock_.Now() + *deadline;
    job.cost_kind = "work";
    job.cost_size = 100;
    return job;
  }
  void Learn(milliseconds takes, int times = 40) {
    for (int i = 0; i < times; ++i) {
      ASSERT_OK(scheduler_->Submit(Work(std::nullopt, takes)));
      records_.Of(*scheduler_);
    }
  }

  WorkClock clock_;
  Records records_;
  std::unique_ptr<Scheduler> scheduler_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LearntTest);

// A queue in which each job starts so late that it misses its deadline helps nobody.
TEST_P(LearntTest, AJobThatHasTooLittleTimeLeftNeverStarts) {
  Learn(milliseconds(20));
  std::optional<Gate> gate(std::in_place, *scheduler_, kFrame);
  Answer answer;
  Job job = answer.job(kInteractive);
  job.cost_kind = "work";
  job.cost_size = 100;
  job.deadline = clock_.Now() + milliseconds(50);
  ASSERT_OK(scheduler_->Submit(std::move(job)));
  clock_.Work(milliseconds(40));  // by which the frame overran
  gate->Go();
  const absl::Status why = answer.Wait();
  EXPECT_TRUE(IsUnreachable(why)) << why;
}

TEST_P(LearntTest, JobsThatCameBeforeTheirCostWasKnownAreJudgedOnceItIs) {
  const Signal<bool> last_started, go;
  Learn(milliseconds(20), CostModel::kMinSamples - 1);
  Job last = MakeJob(kInteractive, [&](const Context&) {
    last_started.Set(true);
    go.Wait();
    clock_.Work(milliseconds(20));
  });
  last.cost_kind = "work";
  last.cost_size = 100;
  ASSERT_OK(scheduler_->Submit(std::move(last)));
  last_started.Wait();
  // At the time 20 three of these could still be in time, with an ample margin for the deviation.
  std::vector<Answer> answers(40);
  for (Answer& answer : answers) {
    Job job = answer.job(kInteractive);
    job.cost_kind = "work";
    job.cost_size = 100;
    job.deadline = clock_.Now() + milliseconds(200);
    ASSERT_OK(scheduler_->Submit(std::move(job)));
  }
  go.Set(true);
  EXPECT_OK(answers.front().Wait());
  const absl::Status why = answers.back().Wait();
  EXPECT_TRUE(IsUnreachable(why)) << why;
  EXPECT_TRUE(RetryAfterOf(why).has_value());
}

// The cost of small jobs says nothing of large ones, neither before nor while they wait.
TEST_P(LearntTest, ALargeJobIsNotRefusedByWhatSmallOnesCost) {
  Learn(milliseconds(10));
  const auto large = [this](const Answer& answer) {
    Job job = answer.job(kInteractive);
    job.cost_kind = "work";
    job.cost_size = 100000;
    job.deadline = clock_.Now() + milliseconds(500);
    return job;
  };
  Answer alone, waiting;
  EXPECT_OK(scheduler_->Submit(large(alone)));
  EXPECT_OK(alone.Wait());
  std::optional<Gate> gate(std::in_place, *scheduler_, kFrame);
  EXPECT_OK(scheduler_->Submit(large(waiting)));
  EXPECT_OK(scheduler_->Submit(Work(std::nullopt, milliseconds(10))));
  gate->Go();
  EXPECT_OK(waiting.Wait());
}

TEST_P(LearntTest, APredictionThatHasBecomeWrongCorrectsItself) {
  Learn(milliseconds(500));
  EXPECT_TRUE(IsUnreachable(scheduler_->Submit(Work(milliseconds(100), milliseconds(20)))));
  clock_.Work(milliseconds(500));
  EXPECT_TRUE(IsUnreachable(scheduler_->Submit(Work(milliseconds(100), milliseconds(20)))));
  clock_.Work(milliseconds(500));
  for (int i = 0; i < 20; ++i) {
    EXPECT_OK(scheduler_->Submit(Work(milliseconds(100), milliseconds(20)))) << i;
    records_.Of(*scheduler_);
  }
}

// An idle device helps nobody: a job alone is refused only if the mean says that it would be late.
TEST_P(LearntTest, AJobAloneIsAdmittedByTheMeanOfCostsThatVary) {
  for (int i = 0; i < 20; ++i) Learn(milliseconds(i % 2 == 0 ? 10 : 30), 1);
  EXPECT_GT(scheduler_->costs().Predict("work", 100)->alone, milliseconds(40));
  EXPECT_OK(scheduler_->Submit(Work(milliseconds(40), milliseconds(30))));
  records_.Of(*scheduler_);
  EXPECT_TRUE(IsUnreachable(scheduler_->Submit(Work(milliseconds(12), milliseconds(10)))));
}

// The estimate of few costs leaves room for more than half of them; a session must not lose its frames for that.
TEST_P(LearntTest, FramesWhoseDeadlineLeavesHalfOfTheirCostToSpareAllRun) {
  for (int i = 0; i < 100; ++i) {
    Job frame = Work(milliseconds(45), milliseconds(30));
    frame.job_class = kFrame;
    ASSERT_OK(scheduler_->Submit(std::move(frame))) << i;
    ASSERT_EQ(records_.Of(*scheduler_).back().outcome, JobOutcome::kDone) << i;
  }
}

TEST_P(LearntTest, NobodyProbesWhileAnotherJobOfTheClassIsThere) {
  Learn(milliseconds(500));
  EXPECT_TRUE(IsUnreachable(scheduler_->Submit(Work(milliseconds(100), milliseconds(20)))));
  clock_.Work(std::chrono::hours(1));
  Gate gate(*scheduler_, kInteractive);
  EXPECT_TRUE(IsUnreachable(scheduler_->Submit(Work(milliseconds(100), milliseconds(20)))));
  gate.Go();
}

TEST_P(LearntTest, AJobThatWasEndedBeyondItsPredictionIsLearnt) {
  Learn(milliseconds(20));
  EXPECT_LT(scheduler_->costs().Predict("work", 100)->alone, milliseconds(30));
  int owner = 0;
  for (int i = 0; i < 4; ++i) {
    Job job = MakeJob(kInteractive, [&](const Context& ctx) {
      clock_.Work(milliseconds(300));
      scheduler_->Cancel(&owner);
      EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kCancel);
    });
    job.owner = &owner;
    job.cost_kind = "work";
    job.cost_size = 100;
    ASSERT_OK(scheduler_->Submit(std::move(job)));
    records_.Of(*scheduler_);
  }
  EXPECT_GT(scheduler_->costs().Predict("work", 100)->alone, milliseconds(200));
}

TEST_P(LearntTest, JobsWithDeadlinesDoNotKeepOneWithoutOutForEver) {
  std::optional<Gate> gate(std::in_place, *scheduler_, kInteractive);
  std::vector<int> order;
  const auto submit = [&](int number, bool has_deadline) {
    Job job = MakeJob(kInteractive, [&order, number](const Context& ctx) {
      if (ctx.ok()) order.push_back(number);
    });
    if (has_deadline) job.deadline = clock_.Now() + Scheduler::kPatience / 2;
    ASSERT_OK(scheduler_->Submit(std::move(job)));
  };
  submit(1, false);
  submit(2, true);
  clock_.Work(Scheduler::kPatience * 3 / 4);
  submit(3, true);
  gate->Go();
  records_.Of(*scheduler_);
  EXPECT_EQ(order, (std::vector<int>{1, 3})) << "the second one has expired";
}

TEST_P(SchedulerTest, LearnsNothingFromJobsThatFailOrAreCancelled) {
  std::unique_ptr<Scheduler> scheduler = Create();
  int owner = 0;
  for (int i = 0; i < CostModel::kMinSamples; ++i) {
    Job job = MakeJob(kFrame, [&](const Context& ctx) {
      scheduler->Cancel(&owner);
      EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kCancel);
    });
    job.owner = &owner;
    job.cost_kind = "work";
    ASSERT_OK(scheduler->Submit(std::move(job)));
    while (scheduler->pending() > 0) std::this_thread::yield();
    Job failing = MakeJob(kFrame, [](const Context&) {});
    failing.completed = [] { return false; };
    failing.cost_kind = "work";
    ASSERT_OK(scheduler->Submit(std::move(failing)));
  }
  while (scheduler->pending() > 0) std::this_thread::yield();
  EXPECT_EQ(scheduler->costs().cells(), 0);
}

TEST_P(SchedulerTest, TellsTheLifeOfEveryJobOnce) {
  WorkClock clock;
  Records records;
  std::unique_ptr<Scheduler> scheduler =
      *Scheduler::Create(device(), {.capacity = {1, 2, 1}, .on_job = records.observer()}, clock);
  int owner = 0;
  const Signal<bool> started, frame_waits;
  ASSERT_OK(scheduler->Submit(MakeJob(kBatch, [&](const Context& ctx) {
    started.Set(true);
    frame_waits.Wait();
    clock.Work(std::chrono::milliseconds(3));
    EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kContinue);  // held by the frame
    clock.Work(std::chrono::milliseconds(4));
  })));
  started.Wait();
  Answer cancelled;
  ASSERT_OK(scheduler->Submit(cancelled.job(kInteractive, &owner)));
  scheduler->Cancel(&owner);
  EXPECT_TRUE(absl::IsCancelled(cancelled.Wait()));
  ASSERT_OK(scheduler->Submit(MakeJob(kFrame, [&](const Context&) { clock.Work(std::chrono::milliseconds(10)); })));
  EXPECT_FALSE(scheduler->Submit(MakeJob(kFrame, nullptr)).ok());
  frame_waits.Set(true);
  const std::vector<JobRecord> told = records.Of(*scheduler);
  ASSERT_EQ(told.size(), 4);
  const auto record = [&](JobClass job_class, JobOutcome outcome) {
    const auto found = std::find_if(
        told.begin(), told.end(), [&](const JobRecord& r) { return r.job_class == job_class && r.outcome == outcome; });
    EXPECT_TRUE(found != told.end());
    return found == told.end() ? JobRecord() : *found;
  };
  const JobRecord batch = record(kBatch, JobOutcome::kDone), frame = record(kFrame, JobOutcome::kDone);
  EXPECT_EQ(batch.queued, std::chrono::milliseconds(0));
  EXPECT_EQ(batch.busy, std::chrono::milliseconds(7));
  EXPECT_EQ(batch.held, std::chrono::milliseconds(10));
  EXPECT_EQ(frame.queued, std::chrono::milliseconds(3));
  EXPECT_EQ(frame.busy, std::chrono::milliseconds(10));
  EXPECT_EQ(record(kInteractive, JobOutcome::kCancelled).queued, std::chrono::milliseconds(0));
  EXPECT_EQ(record(kFrame, JobOutcome::kRefused).queued, std::chrono::milliseconds(0));
}

TEST_P(SchedulerTest, SaysSinceWhenAJobHasPassedNoCheckpoint) {
  WorkClock clock;
  std::unique_ptr<Scheduler> scheduler = *Scheduler::Create(device(), {}, clock);
  EXPECT_TRUE(scheduler->running().empty());
  const Signal<bool> started, frame_waits, watched;
  ASSERT_OK(scheduler->Submit(MakeJob(kBatch, [&](const Context& ctx) {
    clock.Work(std::chrono::seconds(2));
    EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kContinue);
    clock.Work(std::chrono::seconds(3));
    started.Set(true);
    frame_waits.Wait();
    EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kContinue);
  })));
  started.Wait();
  std::vector<RunningJob> running = scheduler->running();
  ASSERT_EQ(running.size(), 1);
  EXPECT_EQ(running[0].job_class, kBatch);
  EXPECT_EQ(running[0].since_start, std::chrono::seconds(5));
  EXPECT_EQ(running[0].since_checkpoint, std::chrono::seconds(3));
  EXPECT_FALSE(running[0].held);
  ASSERT_OK(scheduler->Submit(MakeJob(kFrame, [&](const Context&) {
    clock.Work(std::chrono::seconds(1));
    running = scheduler->running();
    watched.Set(true);
  })));
  frame_waits.Set(true);
  watched.Wait();
  ASSERT_EQ(running.size(), 2);
  EXPECT_EQ(running[0].job_class, kFrame);
  EXPECT_EQ(running[0].since_checkpoint, std::chrono::seconds(1));
  EXPECT_TRUE(running[1].held);
  EXPECT_EQ(running[1].since_start, std::chrono::seconds(6));
  EXPECT_EQ(running[1].since_checkpoint, std::chrono::seconds(0));
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
}  // namespace intrawarp
