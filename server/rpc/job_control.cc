// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/job_control.h"

namespace intrawarp::server {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{50};

}  // namespace

absl::Status JobControl::CancelStatus() const {
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
}

Decision JobControl::Check(const Progress& progress) {
  if (cancelled()) return Decision::kCancel;
  if (on_progress_) Report(progress);
  return budget_end_ && seams_.steady_now() >= *budget_end_ ? Decision::kStop : Decision::kContinue;
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
