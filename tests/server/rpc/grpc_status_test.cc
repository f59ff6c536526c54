// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/grpc_status.h"

#include <gtest/gtest.h>

#include "google/rpc/status.pb.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

TEST(ToGrpcStatus, OkHasNoDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(ToGrpcStatus(absl::OkStatus()).error_details(), "");
}

TEST(ToGrpcStatus, CarriesTheProtoInItsDetails) {
  const absl::Status error = InvalidField("spacing", "x is 0");
  const grpc::Status status = ToGrpcStatus(error);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "spacing: x is 0");
  EXPECT_EQ(status.error_details(), ToRpcStatusProto(error).SerializeAsString());
}

TEST(OutcomeOf, TellsTheCodeAndTheReason) {
  const AuditedOutcome ok = OutcomeOf(grpc::Status::OK);
  EXPECT_EQ(ok.code, "OK");
  EXPECT_EQ(ok.reason, "");
  const AuditedOutcome error =
      OutcomeOf(ToGrpcStatus(WithReason(absl::ResourceExhaustedError("full"), v1::QUEUE_FULL)));
  EXPECT_EQ(error.code, "RESOURCE_EXHAUSTED");
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_EQ(OutcomeOf(grpc::Status(grpc::StatusCode::UNAVAILABLE, "from gRPC itself")).reason, "");
  EXPECT_EQ(OutcomeOf(grpc::Status(grpc::StatusCode::UNAVAILABLE, "", "garbage")).reason, "");
}

}  // namespace
}  // namespace intrawarp::server
