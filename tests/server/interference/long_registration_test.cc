// SPDX-License-Identifier: Apache-2.0
// Another client's registration takes minutes.
#include "intrawarp/v1/operation.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "tests/server/identity/access_fixture.h"
#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

// Minutes of it.
v1::RegisterRequest LongRegistration() {
  v1::RegisterRequest request;
  request.set_fixed("volumes/large");
  request.set_moving("volumes/large");
  request.mutable_options()->add_stages()->mutable_log_demons()->set_iterations(10000);
  return request;
}

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
  auto stub = test_.Stub<v1::RegistrationService>();
  grpc::ClientContext context;
  auto reader = stub->Register(&context, LongRegistration());
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

// Owners with tokens, and the scheduling that a server has by itself.
class LongOperationTest : public AccessTest {
 protected:
  LongOperationTest()
      : alice_(AddToken("alice", Roles(Role::kFrame) | Role::kStage)),
        bob_(AddToken("bob", Roles(Role::kFrame) | Role::kStage)) {}

  void StartServer(const std::function<void(ServerOptions&)>& change = nullptr) {
    StartWithTokens([&](ServerOptions& options) {
      options.limits.resident_capacity_bytes = int64_t{1} << 30;
      options.scheduling.reset();
      if (change) change(options);
    });
    Put(alice_, "large", BoxGeometry(96, 96, 96));
    Put(bob_, "patient", PatientGrid());
  }
  std::shared_ptr<grpc::Channel> Channel(const std::string& token) const { return NewChannel(WithToken(token)); }
  void Put(const std::string& token, const std::string& id, const Geometry& grid) {
    const UploadData volume = MakeVolume(grid, RandomVoxels<float>(grid, kPatientSeed), "put-" + id, id);
    const grpc::Status put = Upload(*v1::BulkService::NewStub(Channel(token)), volume, nullptr, size_t{1} << 20);
    ASSERT_TRUE(put.ok()) << put.error_message();
  }
  // A guard against a hang.
  static void SetGuard(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  }
  grpc::Status Register(const std::string& token, const v1::RegisterRequest& request, v1::RegisterResponse* last) {
    grpc::ClientContext context;
    SetGuard(context);
    const auto reader = v1::RegistrationService::NewStub(Channel(token))->Register(&context, request);
    for (v1::RegisterResponse response; reader->Read(&response);) *last = response;
    return reader->Finish();
  }
  v1::Operation Operation() const {
    grpc::ClientContext context;
    SetGuard(context);
    v1::GetOperationRequest request;
    request.set_name("operations/long");
    v1::GetOperationResponse response;
    const grpc::Status got = v1::OperationService::NewStub(Channel(alice_))->GetOperation(&context, request, &response);
    EXPECT_TRUE(got.ok()) << got.error_message();
    return response.operation();
  }
  void BeginLong() {
    v1::RegisterRequest request = LongRegistration();
    request.set_request_id("long");
    request.set_detach(true);
    v1::RegisterResponse response;
    const grpc::Status begun = Register(alice_, request, &response);
    ASSERT_TRUE(begun.ok()) << begun.error_message();
    while (Operation().state() == v1::OPERATION_STATE_QUEUED) std::this_thread::yield();
  }

  const std::string alice_, bob_;
};

TEST_F(LongOperationTest, LeavesAnotherOwnersUploadsRegistrationsAndPointsTheirTurns) {
  StartServer();
  BeginLong();
  Put(bob_, "other", BoxGeometry(20, 20, 20));
  v1::RegisterRequest request;
  request.set_fixed("volumes/patient");
  request.set_moving("volumes/other");
  request.set_transform_id("bobs");
  request.mutable_options()->add_stages()->mutable_rigid()->set_levels(1);
  v1::RegisterResponse response;
  const grpc::Status registered = Register(bob_, request, &response);
  EXPECT_TRUE(registered.ok()) << registered.error_message();
  v1::MapPointsRequest points;
  points.set_transform("transforms/bobs");
  for (int i = 0; i < 30; ++i) points.add_points(1);
  grpc::ClientContext context;
  SetGuard(context);
  v1::MapPointsResponse mapped;
  const grpc::Status status = v1::TransformService::NewStub(Channel(bob_))->MapPoints(&context, points, &mapped);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Operation().state(), v1::OPERATION_STATE_RUNNING) << "beside it, and not behind it";
}

TEST_F(LongOperationTest, WithoutABudgetEndsByTheServersLimit) {
  StartServer([](ServerOptions& options) { options.limits.max_run_time = std::chrono::milliseconds(300); });
  BeginLong();
  while (Operation().state() == v1::OPERATION_STATE_RUNNING) std::this_thread::yield();
  const v1::Operation ended = Operation();
  EXPECT_EQ(ended.state(), v1::OPERATION_STATE_FAILED);
  EXPECT_EQ(ReasonIn(ended.error()), "RUN_TIME_USED_UP");
}

}  // namespace
}  // namespace intrawarp::server
