// SPDX-License-Identifier: Apache-2.0
#include "server/status/errors.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "engine/base/field_error.h"
#include "engine/schedule/retry_after.h"
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

TEST(ToRpcStatusProto, OkHasNoDetails) { EXPECT_EQ(ToRpcStatusProto(absl::OkStatus()).details_size(), 0); }

TEST(ToRpcStatusProto, NamesTheField) {
  const google::rpc::Status proto = ToRpcStatusProto(Within("header.geometry", InvalidField("spacing", "x is 0")));
  EXPECT_EQ(proto.code(), 3);
  EXPECT_EQ(proto.message(), "header.geometry.spacing: x is 0");
  const auto info = FindDetail<google::rpc::ErrorInfo>(proto);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->reason(), "INVALID_FIELD");
  EXPECT_EQ(info->domain(), "intrawarp");
  const auto bad = FindDetail<google::rpc::BadRequest>(proto);
  ASSERT_TRUE(bad);
  ASSERT_EQ(bad->field_violations_size(), 1);
  EXPECT_EQ(bad->field_violations(0).field(), "header.geometry.spacing");
  EXPECT_EQ(bad->field_violations(0).description(), "x is 0");
}

TEST(ToRpcStatusProto, AMessageAloneNamesNothing) {
  const google::rpc::Status proto = ToRpcStatusProto(absl::InvalidArgumentError("size: of volumes/liver"));
  EXPECT_FALSE(FindDetail<google::rpc::BadRequest>(proto));
  EXPECT_FALSE(FindDetail<google::rpc::ResourceInfo>(ToRpcStatusProto(absl::NotFoundError("volumes/liver"))));
}

TEST(ToRpcStatusProto, NamesTheResource) {
  const auto info = FindDetail<google::rpc::ResourceInfo>(ToRpcStatusProto(NotFound("volumes/liver-1.a")));
  ASSERT_TRUE(info);
  EXPECT_EQ(info->resource_name(), "volumes/liver-1.a");
  EXPECT_EQ(info->resource_type(), "intrawarp.v1.Volume");
  const auto matrix = FindDetail<google::rpc::ResourceInfo>(ToRpcStatusProto(AlreadyExists("sparseMatrices/m")));
  ASSERT_TRUE(matrix);
  EXPECT_EQ(matrix->resource_name(), "sparseMatrices/m");
  EXPECT_EQ(matrix->resource_type(), "intrawarp.v1.SparseMatrix");
}

TEST(ToRpcStatusProto, APredictedTimeToComeBackTakesThePlaceOfTheFixedOne) {
  const absl::Status full = WithReason(absl::ResourceExhaustedError("full"), v1::QUEUE_FULL);
  const auto predicted =
      FindDetail<google::rpc::RetryInfo>(ToRpcStatusProto(WithRetryAfter(full, std::chrono::nanoseconds(2500000007))));
  ASSERT_TRUE(predicted);
  EXPECT_EQ(predicted->retry_delay().seconds(), 2);
  EXPECT_EQ(predicted->retry_delay().nanos(), 500000007);
  const absl::Status late = WithReason(absl::DeadlineExceededError("late"), v1::DEADLINE_UNREACHABLE);
  EXPECT_FALSE(FindDetail<google::rpc::RetryInfo>(ToRpcStatusProto(late))) << "waiting does not help";
  EXPECT_TRUE(FindDetail<google::rpc::RetryInfo>(ToRpcStatusProto(WithRetryAfter(late, std::chrono::milliseconds(3)))));
}

TEST(ToRpcStatusProto, AReasonBringsItsNumbersAndARetryWhereWaitingHelps) {
  const absl::Status status = WithReason(absl::ResourceExhaustedError("full"), v1::RESIDENT_MEMORY, InUse(5, 97, 100));
  EXPECT_EQ(ReasonOf(status), v1::RESIDENT_MEMORY);
  const google::rpc::Status proto = ToRpcStatusProto(status);
  const auto info = FindDetail<google::rpc::ErrorInfo>(proto);
  EXPECT_EQ(info->reason(), "RESIDENT_MEMORY");
  EXPECT_EQ(info->metadata().at("asked"), "5");
  EXPECT_EQ(info->metadata().at("in_use"), "97");
  EXPECT_EQ(info->metadata().at("capacity"), "100");
  ASSERT_TRUE(FindDetail<google::rpc::RetryInfo>(proto));
  EXPECT_GT(FindDetail<google::rpc::RetryInfo>(proto)->retry_delay().seconds(), 0);
}

TEST(ToRpcStatusProto, MoreThanThereIsIsNoMatterOfWaiting) {
  const absl::Status status = ExceedsCapacity("pinned_memory", 5, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const google::rpc::Status proto = ToRpcStatusProto(status);
  EXPECT_EQ(FindDetail<google::rpc::ErrorInfo>(proto)->metadata().at("resource"), "pinned_memory");
  EXPECT_FALSE(FindDetail<google::rpc::RetryInfo>(proto));
}

TEST(ToRpcStatusProto, EveryCodeHasAReason) {
  for (int code = 1; code <= 16; ++code) {
    const google::rpc::Status proto = ToRpcStatusProto(absl::Status(static_cast<absl::StatusCode>(code), "why"));
    v1::ErrorReason reason;
    EXPECT_TRUE(v1::ErrorReason_Parse(FindDetail<google::rpc::ErrorInfo>(proto)->reason(), &reason)) << code;
    EXPECT_NE(reason, v1::ERROR_REASON_UNSPECIFIED) << code;
  }
}

TEST(Within, KeepsTheReason) {
  const absl::Status status = Within("g", WithReason(InvalidField("size", "0"), v1::MALFORMED_MESSAGE));
  EXPECT_EQ(status.message(), "g.size: 0");
  EXPECT_EQ(ReasonOf(status), v1::MALFORMED_MESSAGE);
}

}  // namespace
}  // namespace intrawarp::server
