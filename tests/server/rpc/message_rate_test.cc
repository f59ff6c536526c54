// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/message_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "server/base/seams.h"
#include "server/job/admission_metrics.h"
#include "server/status/errors.h"
#include "tests/server/partial_context.h"

namespace intrawarp::server {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

class MessageRateTest : public testing::Test {
 protected:
  explicit MessageRateTest(const MessageLimitOptions& options = {.connection_rate = 3, .identity_rate = 0})
      : limits_(options) {
    parts_.seams = &seams_;
    parts_.admission = &admission_;
    parts_.message_limits = &limits_;
  }

  MessageLimits::Sender Enter(const std::string& connection, const std::string& identity) {
    return limits_.Enter(connection, identity, now_);
  }
  // Messages that come before the first refusal.
  int Taken(const MessageLimits::Sender& sender) {
    ServerContext context = parts_.Make();
    int taken = 0;
    while (taken < 100 && (last_ = CheckMessageRate(context, sender)).ok()) ++taken;
    return taken;
  }
  google::rpc::ErrorInfo LastInfo() const {
    google::rpc::ErrorInfo info;
    const google::rpc::Status status = ToRpcStatusProto(last_);
    for (const auto& detail : status.details()) {
      if (detail.Is<google::rpc::ErrorInfo>()) detail.UnpackTo(&info);
    }
    return info;
  }

  steady_clock::time_point now_{std::chrono::hours(1)};
  const Seams seams_{[] { return 7u; }, [this] { return now_; },
                     [] { return std::chrono::system_clock::time_point(); }};
  Registry registry_;
  const AdmissionMetrics admission_{registry_, {"cpu"}};
  MessageLimits limits_;
  PartialContext parts_;
  absl::Status last_;
};

class IdentityRateTest : public MessageRateTest {
 protected:
  IdentityRateTest() : MessageRateTest({.connection_rate = 0, .identity_rate = 2}) {}
};

TEST_F(MessageRateTest, AConnectionBringsWhatItsLimitAllowsThenIsRefused) {
  const MessageLimits::Sender sender = Enter("tcp:1", "ann");
  EXPECT_EQ(Taken(sender), 3);
  EXPECT_EQ(last_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(last_), v1::MESSAGE_RATE);
  EXPECT_EQ(LastInfo().metadata().at("limit"), "connection");
  EXPECT_EQ(LastInfo().metadata().at("capacity"), "3");
  EXPECT_THAT(std::string(last_.message()), HasSubstr("this connection bring more than 3 messages"));
}

TEST_F(MessageRateTest, EachRefusalIsCountedAndNoMessageThatIsTaken) {
  const MessageLimits::Sender sender = Enter("tcp:1", "ann");
  EXPECT_THAT(registry_.Scrape(), HasSubstr("reason=\"message_rate\"} 0\n"));
  (void)Taken(sender);
  (void)Taken(sender);
  EXPECT_THAT(registry_.Scrape(), HasSubstr("reason=\"message_rate\"} 2\n"));
}

TEST_F(MessageRateTest, TimeIsTheServersClock) {
  const MessageLimits::Sender sender = Enter("tcp:1", "ann");
  (void)Taken(sender);
  EXPECT_EQ(Taken(sender), 0);
  now_ += std::chrono::seconds(1);
  EXPECT_EQ(Taken(sender), 3);
}

TEST_F(MessageRateTest, ASenderWithoutALimitIsNeverRefused) { EXPECT_EQ(Taken(MessageLimits::Sender()), 100); }

TEST_F(IdentityRateTest, AnIdentityIsNamedWhateverItsConnection) {
  const MessageLimits::Sender first = Enter("tcp:1", "ann"), second = Enter("tcp:2", "ann");
  EXPECT_EQ(Taken(first), 2);
  EXPECT_EQ(Taken(second), 0);
  EXPECT_EQ(LastInfo().metadata().at("limit"), "identity");
  EXPECT_EQ(LastInfo().metadata().at("capacity"), "2");
  EXPECT_EQ(Taken(Enter("tcp:1", "bob")), 2);
}

}  // namespace
}  // namespace intrawarp::server
