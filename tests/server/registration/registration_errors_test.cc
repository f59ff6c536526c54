// SPDX-License-Identifier: Apache-2.0
// What Register refuses, and calls that are cancelled, wait, or find no room.
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/job/job_support.h"
#include "server/registration/registration_options.h"
#include "server/service/registration_service.h"
#include "tests/server/registration/registration_fixture.h"
#include "tests/server/stages.h"
#include "tests/tcp_relay.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

TEST_P(RegistrationServiceTest, NamesWhatIsWrongWithARequest) {
  PutPair();
  const v1::RegisterRequest good = Request();
  auto with = [&good](const std::function<void(v1::RegisterRequest&)>& change) {
    v1::RegisterRequest request = good;
    change(request);
    return request;
  };
  auto stage = [&](const std::function<void(v1::Stage&)>& change) {
    return with([&](v1::RegisterRequest& r) { change(*r.mutable_options()->mutable_stages(0)); });
  };
  const auto kInvalid = grpc::INVALID_ARGUMENT;
  const auto kUnimplemented = grpc::UNIMPLEMENTED;

  ExpectRegisterError(with([](auto& r) { r.set_fixed("fixed"); }), kInvalid, "fixed: ", "fixed");
  ExpectRegisterError(with([](auto& r) { r.clear_moving(); }), kInvalid, "moving: ", "moving");
  ExpectRegisterError(with([](auto& r) { r.set_fixed("volumes/none"); }), grpc::NOT_FOUND, "volumes/none", "");
  ExpectRegisterError(with([](auto& r) { r.mutable_field()->set_encoding(v1::FieldEncoding(9)); }), kInvalid, "9",
                      "field.encoding");
  ExpectRegisterError(with([](auto& r) {
                        for (int i = 0; i < 4; ++i) *r.mutable_options()->add_stages() = r.options().stages(0);
                      }),
                      kInvalid, "5", "options.stages");
  ExpectRegisterError(stage([](auto& s) { s.clear_method(); }), kInvalid, "is not set", "options.stages[0].method");
  const std::string affine = "options.stages[0].affine.";
  ExpectRegisterError(stage([](auto& s) { SetMetric(s, v1::Metric(77)); }), kUnimplemented,
                      affine + "metric: ", affine + "metric");
  ExpectRegisterError(stage([](auto& s) { SetLevels(s, -1); }), kInvalid, "-1", affine + "levels");
  ExpectRegisterError(stage([](auto& s) { SetLevels(s, 0); }), kInvalid, "0", affine + "levels");
  ExpectRegisterError(stage([](auto& s) { SetLevels(s, 17); }), kInvalid, "17", affine + "levels");
  ExpectRegisterError(stage([](auto& s) { SetIterations(s, 10001); }), kInvalid, "10001", affine + "iterations");
  ExpectRegisterError(with([](auto& r) { r.set_transform_id("../x"); }), kInvalid, "", "transform_id");
  ExpectRegisterError(with([](auto& r) { r.set_request_id(std::string(65, 'x')); }), kInvalid, "", "request_id");
  ExpectRegisterError(with([](auto& r) { r.mutable_ttl(); }), kInvalid, "", "ttl");
  ExpectRegisterError(with([](auto& r) { r.mutable_ttl()->set_seconds(367 * 24 * 3600); }), kInvalid, "", "ttl");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->set_fixed_mask("volumes/none"); }), grpc::NOT_FOUND,
                      "volumes/none", "");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->set_moving_mask("x"); }), kInvalid, "",
                      "options.moving_mask");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->set_fixed_weight("volumes/none"); }), grpc::NOT_FOUND,
                      "volumes/none", "");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->set_moving_weight("x"); }), kInvalid, "",
                      "options.moving_weight");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->set_initial_transform("transforms/none"); }),
                      grpc::NOT_FOUND, "transforms/none", "");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->set_initial_transform("x"); }), kInvalid, "",
                      "options.initial_transform");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->mutable_initial_affine()->add_values(1); }), kInvalid, "",
                      "options.initial_affine.values");
  ExpectRegisterError(
      with([](auto& r) { *r.mutable_options()->mutable_initial_affine() = AffineMapToProto(AffineMap()); }), kInvalid,
      "singular", "options.initial_affine.values");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->mutable_budget(); }), kInvalid, "", "options.budget");
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->mutable_budget()->set_seconds(-1); }), kInvalid, "",
                      "options.budget");
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"register\",outcome=\"failed\"} 25"));
}

