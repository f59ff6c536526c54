// SPDX-License-Identifier: Apache-2.0
#include "tests/server/status_details.h"

#include <google/protobuf/any.pb.h>

#include "google/rpc/error_details.pb.h"

namespace intrawarp::server {
namespace {

google::rpc::Status ProtoOf(const grpc::Status& status) {
  google::rpc::Status proto;
  EXPECT_TRUE(proto.ParseFromString(status.error_details())) << status.error_message();
  return proto;
}

}  // namespace

std::string FieldOf(const google::rpc::Status& status) {
  google::rpc::BadRequest bad_request;
  for (const auto& detail : status.details()) {
    if (detail.UnpackTo(&bad_request)) return bad_request.field_violations(0).field();
  }
  return "";
}

std::string FieldOf(const grpc::Status& status) {
  const google::rpc::Status proto = ProtoOf(status);
  ReasonOf(proto);
  return FieldOf(proto);
}

v1::ErrorReason ReasonOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) detail.UnpackTo(&info);
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  EXPECT_TRUE(v1::ErrorReason_Parse(info.reason(), &reason) && reason != v1::ERROR_REASON_UNSPECIFIED)
      << "'" << info.reason() << "' is not in error.proto: " << status.message();
  return reason;
}

v1::ErrorReason ReasonOf(const grpc::Status& status) { return ReasonOf(ProtoOf(status)); }

ErrorDetails DetailsOf(const grpc::Status& status) {
  ErrorDetails details;
  const google::rpc::Status proto = ProtoOf(status);
  EXPECT_EQ(proto.code(), static_cast<int>(status.error_code()));
  for (const google::protobuf::Any& any : proto.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad;
    google::rpc::ResourceInfo resource;
    if (any.UnpackTo(&info)) {
      EXPECT_EQ(info.domain(), "intrawarp");
      details.reason = info.reason();
      v1::ErrorReason reason;
      EXPECT_TRUE(v1::ErrorReason_Parse(info.reason(), &reason)) << info.reason() << " is not in error.proto";
    }
    if (any.UnpackTo(&bad)) details.field = bad.field_violations(0).field();
    if (any.UnpackTo(&resource)) details.resource = resource.resource_name();
    if (any.Is<google::rpc::RetryInfo>()) details.retry = true;
  }
  EXPECT_NE(details.reason, "") << status.error_message();
  return details;
}

}  // namespace intrawarp::server
