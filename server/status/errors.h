// SPDX-License-Identifier: Apache-2.0
// Errors as clients see them (proto/intrawarp/v1/error.proto).
//
// Errors inside the server are absl::Status. Their payloads carry the facts: the field at fault
// (engine/base/field_error.h), the reason with its metadata (WithReason), the resource (ResourceError).
// ToRpcStatusProto makes the typed details of a google.rpc.Status from them; nothing reads messages. No gRPC here:
// server/rpc/grpc_status.h makes what the transport sends. Pure functions.
#ifndef INTRAWARP_SERVER_STATUS_ERRORS_H_
#define INTRAWARP_SERVER_STATUS_ERRORS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/field_error.h"
#include "google/rpc/status.pb.h"
#include "intrawarp/v1/error.pb.h"

namespace intrawarp::server {

// The domain of every ErrorInfo.
inline constexpr char kErrorDomain[] = "intrawarp";

// The metadata of an ErrorInfo. error.proto lists the keys of each reason.
using ErrorMetadata = std::map<std::string, std::string>;
ErrorMetadata InUse(int64_t in_use, int64_t capacity);
ErrorMetadata InUse(int64_t asked, int64_t in_use, int64_t capacity);

// The same error with a reason and its metadata, in place of one that it had. OK stays OK.
absl::Status WithReason(const absl::Status& status, v1::ErrorReason reason, const ErrorMetadata& metadata = {});
// The same error with the reason and no metadata, unless it has a reason already.
absl::Status WithDefaultReason(const absl::Status& status, v1::ErrorReason reason);
// The reason that ErrorInfo will carry: WithReason's, otherwise the one that stands for the code.
v1::ErrorReason ReasonOf(const absl::Status& status);

// INVALID_ARGUMENT for the field at `path`.
absl::Status InvalidField(absl::string_view path, absl::string_view description);

// RESOURCE_NOT_FOUND and RESOURCE_EXISTS for the resource `name`, "volumes/{id}", say.
absl::Status NotFound(absl::string_view name);
absl::Status AlreadyExists(absl::string_view name);

// DATA_LOSS OBJECT_DAMAGED for the resource `name`.
absl::Status ObjectDamaged(absl::string_view name, absl::string_view why);

// FAILED_PRECONDITION EXCEEDS_CAPACITY: `asked` is more than there is of `resource` ("pinned_memory") in all.
absl::Status ExceedsCapacity(absl::string_view resource, int64_t asked, int64_t capacity);

// The status with its details: ErrorInfo always, BadRequest for an error with a field, ResourceInfo for one with a
// resource, RetryInfo for the reasons that pass by waiting.
google::rpc::Status ToRpcStatusProto(const absl::Status& status);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STATUS_ERRORS_H_
