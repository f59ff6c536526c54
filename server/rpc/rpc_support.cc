// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc_support.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/rpc/error_details.pb.h"

namespace intrawarp::server {
namespace {

constexpr char kReasonUrl[] = "intrawarp/reason";
constexpr int kMaxIdLength = 63;
constexpr size_t kMaxFieldPathLength = 128;

struct ResourceKind {
  const char* collection;  // with the slash
  const char* type;
};
constexpr ResourceKind kResourceKinds[] = {{"volumes/", "intrawarp.v1.Volume"},
                                           {"transforms/", "intrawarp.v1.Transform"},
                                           {"matrices/", "intrawarp.v1.SparseMatrix"}};

bool IsIdChar(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; }

bool NamesField(absl::StatusCode code) {
  return code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kFailedPrecondition ||
         code == absl::StatusCode::kOutOfRange;
}

absl::StatusOr<std::string> ParseName(absl::string_view name, absl::string_view collection, absl::string_view field) {
  absl::string_view id = name;
  if (!absl::StartsWith(name, collection)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": must be \"", collection, "{id}\""));
  }
  id.remove_prefix(collection.size());
  if (!IsValidId(id)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": the id in \"", collection, "{id}\" must match [A-Za-z0-9][A-Za-z0-9._-]{0,62}"));
  }
  return std::string(id);
}

void AddDetail(const google::protobuf::Message& detail, google::rpc::Status* to) {
  to->add_details()->PackFrom(detail);
}

void AddBadRequest(absl::string_view message, google::rpc::Status* to) {
  const absl::string_view path = FieldPath(message);
  if (path.empty()) return;
  google::rpc::BadRequest detail;
  auto* violation = detail.add_field_violations();
  violation->set_field(std::string(path));
  violation->set_description(std::string(message.substr(path.size() + 2)));
  AddDetail(detail, to);
}

void AddResourceInfo(absl::string_view message, google::rpc::Status* to) {
  for (const ResourceKind& kind : kResourceKinds) {
    const absl::string_view collection = kind.collection;
    const size_t begin = message.find(collection);
    if (begin == absl::string_view::npos) continue;
    size_t end = begin + collection.size();
    while (end < message.size() && IsIdChar(message[end])) ++end;
    google::rpc::ResourceInfo detail;
    detail.set_resource_type(kind.type);
    detail.set_resource_name(std::string(message.substr(begin, end - begin)));
    detail.set_description(std::string(message));
    AddDetail(detail, to);
    return;
  }
}

}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  status.SetPayload(kReasonUrl, absl::Cord(reason));
  return status;
}

std::string Reason(const absl::Status& status) {
  if (auto reason = status.GetPayload(kReasonUrl)) return std::string(*reason);
  return absl::StatusCodeToString(status.code());
}

absl::string_view FieldPath(absl::string_view message) {
  if (message.empty() || !absl::ascii_islower(message[0])) return {};
  for (size_t i = 1; i < message.size() && i <= kMaxFieldPathLength; ++i) {
    const char c = message[i];
    if (c == ':') return i + 1 < message.size() && message[i + 1] == ' ' ? message.substr(0, i) : absl::string_view();
    const bool path_char =
        absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '.' || c == '[' || c == ']';
    if (!path_char) return {};
  }
  return {};
}

absl::Status Within(absl::string_view path, const absl::Status& status) {
  absl::Status within(status.code(), absl::StrCat(path, ".", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { within.SetPayload(url, payload); });
  return within;
}

absl::Status Prefixed(const absl::Status& status, absl::string_view prefix) {
  if (!NamesField(status.code()) || FieldPath(status.message()).empty()) return status;
  return Within(prefix, status);
}

google::rpc::Status ToRpcStatusProto(const absl::Status& status) {
  google::rpc::Status to;
  to.set_code(static_cast<int>(status.code()));
  if (status.ok()) return to;
  to.set_message(std::string(status.message()));
  google::rpc::ErrorInfo info;
  info.set_reason(Reason(status));
  info.set_domain(kErrorDomain);
  AddDetail(info, &to);
  if (NamesField(status.code())) AddBadRequest(status.message(), &to);
  if (absl::IsNotFound(status) || absl::IsAlreadyExists(status)) AddResourceInfo(status.message(), &to);
  if (absl::IsResourceExhausted(status)) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(1);
    AddDetail(retry, &to);
  }
  return to;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      ToRpcStatusProto(status).SerializeAsString());
}

bool IsValidId(absl::string_view id) {
  if (id.empty() || id.size() > kMaxIdLength || !absl::ascii_isalnum(id[0])) return false;
  for (char c : id) {
    if (!IsIdChar(c)) return false;
  }
  return true;
}

absl::Status ValidateId(absl::string_view id, absl::string_view field) {
  if (IsValidId(id)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": must match [A-Za-z0-9][A-Za-z0-9._-]{0,62}"));
}

std::string VolumeName(absl::string_view id) { return absl::StrCat("volumes/", id); }
std::string TransformName(absl::string_view id) { return absl::StrCat("transforms/", id); }
std::string MatrixName(absl::string_view id) { return absl::StrCat("matrices/", id); }

absl::StatusOr<std::string> ParseVolumeName(absl::string_view name, absl::string_view field) {
  return ParseName(name, "volumes/", field);
}

absl::StatusOr<std::string> ParseTransformName(absl::string_view name, absl::string_view field) {
  return ParseName(name, "transforms/", field);
}

absl::StatusOr<std::string> ParseMatrixName(absl::string_view name, absl::string_view field) {
  return ParseName(name, "matrices/", field);
}

Seams SystemSeams() {
  return {[] {
            // One per thread: std::random_device itself makes no promise about concurrent use.
            thread_local std::random_device device;
            return static_cast<uint32_t>(device());
          },
          [] { return std::chrono::steady_clock::now(); }, [] { return std::chrono::system_clock::now(); }};
}

std::string RandomId(const Seams& seams) {
  const uint32_t high = seams.random();
  const uint32_t low = seams.random();
  return absl::StrFormat("%08x%08x", high, low);
}

absl::StatusOr<StreamCount> StreamCount::Acquire(std::atomic<int64_t>& streams, int64_t max) {
  StreamCount count(streams);
  if (streams.fetch_add(1) >= max) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(max, " streams are under way, which is the limit")),
                      "TOO_MANY_STREAMS");
  }
  return count;
}

absl::StatusOr<int> PageSize(int32_t page_size) {
  constexpr int kDefault = 100;
  constexpr int kMax = 1000;
  if (page_size < 0) return absl::InvalidArgumentError("page_size: must not be negative");
  if (page_size == 0) return kDefault;
  return page_size < kMax ? page_size : kMax;
}

absl::Status ValidatePageToken(absl::string_view token) {
  if (token.empty() || IsValidId(token)) return absl::OkStatus();
  return absl::InvalidArgumentError("page_token: is not one that this server gave");
}

}  // namespace intrawarp::server
