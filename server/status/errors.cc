// SPDX-License-Identifier: Apache-2.0
#include "server/status/errors.h"

#include <chrono>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/schedule/retry_after.h"
#include "google/rpc/error_details.pb.h"

namespace intrawarp::server {
namespace {

// The payload's bytes are a google.rpc.ErrorInfo.
constexpr char kErrorInfoUrl[] = "intrawarp/error_info";
// The payload's bytes are the name of a resource.
constexpr char kResourceUrl[] = "intrawarp/resource";

struct ResourceKind {
  const char* collection;  // with the slash
  const char* type;
};
constexpr ResourceKind kResourceKinds[] = {{"volumes/", "intrawarp.v1.Volume"},
                                           {"transforms/", "intrawarp.v1.Transform"},
                                           {"sparseMatrices/", "intrawarp.v1.SparseMatrix"},
                                           {"sessions/", "intrawarp.v1.Session"},
                                           {"operations/", "intrawarp.v1.Operation"}};

google::rpc::ErrorInfo InfoOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  if (auto payload = status.GetPayload(kErrorInfoUrl)) info.ParseFromString(std::string(*payload));
  return info;
}

// The reason of an error that nobody gave one.
v1::ErrorReason DefaultReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return v1::INVALID_FIELD;
    case absl::StatusCode::kUnimplemented:
      return v1::NOT_IMPLEMENTED;
    case absl::StatusCode::kNotFound:
      return v1::RESOURCE_NOT_FOUND;
    case absl::StatusCode::kAlreadyExists:
      return v1::RESOURCE_EXISTS;
    case absl::StatusCode::kFailedPrecondition:
      return v1::PRECONDITION_NOT_MET;
    case absl::StatusCode::kDeadlineExceeded:
      return v1::DEADLINE_PASSED;
    case absl::StatusCode::kCancelled:
      return v1::CALL_CANCELLED;
    case absl::StatusCode::kResourceExhausted:
      return v1::DEVICE_MEMORY;
    case absl::StatusCode::kOutOfRange:
      return v1::CHUNK_OUT_OF_ORDER;
    case absl::StatusCode::kUnavailable:
      return v1::DEVICE_LOST;
    case absl::StatusCode::kUnauthenticated:
      return v1::NOT_AUTHENTICATED;
    case absl::StatusCode::kPermissionDenied:
      return v1::ROLE_MISSING;
    default:
      return v1::INTERNAL_ERROR;
  }
}

// Seconds after which a retry may succeed where nothing predicts a time; 0: waiting does not help.
int RetrySeconds(v1::ErrorReason reason) {
  switch (reason) {
    case v1::REQUEST_IN_PROGRESS:
    case v1::RESIDENT_MEMORY:
    case v1::PINNED_MEMORY:
    case v1::WORKSPACE_MEMORY:
    case v1::TOO_MANY_SESSIONS:
    case v1::TOO_MANY_OPERATIONS:
    case v1::DEVICE_MEMORY:
    case v1::MULTIPLY_MEMORY:
    case v1::QUEUE_FULL:
    case v1::TOO_MANY_STREAMS:
    case v1::TOO_MANY_UPLOADS:
    case v1::TOO_MANY_CALLS:
    case v1::CALL_RATE:
    case v1::MESSAGE_RATE:
      return 1;
    case v1::SERVER_STOPPING:
    case v1::SERVER_RESTARTED:
    case v1::DEVICE_LOST:
    case v1::DEVICE_HUNG:
    case v1::STATE_UNAVAILABLE:
    case v1::AUDIT_UNAVAILABLE:
    case v1::ARCHIVE_UNAVAILABLE:
    case v1::ARCHIVE_TOO_SLOW:
    case v1::SPOOL_FULL:
    case v1::SPOOL_UNAVAILABLE:
      return 5;
    default:
      return 0;
  }
}

// What the scheduler predicts, otherwise a fixed time.
std::chrono::nanoseconds RetryDelay(const absl::Status& status, v1::ErrorReason reason) {
  return RetryAfterOf(status).value_or(std::chrono::seconds(RetrySeconds(reason)));
}

void AddDetail(const google::protobuf::Message& detail, google::rpc::Status* to) {
  to->add_details()->PackFrom(detail);
}

