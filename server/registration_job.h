// SPDX-License-Identifier: Apache-2.0
// One registration as a job: the engine calls in their order, their time by phase, and what ends them early. No gRPC here.
#ifndef INTRAWARP_SERVER_REGISTRATION_JOB_H_
#define INTRAWARP_SERVER_REGISTRATION_JOB_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/quality/quality.h"
#include "engine/registration/registration.h"
#include "engine/schedule/latency.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// What ends a job early: its caller is gone, its RPC's deadline has passed, its budget is used up.
//
// Thread safety: Cancel and cancelled on any thread, the rest on the job's thread.
class JobControl {
 public:
  using ProgressFn = std::function<void(const Progress&)>;

  // `deadline`: when the RPC ends.
  explicit JobControl(std::optional<std::chrono::system_clock::time_point> deadline) : deadline_(deadline) {}

  // Called at the first iteration of a level and otherwise at most every 50 ms. Set before the job is submitted.
  void set_on_progress(ProgressFn on_progress) { on_progress_ = std::move(on_progress); }

  void Cancel() { cancelled_ = true; }
  // By Cancel or by the deadline.
  bool cancelled() const { return cancelled_ || DeadlinePassed(); }
  // Why it was cancelled: CANCELLED, or DEADLINE_EXCEEDED once the deadline has passed.
  absl::Status CancelStatus() const;

  // The budget runs from now on; nullopt: none.
  void StartBudget(std::optional<std::chrono::nanoseconds> budget);

  // For Job::checkpoint.
  Decision Check(const Progress& progress);

 private:
  bool DeadlinePassed() const { return deadline_ && std::chrono::system_clock::now() >= *deadline_; }
  void Report(const Progress& progress);

  const std::optional<std::chrono::system_clock::time_point> deadline_;
  ProgressFn on_progress_;
  std::atomic<bool> cancelled_ = false;
  std::optional<std::chrono::steady_clock::time_point> budget_end_;
  std::chrono::steady_clock::time_point last_report_;
  int last_stage_ = -1;
  int last_level_ = -1;
};

struct RegistrationTask {
  RegistrationInput input;
  // For the optimisation alone, from its first evaluation: waiting, uploading and preparing before it, and assessing and
  // sending after it, do not count, so that what a budget buys does not depend on the load of the server.
  std::optional<std::chrono::nanoseconds> budget;
  // Used up without best_effort: DEADLINE_EXCEEDED.
  bool best_effort = false;
  // Called with the result before it is assessed, so that its field can be on its way meanwhile; may be empty.
  std::function<absl::Status(const Transform&)> on_transform;
};

struct RegistrationOutcome {
  RegistrationResult result;
  QualityReport quality;
};

int64_t RegistrationJobBytes(const Device& device, const RegistrationInput& input);

// Registers and assesses; adds to the phases optimise and assess. Errors are those of Register,
// DEADLINE_EXCEEDED for the budget, FAILED_PRECONDITION (a result that is not finite or singular), those of
// `on_transform`, and control.CancelStatus(). Waits for the stream.
absl::StatusOr<RegistrationOutcome> RunRegistration(const ExecContext& ctx, const RegistrationTask& task,
                                                    JobControl& control, LatencyBreakdown& latency);

// |A^-1(A(p)) - p| over the corners of the grid's domain.
InverseConsistency AffineInverseConsistency(const AffineMap& map, const Geometry& grid);

}  // namespace intrawarp

#endif  // INTRAWARP_SERVER_REGISTRATION_JOB_H_
