// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/rpc_status.h"

#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"

namespace intrawarp::client {
namespace {

google::rpc::Status MakeStatus(int code, const std::string& message) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  return status;
}

void AddViolation(const std::string& field, const std::string& description, google::rpc::Status* status) {
  google::rpc::BadRequest bad_request;
  auto* violation = bad_request.add_field_violations();
  violation->set_field(field);
  violation->set_description(description);
  status->add_details()->PackFrom(bad_request);
}

void AddReason(const std::string& reason, google::rpc::Status* status) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("intrawarp");
  status->add_details()->PackFrom(info);
}

TEST(RpcStatusTest, OkStaysOk) {
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  EXPECT_TRUE(FromRpcStatus(google::rpc::Status()).ok());
}

TEST(RpcStatusTest, WithoutDetailsCodeAndMessageStay) {
  const absl::Status status = FromGrpcStatus(grpc::Status(grpc::StatusCode::NOT_FOUND, "volumes/a: no such volume"));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "volumes/a: no such volume");
}

TEST(RpcStatusTest, DetailsAddWhatTheMessageDoesNotSay) {
  google::rpc::Status proto = MakeStatus(3, "must be above 0");
  AddViolation("header.geometry.spacing", "must be above 0", &proto);
  AddReason("INVALID_GEOMETRY", &proto);
  const absl::Status status = FromRpcStatus(proto);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "must be above 0 (header.geometry.spacing) [INVALID_GEOMETRY]");
}

TEST(RpcStatusTest, NothingIsSaidTwice) {
  google::rpc::Status proto = MakeStatus(3, "spacing: must be above 0");
  AddViolation("spacing", "must be above 0", &proto);
  EXPECT_EQ(FromRpcStatus(proto).message(), "spacing: must be above 0");
  AddReason("INVALID_ARGUMENT", &proto);
  EXPECT_EQ(FromRpcStatus(proto).message(), "spacing: must be above 0");
}

TEST(RpcStatusTest, SeveralFields) {
  google::rpc::Status proto = MakeStatus(3, "bad header");
  AddViolation("spacing", "is 0", &proto);
  AddViolation("size", "is too large", &proto);
  EXPECT_EQ(FromRpcStatus(proto).message(), "bad header; spacing: is 0; size: is too large");
}

TEST(RpcStatusTest, ResourceAndRetry) {
  google::rpc::Status proto = MakeStatus(8, "queue is full");
  google::rpc::ResourceInfo resource;
  resource.set_resource_name("volumes/a");
  proto.add_details()->PackFrom(resource);
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  retry.mutable_retry_delay()->set_nanos(500000000);
  proto.add_details()->PackFrom(retry);
  EXPECT_EQ(FromRpcStatus(proto).message(), "queue is full (volumes/a) (try again in 1.5 s)");
}

TEST(RpcStatusTest, DetailsOfTheTransportAreRead) {
  google::rpc::Status proto = MakeStatus(5, "gone");
  AddReason("VOLUME_EVICTED", &proto);
  const absl::Status status =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::NOT_FOUND, "gone", proto.SerializeAsString()));
  EXPECT_EQ(status.message(), "gone [VOLUME_EVICTED]");
  ASSERT_TRUE(status.GetPayload(kRpcStatusPayload).has_value());
  EXPECT_EQ(std::string(*status.GetPayload(kRpcStatusPayload)), proto.SerializeAsString());
}

TEST(RpcStatusTest, DetailsThatAreRubbishAreIgnored) {
  const absl::Status status = FromGrpcStatus(grpc::Status(grpc::StatusCode::INTERNAL, "broken", "\xff\xff rubbish"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "broken");
  EXPECT_EQ(FromRpcStatus(MakeStatus(99, "odd")).code(), absl::StatusCode::kUnknown);
}

TEST(RpcStatusTest, TheDelayOfARetryIsReadFromAnyServer) {
  const auto delay = [](int64_t seconds, int32_t nanos) {
    google::rpc::Status proto = MakeStatus(14, "the device does not come back");
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(seconds);
    retry.mutable_retry_delay()->set_nanos(nanos);
    proto.add_details()->PackFrom(retry);
    return RetryDelayOf(FromRpcStatus(proto));
  };
  EXPECT_EQ(delay(5, 0), std::chrono::milliseconds(5000));
  EXPECT_EQ(delay(0, 250000000), std::chrono::milliseconds(250));
  EXPECT_EQ(delay(-5, -1), std::chrono::milliseconds(0));
  EXPECT_EQ(delay(int64_t{1} << 62, 0), std::chrono::milliseconds(1000000000));
  EXPECT_EQ(RetryDelayOf(FromRpcStatus(MakeStatus(14, "gone"))), std::nullopt);
  EXPECT_EQ(RetryDelayOf(absl::UnavailableError("gone")), std::nullopt);
}

}  // namespace
}  // namespace intrawarp::client
