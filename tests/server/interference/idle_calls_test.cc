// SPDX-License-Identifier: Apache-2.0
// Another client opens hundreds of calls that no limit counts and leaves them open.
#include "tests/server/interference/interference_fixture.h"
#include "tests/server/raw_call.h"

namespace intrawarp::server {
namespace {

class IdleCallsTest : public InterferenceTest {
 protected:
  std::shared_ptr<grpc::Channel> channel_;
};

// An empty request of grpc.health.v1.Health/Watch asks for the server as a whole; the call never ends by itself.
TEST_F(IdleCallsTest, LeaveFramesAlone) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  std::vector<std::unique_ptr<RawCall>> calls;
  for (int n = 0; n < 300; ++n) {
    if (n % 50 == 0) channel_ = NavigationClient::OwnChannel(address());
    calls.push_back(std::make_unique<RawCall>(channel_, "/grpc.health.v1.Health/Watch", std::chrono::minutes(4)));
    ASSERT_TRUE(calls.back()->Write(std::string()));
    calls.back()->Read();
  }
  ExpectFrames("in an open session", client);
  ExpectNewSession("in a new session");
}

}  // namespace
}  // namespace intrawarp::server