TEST_P(RegistrationServiceTest, NamesWhatIsWrongWithTheImages) {
  PutPair();
  const Geometry fixed = FixedGrid(), moving = MovingGrid();
  PutVolume("constant", moving, std::vector<float>(moving.voxels(), 3.0f));
  PutVolume("empty", fixed, std::vector<float>(fixed.voxels(), 0.0f));
  PutVolume("other_grid", moving, std::vector<float>(moving.voxels(), 1.0f));
  Geometry plane;
  plane.size = {32, 32, 1};
  PutVolume("plane", plane, RandomFloats(plane.voxels(), 4));

  v1::RegisterRequest request = Request();
  request.set_moving("volumes/constant");
  ExpectRegisterError(request, grpc::FAILED_PRECONDITION, "constant", "moving");
  request = Request();
  request.set_fixed("volumes/empty");
  ExpectRegisterError(request, grpc::FAILED_PRECONDITION, "constant", "fixed");
  request = Request();
  request.mutable_options()->set_fixed_mask("volumes/empty");
  ExpectRegisterError(request, grpc::FAILED_PRECONDITION, "selects no", "options.fixed_mask");
  request.mutable_options()->set_fixed_mask("volumes/other_grid");
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, "grid", "options.fixed_mask");
  request = Request();
  request.mutable_options()->set_fixed_weight("volumes/empty");
  ExpectRegisterError(request, grpc::FAILED_PRECONDITION, "selects no", "options.fixed_weight");
  request.mutable_options()->set_fixed_weight("volumes/other_grid");
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, "grid", "options.fixed_weight");
  request = Request();
  request.mutable_options()->set_moving_weight("volumes/constant");
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, "must be 0 to 1", "options.moving_weight");
  request = Request();
  request.set_moving("volumes/plane");
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, "a slice is the fixed image", "moving");
  request.set_fixed("volumes/plane");
  request.set_moving("volumes/fixed");
  SetMethod(*request.mutable_options()->mutable_stages(0), StageKind::kFfd);
  ExpectRegisterError(request, grpc::UNIMPLEMENTED, "of a slice with a volume", "options.stages[0]");
  AffineMap far = AffineMap::Identity();
  far.m[0][3] = 5000;
  request = Request();
  *request.mutable_options()->mutable_initial_affine() = AffineMapToProto(far);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  ExpectRegisterError(request, grpc::FAILED_PRECONDITION, "overlap", "");
}

TEST_P(RegistrationServiceTest, ADisplacementIsNoStartYet) {
  PutPair();
  OnDevice(0, [&](const ExecContext& ctx) {
    Geometry grid;
    Buffer buffer = *ctx.device().Allocate(12, ctx.stream());
    ASSERT_OK(ctx.device().Fill(buffer.as<void>(), 0, 12, ctx.stream()));
    PutTransform("field", Transform(std::move(buffer), grid));
  });
  v1::RegisterRequest request = Request();
  request.mutable_options()->set_initial_transform("transforms/field");
  EXPECT_STATUS(Register(request).status, grpc::UNIMPLEMENTED, "options.initial_transform: ");
}

TEST_P(RegistrationServiceTest, AMessageThatIsNoneIsRefused) {
  grpc::GenericStub generic(channel_);
  grpc::ClientContext rpc;
  grpc::Slice slice("\x0a\xff\xff\xff\xff\x0f garbage");
  const grpc::ByteBuffer garbage(&slice, 1);
  std::promise<grpc::Status> done;
  grpc::ByteBuffer response;
  generic.UnaryCall(&rpc, "/intrawarp.v1.RegistrationService/Register", grpc::StubOptions(), &garbage, &response,
                    [&done](grpc::Status status) { done.set_value(status); });
  EXPECT_EQ(done.get_future().get().error_code(), grpc::INVALID_ARGUMENT);
}

