// SPDX-License-Identifier: Apache-2.0
// Another client begins as many Navigate calls as there are places for streams, and sends no config on any.
#include "tests/server/http_client.h"
#include "tests/server/interference/interference_fixture.h"
#include "tests/server/raw_call.h"

namespace intrawarp::server {
namespace {

class SilentNavigationsTest : public InterferenceTest {
 protected:
  // The server has accepted so many calls.
  bool HasCalls(int count) const {
    const std::string line = absl::StrCat("intrawarp_table_used{table=\"calls\"} ", count, "\n");
    return HttpGet(test_.server->http_address(), "/metrics").body.find(line) != std::string::npos;
  }
  grpc::Status RegisterPatient() {
    v1::RegisterRequest request;
    request.set_fixed("volumes/patient");
    request.set_moving("volumes/patient");
    v1::RigidStage& stage = *request.mutable_options()->add_stages()->mutable_rigid();
    stage.set_levels(1);
    stage.set_iterations(1);
    grpc::ClientContext context;
    const auto reader = test_.Stub<v1::RegistrationService>()->Register(&context, request);
    v1::RegisterResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }
};

TEST_F(SilentNavigationsTest, LeaveOthersTheirPlaces) {
  const ServerLimits limits = SmallServer().limits;
  const int places = limits.max_streams + limits.max_sessions;
  const auto channel = NavigationClient::OwnChannel(address());
  std::vector<std::unique_ptr<RawCall>> silent;
  for (int n = 0; n < places; ++n) {
    silent.push_back(std::make_unique<RawCall>(channel, "/intrawarp.v1.RegistrationService/Navigate"));
  }
  AwaitUsage("the calls are under way", [&](const v1::Usage&) { return HasCalls(places); });
  EXPECT_EQ(test_.Info().usage().streams(), 0);
  Put("other", PatientGrid());
  const grpc::Status registered = RegisterPatient();
  EXPECT_TRUE(registered.ok()) << registered.error_message();
  ExpectNewSession("in a new session");
}

}  // namespace
}  // namespace intrawarp::server
