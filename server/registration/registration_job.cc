// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_job.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/bulk/bulk_stream.h"
#include "server/bulk/field_stream.h"
#include "server/registration/registration_options.h"

namespace intrawarp::server {
namespace {

absl::StatusOr<std::shared_ptr<Grant>> ReserveResult(const RegistrationTask& task, LatencyBreakdown& latency) {
  PhaseTimer timer(latency, Phase::kAdmit);
  return task.reserve(RegistrationMemoryBytes(task.input));
}

// Within the phase optimise, of which the time for sending is not part.
absl::Status SendCoarseField(const ExecContext& ctx, const FieldOutput& output, const Transform& transform,
                             std::shared_ptr<char> memory, JobControl& control, LatencyBreakdown& latency) {
  if (control.cancelled()) return control.CancelStatus();
  const auto begin = std::chrono::steady_clock::now();
  INTRAWARP_RETURN_IF_ERROR(SendField(ctx, output, transform, std::move(memory), latency));
  const std::chrono::nanoseconds sending = std::chrono::steady_clock::now() - begin;
  latency.Add(Phase::kOptimise, -sending);
  control.Held(sending);
  return absl::OkStatus();
}

// The optimiser's result as it leaves the phase optimise.
absl::Status CheckOptimised(const RegistrationTask& task, const RegistrationResult& result, JobControl& control) {
  if (control.cancelled()) return control.CancelStatus();
  if (result.stop_reason == StopReason::kBudget && !task.best_effort) {
    const double ms =
        std::chrono::duration<double, std::milli>(task.budget.value_or(std::chrono::nanoseconds(0))).count();
    const std::string description = absl::StrCat(ms, " ms were used up");
    return WithReason(FieldError(absl::StatusCode::kDeadlineExceeded, "budget", description), v1::BUDGET_USED_UP);
  }
  if (!HasDiverged(result)) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError("the optimiser diverged"), v1::OPTIMIZER_DIVERGED);
}

// Room for the field before the work, so that it is not done in vain. Null for control points, whose number is not
// known before, for a stream, and without a field.
absl::StatusOr<std::shared_ptr<char>> LeaseField(const std::optional<FieldOutput>& field, const Geometry& fixed,
                                                 LatencyBreakdown& latency) {
  if (!field || field->stream || field->request.form == FieldForm::kControlPoints) return nullptr;
  PhaseTimer timer(latency, Phase::kAdmit);
  absl::StatusOr<Geometry> grid = FieldGrid(field->request, fixed);
  if (!grid.ok()) return Within("field", grid.status());
  return field->lease(FieldBytes(field->request, *grid));
}

}  // namespace

CoarseHook CoarseFieldHook(const Device& device, const Geometry& fixed) {
  return {.workspace_bytes = ProduceFieldWorkspaceBytes(device, fixed), .call = nullptr};
}

int64_t RegistrationJobBytes(const Device& device, const RegistrationInput& input) {
  return std::max(AssessedWorkspaceBytes(device, input),
                  WindowBytes(input) + ProduceFieldWorkspaceBytes(device, input.fixed->geometry()));
}

absl::StatusOr<Claim> RegistrationClaim(const Device& device, const RegistrationInput& input,
                                        const FieldRequest* field) {
  Claim claim;
  claim.resident_bytes = RegistrationMemoryBytes(input);
  claim.workspace_bytes = RegistrationJobBytes(device, input);
  claim.transforms = 1;
  if (field == nullptr) return claim;
  absl::StatusOr<Geometry> grid = FieldGrid(*field, input.fixed->geometry());
  if (!grid.ok()) return Within("field", grid.status());
  // A control grid is the whole result.
  const bool is_whole = field->form == FieldForm::kControlPoints;
  const int64_t field_bytes = is_whole ? RegistrationResultBytes(input) : FieldBytes(*field, *grid);
  const Amounts stream = FieldStreamAmounts(device, *field, *grid, field_bytes, 0);
  claim.resident_bytes += stream.resident_bytes;
  claim.pinned_bytes += stream.pinned_bytes;
  return claim;
}

absl::StatusOr<RegistrationOutcome> RunRegistration(const ExecContext& ctx, const RegistrationTask& task,
                                                    JobControl& control, LatencyBreakdown& latency) {
  if (control.cancelled()) return control.CancelStatus();
  RegistrationOutcome outcome;
  INTRAWARP_ASSIGN_OR_RETURN(outcome.reservation, ReserveResult(task, latency));
  const Geometry& fixed = task.input.fixed->geometry();
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<char> memory, LeaseField(task.field, fixed, latency));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<char> coarse, LeaseField(task.coarse_field, fixed, latency));
  RegistrationInput input = task.input;
  if (task.coarse_field) {
    input.coarse->call = [&](const ExecContext& stage_ctx, const Transform& transform) {
      return SendCoarseField(stage_ctx, *task.coarse_field, transform, std::move(coarse), control, latency);
    };
  }
  absl::Status sent;  // of the field
  RegistrationHooks hooks;
  hooks.on_start = [&] {
    control.StartBudget(task.budget);
    return absl::OkStatus();
  };
  hooks.on_optimised = [&](const RegistrationResult& result) { return CheckOptimised(task, result, control); };
  hooks.on_transform = [&](const Transform& transform) {
    if (outcome.reservation != nullptr) outcome.reservation->ShrinkResident(transform.resident_bytes());
    if (task.field) sent = SendField(ctx, *task.field, transform, std::move(memory), latency);
    return sent.ok() && control.cancelled() ? control.CancelStatus() : sent;
  };
  const AssessOptions options{.scrutiny = task.scrutiny, .error_limit_mm = task.error_limit_mm, .error = task.error};
  absl::StatusOr<AssessedRegistration> assessed = RegisterAndAssess(ctx, input, options, hooks, &latency);
  if (!assessed.ok()) return sent.ok() && control.cancelled() ? control.CancelStatus() : assessed.status();
  outcome.result = std::move(assessed->result);
  outcome.quality = std::move(assessed->quality);
  return outcome;
}

absl::Status SendField(const ExecContext& ctx, const FieldOutput& output, const Transform& transform,
                       std::shared_ptr<char> memory, LatencyBreakdown& latency) {
  absl::StatusOr<Geometry> grid = FieldGrid(output.request, *transform.domain());
  if (!grid.ok()) return Within("field", grid.status());
  if (output.stream) return output.stream(ctx, transform, *grid);
  absl::StatusOr<FieldAnswer> answer = MakeFieldAnswer(ctx, output.request, transform, *grid);
  if (!answer.ok()) return Within("field", answer.status());
  const int64_t bytes = answer->header.total_bytes();
  if (memory == nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(memory, output.lease(bytes));
  }
  auto stream = std::make_shared<BulkBuffer>(std::move(memory), bytes);
  output.send(answer->header, stream);
  return ProduceField(ctx, transform, *answer, *stream, latency, output.advanced);
}

}  // namespace intrawarp::server