// Large enough that a field does not fit into the transport's buffers: a client that does not read is still owed
// something, however fast the device is.
class LargeRegistrationTest : public RegistrationServiceTest {
 protected:
  static Geometry Large() {
    Geometry g = ObliqueGeometry({128, 128, 128});
    g.spacing = {1, 1, 1};
    return g;
  }
  v1::RegisterRequest LargeRequest() {
    PutVolume("fixed", Large(), Blobs(Large(), Center(Large()), 60, AffineMap::Identity()));
    v1::RegisterRequest request = Request();
    request.set_moving("volumes/fixed");
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    return request;
  }
  void ExpectNothingLeft() {
    EXPECT_TRUE(Eventually([this] {
      return context().ledger.in_use(Resource::kStreams) == 0 && context().jobs.pending() == 0 &&
             context().pinned.leased_bytes() == 0;
    }));
    EXPECT_EQ(context().transforms.size(), 0);
    EXPECT_TRUE(Eventually(
        [this] { return Scraped("intrawarp_registrations_total{class=\"register\",outcome=\"cancelled\"} 1"); }));
  }
};

INTRAWARP_INSTANTIATE_DEVICE_TEST(LargeRegistrationTest);

TEST_P(LargeRegistrationTest, ACancelDuringTheOptimisationEndsTheJob) {
  const v1::RegisterRequest request = LargeRequest();
  grpc::ClientContext rpc;
  auto reader = registration_->Register(&rpc, request);
  v1::RegisterResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_progress());

  rpc.TryCancel();

  while (reader->Read(&response)) EXPECT_FALSE(response.has_result());
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  ExpectNothingLeft();
}

TEST_P(LargeRegistrationTest, ACancelDuringTheFieldLeavesNothing) {
  v1::RegisterRequest request = LargeRequest();
  SetIterations(*request.mutable_options()->mutable_stages(0), 1);
  grpc::ClientContext rpc;
  auto reader = registration_->Register(&rpc, request);
  v1::RegisterResponse response;
  while (reader->Read(&response) && !response.has_chunk()) EXPECT_FALSE(response.has_result());
  ASSERT_TRUE(response.has_chunk());
  // The job is over although this client does not read.
  EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 0; }));
  EXPECT_EQ(context().ledger.in_use(Resource::kStreams), 1);

  rpc.TryCancel();

  while (reader->Read(&response)) EXPECT_FALSE(response.has_result());
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  ExpectNothingLeft();
}

TEST_P(LargeRegistrationTest, AVanishedClientLeavesNothing) {
  const v1::RegisterRequest request = LargeRequest();
  TcpRelay relay(server_->grpc_address());
  auto stub =
      v1::RegistrationService::NewStub(grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext rpc;
  auto reader = stub->Register(&rpc, request);
  v1::RegisterResponse response;
  ASSERT_TRUE(reader->Read(&response));

  relay.Cut();

  while (reader->Read(&response)) EXPECT_FALSE(response.has_result());
  EXPECT_EQ(reader->Finish().error_code(), grpc::UNAVAILABLE);
  ExpectNothingLeft();
}

TEST_P(RegistrationServiceTest, ACallCancelledInTheQueueNeverRuns) {
  PutPair();
  JobBlocker blocker(context().jobs);
  grpc::ClientContext rpc;
  auto reader = registration_->Register(&rpc, Request());
  ASSERT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));

  rpc.TryCancel();

  v1::RegisterResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(
      Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0 && context().jobs.pending() == 1; }));
  blocker.Release();
  EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 0; }));
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_TRUE(Eventually(
      [this] { return Scraped("intrawarp_registrations_total{class=\"register\",outcome=\"cancelled\"} 1"); }));
}

TEST_P(RegistrationServiceTest, ADeadlineEndsACall) {
  PutPair();
  JobBlocker blocker(context().jobs);
  grpc::ClientContext rpc;
  // Long enough for the call to be queued on a busy machine.
  rpc.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  std::future<RegisterAnswer> answer = std::async(std::launch::async, [&] { return Register(Request(), &rpc); });
  ASSERT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));

  EXPECT_EQ(answer.get().status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  blocker.Release();
  // The client gives up a moment before the deadline as the server has it: for the server that is a cancel.
  EXPECT_TRUE(Eventually([this] {
    return Scraped("intrawarp_registrations_total{class=\"register\",outcome=\"deadline_missed\"} 1") ||
           Scraped("intrawarp_registrations_total{class=\"register\",outcome=\"cancelled\"} 1");
  }));
  EXPECT_EQ(context().transforms.size(), 0);
}

