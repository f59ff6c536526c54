// SPDX-License-Identifier: Apache-2.0
// Three servers of which one is killed under load: every session goes on, every frame gets its answer, and no volume
// whose upload was acknowledged is lost. failover_run measures the same for longer.
#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_join.h"
#include "tests/client/failover.h"
#include "tests/client/process.h"

namespace intrawarp::client {
namespace {

class SeveralServersTest : public testing::Test {
 protected:
  // The last shutdown of the library may wait ten seconds for one of its pollers; so there is none.
  static void SetUpTestSuite() { grpc_init(); }

  static FailoverPlan Plan() {
    FailoverPlan plan;
    plan.intrawarpd = INTRAWARPD;
    plan.seed = testing::UnitTest::GetInstance()->random_seed() == 0
                    ? static_cast<uint32_t>(getpid())
                    : static_cast<uint32_t>(testing::UnitTest::GetInstance()->random_seed());
    return plan;
  }

  static void Check(const FailoverPlan& plan) {
    SCOPED_TRACE(testing::Message() << "seed " << plan.seed);
    const auto outcome = RunFailover(plan);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    int struck = 0;
    for (const SessionOutcome& session : outcome->sessions) {
      const std::string causes = absl::StrJoin(session.causes, "; ");
      EXPECT_TRUE(session.end.ok()) << session.end << "; " << causes;
      EXPECT_GT(session.frames, 0);
      EXPECT_EQ(session.failed, 0);
      // Half a voxel.
      EXPECT_LT(session.worst_mm, 1);
      EXPECT_EQ(session.causes.size(), static_cast<size_t>(session.resumed + session.reopened)) << causes;
      if (session.reopened == 0) continue;
      ++struck;
      EXPECT_GE(session.whole_again_ms, 0) << causes;
      EXPECT_EQ(session.whole_starts, session.is_ffd ? session.reopened_after_ok : 0);
    }
    // It had the most.
    EXPECT_GE(struck, plan.sessions / 3);
    EXPECT_GT(outcome->acknowledged, 0);
    EXPECT_EQ(outcome->lost, 0);
    EXPECT_EQ(outcome->given_up, 0);
    if (!plan.nginx.empty()) return;
    for (const SessionOutcome& session : outcome->sessions) {
      EXPECT_EQ(session.from == outcome->killed, session.from != session.to);
    }
  }
};

TEST_F(SeveralServersTest, SessionsGoOnBehindTheClientsOwnRouting) { Check(Plan()); }

TEST_F(SeveralServersTest, SessionsGoOnBehindNginx) {
  if (access(INTRAWARP_NGINX, X_OK) != 0) GTEST_SKIP() << "nginx is not installed";
  FailoverPlan plan = Plan();
  plan.nginx = INTRAWARP_NGINX;
  plan.nginx_conf = FileContents(INTRAWARP_NGINX_CONF);
  ASSERT_FALSE(plan.nginx_conf.empty());
  Check(plan);
}

}  // namespace
}  // namespace intrawarp::client
