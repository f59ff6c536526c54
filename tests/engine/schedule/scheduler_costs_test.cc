// SPDX-License-Identifier: Apache-2.0
// The scheduler's records of jobs, the costs that it learns from them, and what it refuses by those.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/schedule/retry_after.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/unreachable.h"
#include "tests/engine/device_test.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace intrawarp::schedule_test {
namespace {

using std::chrono::milliseconds;

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

// A scheduler's records of its jobs.
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

// An idle device helps nobody: a job without others is refused only if the mean says that it would be late.
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

}  // namespace
}  // namespace intrawarp::schedule_test
