// SPDX-License-Identifier: Apache-2.0
// One registration as a job: the engine calls in their order, and their time by phase. No gRPC here.
#ifndef INTRAWARP_SERVER_REGISTRATION_REGISTRATION_JOB_H_
#define INTRAWARP_SERVER_REGISTRATION_REGISTRATION_JOB_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/quality/quality.h"
#include "engine/registration/registration.h"
#include "engine/schedule/latency.h"
#include "engine/transform/transform.h"
#include "server/rpc/job_control.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// Makes room for device memory that a transform will hold; null for 0 bytes.
using ReserveFn = std::function<absl::StatusOr<std::shared_ptr<ResidentReservation>>(int64_t bytes)>;

struct RegistrationTask {
  RegistrationInput input;
  // Asked before the work, so that it is not done in vain.
  ReserveFn reserve;
  // For the optimisation alone, from its first evaluation: waiting, uploading and preparing before it, and assessing
  // and sending after it, do not count, so that what a budget buys does not depend on the load of the server.
  std::optional<std::chrono::nanoseconds> budget;
  // Used up without best_effort: DEADLINE_EXCEEDED.
  bool best_effort = false;
  // Called with the result before it is assessed, so that its field can be on its way meanwhile; may be empty.
  std::function<absl::Status(const Transform&)> on_transform;
};

struct RegistrationOutcome {
  // Of the result's memory, which is freed before it is given back.
  std::shared_ptr<ResidentReservation> reservation;
  RegistrationResult result;
  QualityReport quality;
};

int64_t RegistrationJobBytes(const Device& device, const RegistrationInput& input);

// Registers and assesses; adds to the phases admit, optimise and assess. Errors are those of `reserve` and Register,
// DEADLINE_EXCEEDED for the budget, FAILED_PRECONDITION (a result that is not finite or singular), those of
// `on_transform`, and control.CancelStatus(). Waits for the stream.
absl::StatusOr<RegistrationOutcome> RunRegistration(const ExecContext& ctx, const RegistrationTask& task,
                                                    JobControl& control, LatencyBreakdown& latency);

// |A^-1(A(p)) - p| over the corners of the grid's domain.
InverseConsistency AffineInverseConsistency(const AffineMap& map, const Geometry& grid);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_REGISTRATION_JOB_H_
