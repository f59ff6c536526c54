// SPDX-License-Identifier: Apache-2.0
#include "server/operation/operation_messages.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/status_macros.h"
#include "server/base/seams.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::system_clock;

// Until 2255, so that times fit the clock and their differences do.
constexpr int64_t kEndOfTime = 9'000'000'000;

bool IsSound(const google::protobuf::Timestamp& time) {
  return time.seconds() >= 0 && time.seconds() < kEndOfTime && time.nanos() >= 0 && time.nanos() < 1'000'000'000;
}

bool HasSoundTimes(const v1::Operation& message) {
  return IsSound(message.create_time()) && IsSound(message.start_time()) && IsSound(message.end_time()) &&
         IsSound(message.expire_time());
}

std::optional<system_clock::time_point> TimeIn(bool is_set, const google::protobuf::Timestamp& time) {
  if (!is_set) return std::nullopt;
  const auto since_epoch = std::chrono::seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos());
  return system_clock::time_point(std::chrono::duration_cast<system_clock::duration>(since_epoch));
}

bool IsKnown(const v1::Operation& message) {
  return v1::OperationKind_IsValid(message.kind()) && message.kind() != v1::OPERATION_KIND_UNSPECIFIED &&
         v1::OperationState_IsValid(message.state()) && message.state() != v1::OPERATION_STATE_UNSPECIFIED;
}

}  // namespace

v1::Operation OperationToProto(const Operation& operation) {
  v1::Operation message;
  message.set_name(OperationName(operation.key.id));
  message.set_kind(static_cast<v1::OperationKind>(operation.kind));
  message.set_state(static_cast<v1::OperationState>(operation.state));
  const OperationProgress& progress = operation.progress;
  if (progress != OperationProgress()) {
    message.mutable_progress()->set_step(progress.step);
    message.mutable_progress()->set_done(progress.done);
    message.mutable_progress()->set_total(progress.total);
    message.mutable_progress()->set_unit(progress.unit);
  }
  *message.mutable_create_time() = TimestampToProto(operation.create_time);
  if (operation.start_time) *message.mutable_start_time() = TimestampToProto(*operation.start_time);
  if (operation.end_time) *message.mutable_end_time() = TimestampToProto(*operation.end_time);
  if (operation.expiry) *message.mutable_expire_time() = TimestampToProto(operation.expiry->time);
  if (operation.state == OperationState::kFailed) *message.mutable_error() = operation.error;
  for (const std::string& result : operation.results) message.add_results(result);
  message.set_owner(operation.key.owner);
  return message;
}

absl::StatusOr<Operation> OperationFromProto(const v1::Operation& message, const std::string& fingerprint,
                                             const Seams& seams) {
  const absl::StatusOr<std::string> id = ParseOperationName(message.name(), "name");
  if (!id.ok() || !IsKnown(message) || !HasSoundTimes(message)) {
    return absl::DataLossError("an operation in the catalogue is damaged");
  }
  Operation operation;
  operation.kind = static_cast<OperationKind>(message.kind());
  operation.state = static_cast<OperationState>(message.state());
  operation.key = {*id, fingerprint, message.owner()};
  const v1::OperationProgress& progress = message.progress();
  operation.progress = {progress.step(), progress.done(), progress.total(), progress.unit()};
  operation.create_time = TimeIn(true, message.create_time()).value();
  operation.start_time = TimeIn(message.has_start_time(), message.start_time());
  operation.end_time = TimeIn(message.has_end_time(), message.end_time());
  if (const auto end = TimeIn(message.has_expire_time(), message.expire_time())) {
    const auto left = std::chrono::duration_cast<std::chrono::steady_clock::duration>(*end - seams.system_now());
    operation.expiry = Expiry{*end, seams.steady_now() + left};
  }
  operation.error = message.error();
  operation.results.assign(message.results().begin(), message.results().end());
  return operation;
}

}  // namespace intrawarp::server
