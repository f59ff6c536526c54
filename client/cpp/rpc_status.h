// SPDX-License-Identifier: Apache-2.0
// From the status of an RPC to absl::Status, with what google.rpc details say folded into one readable message.
// Free functions; thread-safe.
#ifndef INTRAWARP_CLIENT_CPP_RPC_STATUS_H_
#define INTRAWARP_CLIENT_CPP_RPC_STATUS_H_

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace grpc {
class Status;
}

namespace intrawarp::client {

// The payload of a returned status under which the serialized google.rpc.Status lies, where the server sent one.
inline constexpr char kRpcStatusPayload[] = "type.googleapis.com/google.rpc.Status";

// Same code; the message is followed by what the details add to it: fields at fault, resource, reason, when to try
// again: "spacing: must be above 0 (header.geometry.spacing) [INVALID_GEOMETRY]".
absl::Status FromRpcStatus(const google::rpc::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// After which time the server says that a repetition may succeed (google.rpc.RetryInfo); nothing where it says none.
std::optional<std::chrono::milliseconds> RetryDelayOf(const absl::Status& status);

// The reason that the server gave, "" where it gave none: the status then comes from the transport, a proxy, or the
// client itself.
std::string ReasonOf(const absl::Status& status);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_RPC_STATUS_H_
