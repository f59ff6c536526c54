// SPDX-License-Identifier: Apache-2.0
// Another client's registration takes minutes.
#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

class LongRegistrationTest : public InterferenceTest {
 protected:
  static ServerOptions MoreMemory() {
    ServerOptions options = SmallServer();
    options.limits.resident_capacity_bytes = int64_t{1} << 30;
    return options;
  }
  LongRegistrationTest() : InterferenceTest(MoreMemory()) { Put("large", BoxGeometry(96, 96, 96)); }
};

TEST_F(LongRegistrationTest, GivesWayToFrames) {
  v1::RegisterRequest request;
  request.set_fixed("volumes/large");
  request.set_moving("volumes/large");
  request.mutable_options()->add_stages()->mutable_log_demons()->set_iterations(10000);
  auto stub = test_.Stub<v1::RegistrationService>();
  grpc::ClientContext context;
  auto reader = stub->Register(&context, request);
  v1::RegisterResponse response;
  ASSERT_TRUE(reader->Read(&response)) << "the registration makes progress";
  NavigationClient client(address(), PatientSession());
  ExpectFrames("behind a long registration", client);
  AwaitUsage("the registration is still there", [](const v1::Usage& usage) { return usage.jobs() == 1; });
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

}  // namespace
}  // namespace intrawarp::server
