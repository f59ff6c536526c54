// SPDX-License-Identifier: Apache-2.0
// What every RPC service needs beside its own work: statuses as clients see them, resource names, ids, stream counts.
//
// Errors inside the server are absl::Status. By convention a message about one field of the request begins with the
// field's path and ": " ("spacing: x is 0"), and a message about a resource holds its name ("volumes/liver"). From
// these ToGrpcStatus makes the typed details of a google.rpc.Status.
#ifndef INTRAWARP_SERVER_RPC_RPC_SUPPORT_H_
#define INTRAWARP_SERVER_RPC_RPC_SUPPORT_H_

#include <grpcpp/support/status.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"

namespace intrawarp::server {

// The domain of every ErrorInfo.
inline constexpr char kErrorDomain[] = "intrawarp";

// The same status with a reason (UPPER_SNAKE_CASE) for ErrorInfo; without one the reason is the code's name.
absl::Status WithReason(absl::Status status, absl::string_view reason);
// The reason that ErrorInfo will carry.
std::string Reason(const absl::Status& status);

// A message that begins with a field path gets `prefix` and a dot before it: Prefixed("size: ...", "header.geometry")
// is "header.geometry.size: ...". Other messages, codes that name no field, and OK stay as they are. Payloads are kept.
absl::Status Prefixed(const absl::Status& status, absl::string_view prefix);

// The same for any code and any message: the caller knows that it begins with a field's path.
absl::Status Within(absl::string_view path, const absl::Status& status);

// The path that a message begins with, empty when it begins with none.
absl::string_view FieldPath(absl::string_view message);

// The status with its details: ErrorInfo always; BadRequest for INVALID_ARGUMENT, FAILED_PRECONDITION and OUT_OF_RANGE
// messages that begin with a field path; ResourceInfo for NOT_FOUND and ALREADY_EXISTS messages that hold a resource
// name; RetryInfo (one second) for RESOURCE_EXHAUSTED.
google::rpc::Status ToRpcStatusProto(const absl::Status& status);
// The same for the trailers of an RPC: the binary google.rpc.Status is the error_details.
grpc::Status ToGrpcStatus(const absl::Status& status);

// [A-Za-z0-9][A-Za-z0-9._-]{0,62}
bool IsValidId(absl::string_view id);
// INVALID_ARGUMENT "{field}: ..." for another one.
absl::Status ValidateId(absl::string_view id, absl::string_view field);

std::string VolumeName(absl::string_view id);
std::string TransformName(absl::string_view id);
std::string MatrixName(absl::string_view id);
// The id in "volumes/{id}" ("transforms/{id}", "matrices/{id}"); INVALID_ARGUMENT "{field}: ..." when `name` is none.
absl::StatusOr<std::string> ParseVolumeName(absl::string_view name, absl::string_view field);
absl::StatusOr<std::string> ParseTransformName(absl::string_view name, absl::string_view field);
absl::StatusOr<std::string> ParseMatrixName(absl::string_view name, absl::string_view field);

// Random and time come in here, so that tests can replace them. Safe for concurrent use.
struct Seams {
  // 32 random bits.
  std::function<uint32_t()> random;
  std::function<std::chrono::steady_clock::time_point()> steady_now;
  std::function<std::chrono::system_clock::time_point()> system_now;
};
// std::random_device and the machine's clocks.
Seams SystemSeams();

// 16 random hexadecimal digits: an id that the server chooses.
std::string RandomId(const Seams& seams);

// Counts one live stream until it goes. Movable; thread-compatible.
class StreamCount {
 public:
  // RESOURCE_EXHAUSTED (reason TOO_MANY_STREAMS) when `max` are under way.
  static absl::StatusOr<StreamCount> Acquire(std::atomic<int64_t>& streams, int64_t max);

  StreamCount() = default;
  StreamCount(StreamCount&& other) noexcept : streams_(std::exchange(other.streams_, nullptr)) {}
  StreamCount& operator=(StreamCount&& other) noexcept {
    std::swap(streams_, other.streams_);
    return *this;
  }
  ~StreamCount() {
    if (streams_ != nullptr) streams_->fetch_sub(1);
  }

 private:
  explicit StreamCount(std::atomic<int64_t>& streams) : streams_(&streams) {}
  std::atomic<int64_t>* streams_ = nullptr;
};

// How many a page holds for a request's page_size: 100 for 0, at most 1000. INVALID_ARGUMENT "page_size: ..." below 0.
absl::StatusOr<int> PageSize(int32_t page_size);
// A page token is the id that the page before it ended with; it need not exist any more.
// INVALID_ARGUMENT "page_token: ..." for another string; empty: the first page.
absl::Status ValidatePageToken(absl::string_view token);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_RPC_SUPPORT_H_
