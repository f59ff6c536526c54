// SPDX-License-Identifier: Apache-2.0
#include "server/job/job_control.h"

#include "absl/strings/str_cat.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{50};

}  // namespace

absl::Status JobControl::CancelStatus() const {
  if (ran_out_) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(max_run_time_).count();
    return WithReason(absl::DeadlineExceededError(
                          absl::StrCat("the work has no budget and took the ", ms, " ms that such work may take")),
                      v1::RUN_TIME_USED_UP, {{"limit_ms", absl::StrCat(ms)}});
  }
  if (detached_) return absl::CancelledError("the operation was cancelled");
  return DeadlinePassed() ? absl::DeadlineExceededError("the deadline of the call has passed")
                          : absl::CancelledError("the call was cancelled");
}

void JobControl::StartBudget(std::optional<std::chrono::nanoseconds> budget) {
  budget_end_.reset();
  if (budget) budget_end_ = seams_.steady_now() + *budget;
}

void JobControl::Held(std::chrono::nanoseconds held) {
  if (budget_end_) *budget_end_ += held;
  if (run_end_) *run_end_ += held;
}

Decision JobControl::Check(const Progress& progress) {
  if (cancelled() || RunsOut()) return Decision::kCancel;
  if (on_progress_ && progress.levels > 0) Report(progress);
  return budget_end_ && seams_.steady_now() >= *budget_end_ ? Decision::kStop : Decision::kContinue;
}

bool JobControl::RunsOut() {
  if (max_run_time_ <= std::chrono::nanoseconds(0)) return false;
  const Time now = seams_.steady_now();
  if (!run_end_) run_end_ = now + max_run_time_;
  if (!budget_end_ && now >= *run_end_) ran_out_ = true;
  return ran_out_;
}

void JobControl::Report(const Progress& progress) {
  const auto now = seams_.steady_now();
  const bool same_level = progress.stage == last_stage_ && progress.level == last_level_;
  if (same_level && now - last_report_ < kProgressInterval) return;
  last_stage_ = progress.stage;
  last_level_ = progress.level;
  last_report_ = now;
  on_progress_(progress);
}

}  // namespace intrawarp::server
