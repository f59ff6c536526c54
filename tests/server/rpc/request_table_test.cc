// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/request_table.h"

#include <gtest/gtest.h>

#include <string>

#include "intrawarp/v1/registration.pb.h"
#include "server/rpc/errors.h"

namespace intrawarp::server {
namespace {

TEST(RequestTableTest, ARequestIsThereWhileItsTicketIs) {
  RequestTable table;
  {
    const absl::StatusOr<RequestTicket> first = table.Enter({"id", "content"});
    ASSERT_TRUE(first.ok());
    const absl::Status again = table.Enter({"id", "content"}).status();
    EXPECT_EQ(again.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ReasonOf(again), v1::REQUEST_IN_PROGRESS);
    const absl::Status other = table.Enter({"id", "other"}).status();
    EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(ReasonOf(other), v1::REQUEST_ID_REUSED);
    EXPECT_TRUE(table.Enter({"id2", "content"}).ok());
    EXPECT_EQ(table.size(), 1);
  }
  EXPECT_EQ(table.size(), 0);
  EXPECT_TRUE(table.Enter({"id", "other"}).ok());
}

TEST(RequestTableTest, RequestsWithoutAnIdDoNotMeet) {
  RequestTable table;
  const auto first = table.Enter({"", "content"}), second = table.Enter({"", "content"});
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(table.size(), 0);
}

TEST(RequestTableTest, AFingerprintTellsContentsAndMethodsApart) {
  v1::RegisterRequest request;
  request.set_fixed("volumes/a");
  const std::string fingerprint = Fingerprint("Register", request);
  EXPECT_EQ(Fingerprint("Register", request), fingerprint);
  EXPECT_NE(Fingerprint("Multiply", request), fingerprint);
  request.mutable_options()->set_best_effort(false);  // set, though to the default
  EXPECT_NE(Fingerprint("Register", request), fingerprint);
}

TEST(RequestTableTest, IdsHaveALengthAndPrintableCharacters) {
  for (const std::string& good : {std::string(), std::string("a"), std::string(64, 'x'), std::string("{a-b:c}")}) {
    EXPECT_TRUE(ValidateRequestId(good, "request_id").ok()) << good;
  }
  for (const std::string& bad :
       {std::string(65, 'x'), std::string("a b"), std::string("\n"), std::string("\xc3\xa4")}) {
    EXPECT_EQ(FieldOf(ValidateRequestId(bad, "request_id")), "request_id") << bad;
  }
}

}  // namespace
}  // namespace intrawarp::server
