// SPDX-License-Identifier: Apache-2.0
// Jobs for tests of the scheduler: they block, answer, pass checkpoints.
#ifndef INTRAWARP_TESTS_ENGINE_SCHEDULE_SCHEDULER_FIXTURE_H_
#define INTRAWARP_TESTS_ENGINE_SCHEDULE_SCHEDULER_FIXTURE_H_

#include <atomic>
#include <functional>
#include <future>
#include <memory>

#include "engine/schedule/scheduler.h"
#include "tests/engine/device_test.h"

namespace intrawarp::schedule_test {

inline constexpr JobClass kFrame = JobClass::kFrame, kInteractive = JobClass::kInteractive, kBatch = JobClass::kBatch;

using Context = absl::StatusOr<const ExecContext*>;

class SchedulerTest : public DeviceTest {
 protected:
  std::unique_ptr<Scheduler> Create(const SchedulingOptions& options = {}) {
    return *Scheduler::Create(device(), options);
  }
};

inline Job MakeJob(JobClass job_class, std::function<void(const Context&)> run) {
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

}  // namespace intrawarp::schedule_test

#endif  // INTRAWARP_TESTS_ENGINE_SCHEDULE_SCHEDULER_FIXTURE_H_