bool SaysWhenToRetry(const grpc::Status& status) {
  google::rpc::Status proto;
  google::rpc::RetryInfo retry;
  EXPECT_TRUE(proto.ParseFromString(status.error_details()));
  for (const auto& detail : proto.details()) detail.UnpackTo(&retry);
  return retry.retry_delay().seconds() > 0;
}

// Ten calls that would take 200 s each, as far as the server knows, and have 700 s.
TEST_P(RegistrationServiceTest, CallsBeyondCapacityAreRefusedAtOnceAndTheOthersAreInTime) {
  PutPair();
  RegistrationPlan plan;
  plan.asked = Request().options();
  for (int i = 0; i < 60; ++i) {
    context().jobs.costs().Observe(CostKind("register", plan, std::nullopt), CostSize(FixedGrid(), MovingGrid()),
                                   std::chrono::seconds(200));
  }
  JobBlocker blocker(context().jobs);
  std::atomic<int> answered = 0;
  std::vector<std::future<RegisterAnswer>> calls;
  for (int i = 0; i < 10; ++i) {
    calls.push_back(std::async(std::launch::async, [&] {
      grpc::ClientContext rpc;
      rpc.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(700));
      RegisterAnswer answer = Register(Request(), &rpc);
      ++answered;
      return answer;
    }));
  }
  EXPECT_TRUE(Eventually([&] { return answered == 7; })) << answered << " were refused";
  EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 1 + 3; })) << context().jobs.pending();
  blocker.Release();
  int ok = 0;
  for (std::future<RegisterAnswer>& call : calls) {
    const grpc::Status status = call.get().status;
    ok += status.ok() ? 1 : 0;
    if (status.ok()) continue;
    EXPECT_STATUS(status, grpc::DEADLINE_EXCEEDED, "deadline cannot be met");
    EXPECT_EQ(ReasonOf(status), v1::DEADLINE_UNREACHABLE);
    EXPECT_TRUE(SaysWhenToRetry(status));
  }
  EXPECT_EQ(ok, 3);
}

TEST_P(RegistrationServiceTest, ADeletedVolumeServesTheJobThatHasIt) {
  PutPair();
  JobBlocker blocker(context().jobs);
  std::future<RegisterAnswer> answer = std::async(std::launch::async, [this] { return Register(Request()); });
  ASSERT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));
  ASSERT_TRUE(context().volumes.Erase("fixed").ok());
  ASSERT_TRUE(context().volumes.Erase("moving").ok());
  blocker.Release();

  EXPECT_TRUE(answer.get().status.ok());
  EXPECT_EQ(context().volumes.size(), 0);
}

class LimitedRegistrationTest : public RegistrationServiceTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.pinned_capacity_bytes = 64 << 10;
    limits.max_transforms = 2;
    limits.max_queued_jobs = 1;
    return limits;
  }
  LimitedRegistrationTest() : RegistrationServiceTest(Limits()) {}
};

INTRAWARP_INSTANTIATE_DEVICE_TEST(LimitedRegistrationTest);

TEST_P(LimitedRegistrationTest, SaysWhatThereIsTooMuchOf) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  ExpectRegisterError(request, grpc::FAILED_PRECONDITION, "pinned_memory", "");  // more than there is in all
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"register\",outcome=\"rejected\"} 1"));
  {
    JobBlocker blocker(context().jobs);
    grpc::ClientContext rpc;
    auto waiting = registration_->Register(&rpc, Request());
    ASSERT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));
    ExpectRegisterError(Request(), grpc::RESOURCE_EXHAUSTED, "queue", "");
    rpc.TryCancel();
    v1::RegisterResponse response;
    while (waiting->Read(&response)) {
    }
    EXPECT_FALSE(waiting->Finish().ok());
  }
  EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 0; }));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Register(Request()).status.ok());
  // Before the work: the device never gets to it.
  JobBlocker blocker(context().jobs);
  const grpc::Status full = Register(Request()).status;
  EXPECT_STATUS(full, grpc::RESOURCE_EXHAUSTED, "transforms: 1 asked, 2 of 2 in use");
  EXPECT_EQ(ReasonOf(full), v1::TOO_MANY_TRANSFORMS);
  EXPECT_EQ(context().jobs.pending(), 1);
  // Sessions have places of their own.
  EXPECT_TRUE(Admit(context(), {{.transforms = 1}}, Share::kSession).ok());
}

}  // namespace
}  // namespace intrawarp::server
