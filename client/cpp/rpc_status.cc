// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/rpc_status.h"

#include <grpcpp/support/status.h>

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/transport_message.h"
#include "google/rpc/error_details.pb.h"
#include "intrawarp/v1/error.pb.h"

namespace intrawarp::client {
namespace {

absl::StatusCode Canonical(int code) {
  const bool known =
      code >= static_cast<int>(absl::StatusCode::kOk) && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

// What a detail adds that the message does not say yet.
void AddField(const google::rpc::BadRequest::FieldViolation& violation, std::string* message) {
  const bool has_field = absl::StrContains(*message, violation.field());
  const bool has_description = absl::StrContains(*message, violation.description());
  if (has_field && has_description) return;
  if (has_description) {
    absl::StrAppend(message, " (", violation.field(), ")");
  } else {
    absl::StrAppend(message, message->empty() ? "" : "; ", violation.field(), ": ", violation.description());
  }
}

void AddResource(const google::rpc::ResourceInfo& info, std::string* message) {
  if (info.resource_name().empty() || absl::StrContains(*message, info.resource_name())) return;
  absl::StrAppend(message, " (", info.resource_name(), ")");
}

// Whether a reason says nothing beyond the code of its status.
bool RepeatsCode(const std::string& reason, absl::StatusCode code) {
  v1::ErrorReason known = v1::ERROR_REASON_UNSPECIFIED;
  v1::ErrorReason_Parse(reason, &known);
  switch (known) {
    case v1::INVALID_FIELD:
    case v1::NOT_IMPLEMENTED:
    case v1::RESOURCE_NOT_FOUND:
    case v1::RESOURCE_EXISTS:
    case v1::PRECONDITION_NOT_MET:
    case v1::DEADLINE_PASSED:
    case v1::CALL_CANCELLED:
    case v1::INTERNAL_ERROR:
      return true;
    default:
      return reason.empty() || reason == absl::StatusCodeToString(code);
  }
}

void AddReason(const google::rpc::ErrorInfo& info, absl::StatusCode code, std::string* message) {
  if (RepeatsCode(info.reason(), code)) return;
  if (absl::StrContains(*message, info.reason())) return;
  absl::StrAppend(message, " [", info.reason(), "]");
}

void AddRetry(const google::rpc::RetryInfo& info, std::string* message) {
  const double seconds =
      static_cast<double>(info.retry_delay().seconds()) + static_cast<double>(info.retry_delay().nanos()) * 1e-9;
  if (seconds > 0) absl::StrAppend(message, " (try again in ", seconds, " s)");
}

std::string MessageWithDetails(const google::rpc::Status& status) {
  std::string message = status.message();
  google::rpc::BadRequest bad_request;
  google::rpc::ResourceInfo resource;
  google::rpc::RetryInfo retry;
  google::rpc::ErrorInfo error;
  for (const auto& detail : status.details()) {
    if (detail.UnpackTo(&bad_request)) {
      for (const auto& violation : bad_request.field_violations()) AddField(violation, &message);
    } else if (detail.UnpackTo(&resource)) {
      AddResource(resource, &message);
    } else if (detail.UnpackTo(&retry)) {
      AddRetry(retry, &message);
    } else if (detail.UnpackTo(&error)) {
      AddReason(error, Canonical(status.code()), &message);
    }
  }
  return message;
}

}  // namespace

absl::Status FromRpcStatus(const google::rpc::Status& status) {
  if (status.code() == 0) return absl::OkStatus();
  absl::Status result(Canonical(status.code()), MessageWithDetails(status));
  result.SetPayload(kRpcStatusPayload, absl::Cord(status.SerializeAsString()));
  return result;
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status details;
  const bool has_details = !status.error_details().empty() && details.ParseFromString(status.error_details()) &&
                           details.code() == static_cast<int>(status.error_code());
  if (!has_details) {
    const bool unknown_method =
        status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty();
    if (unknown_method) return absl::UnimplementedError("the server does not have this call");
    const absl::StatusCode code = Canonical(status.error_code());
    // A proxy or a server of another kind answers UNIMPLEMENTED.
    const bool is_transports = code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kUnknown ||
                               code == absl::StatusCode::kUnimplemented;
    return absl::Status(code, is_transports ? PlainTransportMessage(status.error_message()) : status.error_message());
  }
  if (details.message().empty()) details.set_message(status.error_message());
  return FromRpcStatus(details);
}

std::optional<std::chrono::milliseconds> RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRpcStatusPayload);
  google::rpc::Status details;
  if (!payload || !details.ParseFromString(std::string(*payload))) return std::nullopt;
  google::rpc::RetryInfo retry;
  for (const auto& detail : details.details()) {
    if (!detail.UnpackTo(&retry)) continue;
    const google::protobuf::Duration& delay = retry.retry_delay();
    // Far beyond what anybody waits; a sum of milliseconds must not overflow.
    const int64_t seconds = std::clamp<int64_t>(delay.seconds(), 0, 1000000);
    return std::chrono::milliseconds(1000 * seconds + std::clamp(delay.nanos(), 0, 999999999) / 1000000);
  }
  return std::nullopt;
}

std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRpcStatusPayload);
  google::rpc::Status details;
  if (!payload || !details.ParseFromString(std::string(*payload))) return "";
  google::rpc::ErrorInfo info;
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

}  // namespace intrawarp::client