void AddBadRequest(const absl::Status& status, google::rpc::Status* to) {
  const std::string path = FieldOf(status);
  if (path.empty()) return;
  absl::string_view description = status.message();
  absl::ConsumePrefix(&description, absl::StrCat(path, ": "));
  google::rpc::BadRequest detail;
  auto* violation = detail.add_field_violations();
  violation->set_field(path);
  violation->set_description(std::string(description));
  AddDetail(detail, to);
}

void AddResourceInfo(const absl::Status& status, google::rpc::Status* to) {
  const auto payload = status.GetPayload(kResourceUrl);
  if (!payload) return;
  google::rpc::ResourceInfo detail;
  detail.set_resource_name(std::string(*payload));
  for (const ResourceKind& kind : kResourceKinds) {
    if (absl::StartsWith(detail.resource_name(), kind.collection)) detail.set_resource_type(kind.type);
  }
  detail.set_description(std::string(status.message()));
  AddDetail(detail, to);
}

absl::Status ResourceError(absl::StatusCode code, absl::string_view name, absl::string_view message) {
  absl::Status status(code, message);
  status.SetPayload(kResourceUrl, absl::Cord(name));
  return status;
}

}  // namespace

ErrorMetadata InUse(int64_t in_use, int64_t capacity) {
  return {{"in_use", absl::StrCat(in_use)}, {"capacity", absl::StrCat(capacity)}};
}

ErrorMetadata InUse(int64_t asked, int64_t in_use, int64_t capacity) {
  ErrorMetadata metadata = InUse(in_use, capacity);
  metadata["asked"] = absl::StrCat(asked);
  return metadata;
}

absl::Status WithReason(const absl::Status& status, v1::ErrorReason reason, const ErrorMetadata& metadata) {
  google::rpc::ErrorInfo info;
  info.set_reason(v1::ErrorReason_Name(reason));
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[key] = value;
  absl::Status with_reason = status;
  with_reason.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return with_reason;
}

absl::Status WithDefaultReason(const absl::Status& status, v1::ErrorReason reason) {
  return status.GetPayload(kErrorInfoUrl) ? status : WithReason(status, reason);
}

v1::ErrorReason ReasonOf(const absl::Status& status) {
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  return v1::ErrorReason_Parse(InfoOf(status).reason(), &reason) ? reason : DefaultReason(status.code());
}

absl::Status InvalidField(absl::string_view path, absl::string_view description) {
  return FieldError(absl::StatusCode::kInvalidArgument, path, description);
}

absl::Status NotFound(absl::string_view name) {
  return ResourceError(absl::StatusCode::kNotFound, name, absl::StrCat("there is no ", name));
}

absl::Status AlreadyExists(absl::string_view name) {
  return ResourceError(absl::StatusCode::kAlreadyExists, name, absl::StrCat(name, " exists already"));
}

absl::Status ObjectDamaged(absl::string_view name, absl::string_view why) {
  const std::string message = absl::StrCat(name, " was kept, and cannot be loaded: ", why);
  return WithReason(ResourceError(absl::StatusCode::kDataLoss, name, message), v1::OBJECT_DAMAGED);
}

absl::Status ExceedsCapacity(absl::string_view resource, int64_t asked, int64_t capacity) {
  const std::string message = absl::StrCat(resource, ": ", asked, " bytes asked, there are ", capacity);
  return WithReason(
      absl::FailedPreconditionError(message), v1::EXCEEDS_CAPACITY,
      {{"resource", std::string(resource)}, {"asked", absl::StrCat(asked)}, {"capacity", absl::StrCat(capacity)}});
}

google::rpc::Status ToRpcStatusProto(const absl::Status& status) {
  google::rpc::Status to;
  to.set_code(static_cast<int>(status.code()));
  if (status.ok()) return to;
  to.set_message(std::string(status.message()));
  const v1::ErrorReason reason = ReasonOf(status);
  google::rpc::ErrorInfo info = InfoOf(status);
  info.set_reason(v1::ErrorReason_Name(reason));
  info.set_domain(kErrorDomain);
  AddDetail(info, &to);
  AddBadRequest(status, &to);
  AddResourceInfo(status, &to);
  if (const std::chrono::nanoseconds delay = RetryDelay(status, reason); delay.count() > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(delay.count() / 1'000'000'000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay.count() % 1'000'000'000));
    AddDetail(retry, &to);
  }
  return to;
}

}  // namespace intrawarp::server
