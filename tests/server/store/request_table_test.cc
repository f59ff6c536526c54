// SPDX-License-Identifier: Apache-2.0
#include "server/store/request_table.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/status/errors.h"

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

struct Object {
  static std::string Name(absl::string_view id) { return absl::StrCat("objects/", id); }
  std::string id = "a";
  std::string owner = {};
  std::string digest = {};
  std::chrono::system_clock::time_point create_time = {};
};

TEST(RequestTableTest, AnInputIsToldByItsContent) {
  const auto print = [](const Object& object) { return InputPrint::Of(object).bytes(); };
  EXPECT_EQ(print({.digest = "x"}), print({.id = "b", .digest = "x", .create_time = {}})) << "the same bytes";
  EXPECT_NE(print({.digest = "x"}), print({.digest = "y"}));
  const std::chrono::system_clock::time_point later{std::chrono::nanoseconds(1000)};
  EXPECT_EQ(print({}), print({}));
  EXPECT_NE(print({}), print({.create_time = later})) << "computed anew";
  EXPECT_NE(print({}), print({.owner = "ann"}));
  EXPECT_NE(print({}), InputPrint::None().bytes());
  EXPECT_EQ(InputPrint::Of(std::shared_ptr<const Object>()).bytes(), InputPrint::None().bytes());
  const absl::StatusOr<std::shared_ptr<const Object>> absent = absl::NotFoundError("");
  EXPECT_EQ(InputPrint::Of("objects/a", absent).bytes(), InputPrint::Gone().bytes());
  EXPECT_EQ(InputPrint::Of("", absent).bytes(), InputPrint::None().bytes());
}

TEST(RequestTableTest, ARepetitionHasTheInputsOfTheFirst) {
  const std::string request = Fingerprint("Register", v1::RegisterRequest());
  const InputPrint a = InputPrint::OfText("a"), b = InputPrint::OfText("b"), none = InputPrint::None(),
                   gone = InputPrint::Gone();
  const std::string first = WithInputs(request, {a, b, none});
  EXPECT_TRUE(IsRepetition(first, WithInputs(request, {a, b, none})));
  EXPECT_TRUE(IsRepetition(first, WithInputs(request, {a, gone, none}))) << "deleted since";
  EXPECT_TRUE(IsRepetition(first, WithInputs(request, {gone, gone, none})));
  EXPECT_FALSE(IsRepetition(first, WithInputs(request, {a, a, none}))) << "replaced since";
  EXPECT_FALSE(IsRepetition(first, WithInputs(request, {a, b, b})));
  EXPECT_FALSE(IsRepetition(first, WithInputs(request, {gone, b, gone, none})));
  EXPECT_FALSE(IsRepetition(WithInputs(request, {gone}), WithInputs(request, {a})));
  EXPECT_FALSE(IsRepetition(first, WithInputs(Fingerprint("Other", v1::RegisterRequest()), {a, b, none})));
  EXPECT_FALSE(IsRepetition(first, request)) << "of a version that did not know the inputs";
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
