// SPDX-License-Identifier: Apache-2.0
// Another client opens as many sessions as it may and sends no frame.
#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

class SilentSessionsTest : public InterferenceTest {
 protected:
  static ServerOptions FewStreams() {
    ServerOptions options = SmallServer();
    options.limits.max_streams = 8;
    return options;
  }
  SilentSessionsTest() : InterferenceTest(FewStreams()) {}
};

// The time after which a silent session goes is the server's; a day is longer.
TEST_F(SilentSessionsTest, GoAfterTheirTime) {
  std::vector<std::unique_ptr<NavigationClient>> silent;
  for (int n = 0; n < 16; ++n) silent.push_back(std::make_unique<NavigationClient>(address(), PatientSession()));
  AwaitUsage("the sessions are open", [](const v1::Usage& usage) { return usage.streams() > 0; });
  test_.clock.Advance(std::chrono::hours(24));
  test_.server->Housekeep();
  const v1::Usage usage = test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0; });
  EXPECT_EQ(usage.streams(), 0) << "silent sessions are still there after a day";
  ExpectNewSession("in a new session");
}

}  // namespace
}  // namespace intrawarp::server
