// SPDX-License-Identifier: Apache-2.0
// Another client asks for registrations whose workspace is larger than all the memory that the server may use.
#include <thread>

#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

class LargeWorkspacesTest : public InterferenceTest {
 protected:
  static ServerOptions LittleWorkspace() {
    ServerOptions options = SmallServer();
    options.limits.workspace_capacity_bytes = int64_t{64} << 20;
    return options;
  }
  LargeWorkspacesTest() : InterferenceTest(LittleWorkspace()) {}
  // 64 MiB do not hold the 100 bytes a voxel and more of the registration.
  static Geometry LargeGrid() { return BoxGeometry(112, 112, 112); }

  grpc::Status Register() {
    v1::RegisterRequest request;
    request.set_fixed("volumes/large");
    request.set_moving("volumes/large");
    v1::LogDemonsStage& stage = *request.mutable_options()->add_stages()->mutable_log_demons();
    stage.set_iterations(2);
    stage.set_symmetric(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(4));
    auto reader = test_.Stub<v1::RegistrationService>()->Register(&context, request);
    v1::RegisterResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }
};

TEST_F(LargeWorkspacesTest, AreRefusedByNameAndLeaveFramesAlone) {
  Put("large", LargeGrid());
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  std::vector<grpc::Status> ends(4);
  std::vector<std::thread> threads;
  for (grpc::Status& end : ends) threads.emplace_back([this, &end] { end = Register(); });
  ExpectFrames("in an open session", client);
  ExpectNewSession("in a new session");
  for (std::thread& thread : threads) thread.join();
  for (const grpc::Status& end : ends) {
    std::cout << "[ FRAMES   ] registration: code " << end.error_code() << " " << ReasonIn(end) << "\n";
    EXPECT_THAT(end.error_code(), testing::AnyOf(grpc::FAILED_PRECONDITION, grpc::RESOURCE_EXHAUSTED));
    EXPECT_NE(ReasonIn(end), "");
  }
}

}  // namespace
}  // namespace intrawarp::server
