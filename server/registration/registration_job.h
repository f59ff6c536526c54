// SPDX-License-Identifier: Apache-2.0
// One registration as a job: the engine calls in their order, and their time by phase. No gRPC here.
#ifndef INTRAWARP_SERVER_REGISTRATION_REGISTRATION_JOB_H_
#define INTRAWARP_SERVER_REGISTRATION_REGISTRATION_JOB_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/quality/verdict.h"
#include "engine/registration/assess.h"
#include "engine/registration/registration.h"
#include "engine/schedule/latency.h"
#include "engine/transform/transform.h"
#include "server/bulk/bulk_stream.h"
#include "server/bulk/field_request.h"
#include "server/job/job_control.h"
#include "server/job/job_support.h"
#include "server/ledger/ledger.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// A field that goes to the client while the result is assessed: as a stream that is evaluated on its way (`stream`), or
// from memory for all of its bytes (the other functions), which is sooner.
struct FieldOutput {
  FieldRequest request;
  // Sends the field of `transform` on `grid`; may be empty. Waits for the stream of `ctx`.
  std::function<absl::Status(const ExecContext& ctx, const Transform& transform, const Geometry& grid)> stream;
  // Host memory for the field's bytes, pinned where they come from a GPU at full speed.
  std::function<absl::StatusOr<std::shared_ptr<char>>(int64_t bytes)> lease;
  // Announces the field, whose bytes follow as they are made.
  std::function<void(const v1::FieldHeader& header, std::shared_ptr<BulkBuffer> bytes)> send;
  // More bytes are there.
  AdvanceFn advanced;
};

struct RegistrationTask {
  RegistrationInput input;
  // Asked for RegistrationMemoryBytes before the work, so that it is not done in vain.
  ReserveFn reserve;
  // For the optimisation alone, from its first evaluation: waiting, uploading and preparing before it, and assessing
  // and sending after it, do not count, so that the worth of a budget does not depend on the load of the server.
  std::optional<std::chrono::nanoseconds> budget;
  // Used up without best_effort: DEADLINE_EXCEEDED.
  bool best_effort = false;
  // Unset: no field is wanted.
  std::optional<FieldOutput> field;
  // The field as it stands before the finest level (CoarseHook), with the same request; not as a stream. Takes a
  // CoarseFieldHook in `input`. The budget does not run while it is made. Unset: none is wanted.
  std::optional<FieldOutput> coarse_field = std::nullopt;
  // The expected error above which the verdict is review.
  double error_limit_mm = kDefaultErrorLimitMm;
  ErrorOutput error = {};
  Scrutiny scrutiny = Scrutiny::kFull;
};

struct RegistrationOutcome {
  // The reservation of the result's memory and place. The memory is freed before it is given back.
  std::shared_ptr<Grant> reservation;
  RegistrationResult result;
  QualityReport quality;
};

// For an input whose task has a coarse_field: the workspace that making it takes. RunRegistration sets the call.
CoarseHook CoarseFieldHook(const Device& device, const Geometry& fixed);

// Workspace of RunRegistration.
int64_t RegistrationJobBytes(const Device& device, const RegistrationInput& input);

// All that a registration takes in the ledger: its workspace, and the result's memory and place. `field`, which may be
// null, is sent as a stream.
absl::StatusOr<Claim> RegistrationClaim(const Device& device, const RegistrationInput& input,
                                        const FieldRequest* field);

// RegisterAndAssess (engine/registration/assess.h) as a job: reserves and leases before it, and sends the fields within
// it; adds to the phases of these. Errors are those of `reserve` and RegisterAndAssess, DEADLINE_EXCEEDED for the
// budget, those of the fields, and control.CancelStatus(). Waits for the stream.
absl::StatusOr<RegistrationOutcome> RunRegistration(const ExecContext& ctx, const RegistrationTask& task,
                                                    JobControl& control, LatencyBreakdown& latency);

// Sends the field of `transform`, and waits for the stream. `memory` may be null: then it is leased.
absl::Status SendField(const ExecContext& ctx, const FieldOutput& output, const Transform& transform,
                       std::shared_ptr<char> memory, LatencyBreakdown& latency);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_REGISTRATION_JOB_H_
