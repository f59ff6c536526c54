// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/grpc_status.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/status/errors.h"

namespace intrawarp::server {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      ToRpcStatusProto(status).SerializeAsString());
}

std::string ErrorReasonIn(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (status.error_details().empty() || !details.ParseFromString(status.error_details())) return "";
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

AuditedOutcome OutcomeOf(const grpc::Status& status) { return {CodeName(status.error_code()), ErrorReasonIn(status)}; }

}  // namespace intrawarp::server
