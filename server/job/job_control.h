// SPDX-License-Identifier: Apache-2.0
// JobControl: what ends a job early, and who hears of its progress. No gRPC here.
#ifndef INTRAWARP_SERVER_JOB_JOB_CONTROL_H_
#define INTRAWARP_SERVER_JOB_JOB_CONTROL_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "server/base/names.h"
#include "server/base/seams.h"

namespace intrawarp::server {

// A job ends early when its caller is gone, its RPC's deadline has passed or its budget is used up. A detached job goes
// on without its caller and deadline, until its operation is cancelled. A job without a budget ends once it has
// computed for the server's longest time.
//
// Thread safety: Cancel, Detach, CancelDetached, detached and cancelled on any thread, the rest on the job's thread.
class JobControl {
 public:
  using ProgressFn = std::function<void(const Progress&)>;

  using Time = std::chrono::steady_clock::time_point;

  // `deadline`: when the RPC ends. `max_run_time`: from the first Check on, without a budget; 0: for ever. All times
  // are of seams.steady_now; `seams` must outlive this.
  JobControl(const Seams& seams, std::optional<Time> deadline, std::chrono::nanoseconds max_run_time = {})
      : seams_(seams), deadline_(deadline), max_run_time_(max_run_time) {}

  // Called at the first iteration of a level and otherwise at most every 50 ms. Set before the job is submitted.
  void set_on_progress(ProgressFn on_progress) { on_progress_ = std::move(on_progress); }

  void Cancel() { cancelled_ = true; }
  // From now on Cancel and the deadline have no effect.
  void Detach() { detached_ = true; }
  void CancelDetached() { detached_cancelled_ = true; }
  bool detached() const { return detached_; }
  // By Cancel or by the deadline; of a detached job, by CancelDetached; of either, by the longest time.
  bool cancelled() const {
    return ran_out_ || (detached_ ? detached_cancelled_.load() : cancelled_ || DeadlinePassed());
  }
  // Why it was cancelled: CANCELLED, or DEADLINE_EXCEEDED once the deadline has passed or the longest time is used up
  // (RUN_TIME_USED_UP).
  absl::Status CancelStatus() const;

  // The budget runs from now on; nullopt: none.
  void StartBudget(std::optional<std::chrono::nanoseconds> budget);

  // For Job::on_held, and for a field that is sent on the way: neither budget nor longest time run meanwhile.
  void Held(std::chrono::nanoseconds held);

  // For Job::checkpoint. Progress without levels is not reported.
  Decision Check(const Progress& progress);

 private:
  bool DeadlinePassed() const { return deadline_ && seams_.steady_now() >= *deadline_; }
  bool RunsOut();
  void Report(const Progress& progress);

  const Seams& seams_;
  const std::optional<Time> deadline_;
  const std::chrono::nanoseconds max_run_time_;
  ProgressFn on_progress_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> detached_ = false;
  std::atomic<bool> detached_cancelled_ = false;
  std::atomic<bool> ran_out_ = false;
  std::optional<Time> run_end_;
  std::optional<Time> budget_end_;
  Time last_report_;
  int last_stage_ = -1;
  int last_level_ = -1;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_JOB_JOB_CONTROL_H_
