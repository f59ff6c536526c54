// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc_support.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"

namespace intrawarp::server {
namespace {

template <typename Detail>
std::optional<Detail> FindDetail(const google::rpc::Status& status) {
  std::optional<Detail> found;
  for (const auto& any : status.details()) {
    Detail detail;
    if (!any.UnpackTo(&detail)) continue;
    EXPECT_FALSE(found.has_value()) << "a detail type appears twice";
    found = detail;
  }
  return found;
}

TEST(ToGrpcStatus, OkHasNoDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(ToGrpcStatus(absl::OkStatus()).error_details(), "");
}

TEST(ToGrpcStatus, InvalidArgumentNamesTheField) {
  const grpc::Status status = ToGrpcStatus(Prefixed(absl::InvalidArgumentError("spacing: x is 0"), "header.geometry"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "header.geometry.spacing: x is 0");
  google::rpc::Status proto;
  ASSERT_TRUE(proto.ParseFromString(status.error_details()));
  EXPECT_EQ(proto.code(), 3);
  EXPECT_EQ(proto.message(), status.error_message());
  const auto info = FindDetail<google::rpc::ErrorInfo>(proto);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(info->domain(), "intrawarp");
  const auto bad = FindDetail<google::rpc::BadRequest>(proto);
  ASSERT_TRUE(bad);
  ASSERT_EQ(bad->field_violations_size(), 1);
  EXPECT_EQ(bad->field_violations(0).field(), "header.geometry.spacing");
  EXPECT_EQ(bad->field_violations(0).description(), "x is 0");
}

TEST(ToGrpcStatus, OnlyMessagesThatBeginWithAPathNameAField) {
  for (const char* message : {"no path here: at all", "Capital: no", "", ":", "a:b", "trailing:", "9lives: no"}) {
    EXPECT_FALSE(FindDetail<google::rpc::BadRequest>(ToRpcStatusProto(absl::InvalidArgumentError(message)))) << message;
  }
  for (const char* message : {"a: b", "stages[2].method: bad", "header.geometry.size: x"}) {
    EXPECT_TRUE(FindDetail<google::rpc::BadRequest>(ToRpcStatusProto(absl::OutOfRangeError(message)))) << message;
  }
  EXPECT_FALSE(FindDetail<google::rpc::BadRequest>(ToRpcStatusProto(absl::InternalError("a: b"))));
}

TEST(ToGrpcStatus, NotFoundNamesTheResource) {
  const auto info = FindDetail<google::rpc::ResourceInfo>(
      ToRpcStatusProto(absl::NotFoundError("options.fixed_mask: there is no volumes/liver-1.a; upload it")));
  ASSERT_TRUE(info);
  EXPECT_EQ(info->resource_name(), "volumes/liver-1.a");
  EXPECT_EQ(info->resource_type(), "intrawarp.v1.Volume");
  const auto transform =
      FindDetail<google::rpc::ResourceInfo>(ToRpcStatusProto(absl::AlreadyExistsError("transforms/t is taken")));
  ASSERT_TRUE(transform);
  EXPECT_EQ(transform->resource_name(), "transforms/t");
}

TEST(ToGrpcStatus, ReasonTravelsInAPayload) {
  const absl::Status status = WithReason(absl::ResourceExhaustedError("full"), "QUEUE_FULL");
  EXPECT_EQ(Reason(status), "QUEUE_FULL");
  const google::rpc::Status proto = ToRpcStatusProto(status);
  EXPECT_EQ(FindDetail<google::rpc::ErrorInfo>(proto)->reason(), "QUEUE_FULL");
  ASSERT_TRUE(FindDetail<google::rpc::RetryInfo>(proto));
  EXPECT_GT(FindDetail<google::rpc::RetryInfo>(proto)->retry_delay().seconds(), 0);
}

TEST(Prefixed, KeepsPayloadsAndOtherStatuses) {
  const absl::Status status = Prefixed(WithReason(absl::InvalidArgumentError("size: 0"), "R"), "g");
  EXPECT_EQ(status.message(), "g.size: 0");
  EXPECT_EQ(Reason(status), "R");
  EXPECT_EQ(Prefixed(absl::InternalError("size: 0"), "g").message(), "size: 0");
  EXPECT_EQ(Prefixed(absl::InvalidArgumentError("no path"), "g").message(), "no path");
  EXPECT_TRUE(Prefixed(absl::OkStatus(), "g").ok());
}

TEST(Names, RoundTripAndRefusal) {
  EXPECT_EQ(*ParseVolumeName(VolumeName("a.B_c-9"), "name"), "a.B_c-9");
  EXPECT_EQ(*ParseTransformName(TransformName("0"), "name"), "0");
  const std::string longest(63, 'x');
  EXPECT_EQ(*ParseVolumeName("volumes/" + longest, "name"), longest);
  const std::vector<std::string> bad = {"",
                                        "liver",
                                        "volumes/",
                                        "volumes/-a",
                                        "volumes/.a",
                                        "volumes/a/b",
                                        "volumes/a b",
                                        "volumes/" + longest + "x",
                                        "transforms/a",
                                        "volumes/a\n",
                                        "/volumes/a"};
  for (const std::string& name : bad) {
    const auto id = ParseVolumeName(name, "fixed");
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(FieldPath(id.status().message()), "fixed") << name;
  }
  EXPECT_EQ(ParseTransformName("volumes/a", "name").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RandomId, ComesFromTheSeam) {
  Seams seams = SystemSeams();
  EXPECT_TRUE(IsValidId(RandomId(seams)));
  EXPECT_NE(RandomId(seams), RandomId(seams));
  uint32_t next = 0xab;
  seams.random = [&next] { return next++; };
  EXPECT_EQ(RandomId(seams), "000000ab000000ac");
}

TEST(StreamCount, CountsAndRefuses) {
  std::atomic<int64_t> streams{0};
  {
    auto a = StreamCount::Acquire(streams, 2);
    auto b = StreamCount::Acquire(streams, 2);
    ASSERT_TRUE(a.ok() && b.ok());
    const auto c = StreamCount::Acquire(streams, 2);
    EXPECT_EQ(c.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Reason(c.status()), "TOO_MANY_STREAMS");
    EXPECT_EQ(streams.load(), 2);
    StreamCount moved = *std::move(a);
    EXPECT_EQ(streams.load(), 2);
  }
  EXPECT_EQ(streams.load(), 0);
}

TEST(Pages, SizesAndTokens) {
  EXPECT_EQ(*PageSize(0), 100);
  EXPECT_EQ(*PageSize(7), 7);
  EXPECT_EQ(*PageSize(5000), 1000);
  EXPECT_EQ(FieldPath(PageSize(-1).status().message()), "page_size");
  EXPECT_TRUE(ValidatePageToken("").ok());
  EXPECT_TRUE(ValidatePageToken("abc").ok());
  EXPECT_EQ(FieldPath(ValidatePageToken("../x").message()), "page_token");
}

}  // namespace
}  // namespace intrawarp::server
