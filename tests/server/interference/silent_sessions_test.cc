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

// The time after which a silent session goes is the server's; days are longer.
TEST_F(SilentSessionsTest, GoAfterTheirTime) {
  std::vector<std::unique_ptr<NavigationClient>> silent;
  FrameSeen last{true, 0, "", {}};
  while (last.ok() && silent.size() < 64) {
    silent.push_back(std::make_unique<NavigationClient>(address(), PatientSession()));
    last = silent.back()->Next();
  }
  std::cout << "[ FRAMES   ] session " << silent.size() << ": " << last.Name() << "\n";
  EXPECT_FALSE(last.ok()) << "nothing bounds the sessions";
  for (int hour = 0; hour < 72 && !last.ok(); ++hour) {
    test_.clock.Advance(std::chrono::hours(1));
    test_.server->Housekeep();
    last = NavigationClient(address(), PatientSession()).Next();
  }
  EXPECT_TRUE(last.ok()) << "silent sessions are still there after three days";
  ExpectNewSession("in a new session");
}

}  // namespace
}  // namespace intrawarp::server
