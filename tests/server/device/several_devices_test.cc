// SPDX-License-Identifier: Apache-2.0
// A server with two devices: two CPU devices, and the first two GPUs where there are two.
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "server/monitor/registry.h"
#include "server/placement/replication.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/http_client.h"
#include "tests/server/matrix_client.h"
#include "tests/server/session/session_fixture.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

// Frames of sessions are smaller than what tests fill devices with.
// Longer than any job.
constexpr std::chrono::minutes kWatchdogTimeout{10};
// Sessions may be idle for so long. On a busy machine the clock goes far until a device counts as hung, since time in
// which the process could not run says nothing of a device.
constexpr std::chrono::hours kIdleTimeout{24 * 30};
constexpr int64_t kResidentBytes = int64_t{64} << 20;

std::vector<std::string> Pairs() {
  std::vector<std::string> pairs = {"cpu"};
  if (AllDevices().size() >= 3) pairs.emplace_back("cuda");
  return pairs;
}

// The devices that the server opens.
class OpenedDevices {
 protected:
  absl::StatusOr<std::unique_ptr<Device>> OpenFaulty(absl::string_view spec, bool is_cuda) {
    INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(is_cuda ? spec : "cpu"));
    const std::string name = is_cuda ? device->name() : absl::StrCat("cpu:", absl::StripPrefix(spec, "cuda:"));
    auto faulty = std::make_unique<FaultyDevice>(std::move(device), name);
    opened_.push_back(faulty.get());
    return faulty;
  }

  std::vector<FaultyDevice*> opened_;
};

class SeveralDevicesTest : protected OpenedDevices, public SessionTest {
 protected:
  SeveralDevicesTest()
      : SessionTest(ServerLimits(), [this](ServerOptions& options) {
          const bool is_cuda = options.device == "cuda";
          options.device = "cuda:0,1";
          options.limits.resident_capacity_bytes = kResidentBytes;
          options.watchdog.timeout = kWatchdogTimeout;
          options.limits.max_session_idle = kIdleTimeout;
          options.open_device = [this, is_cuda](absl::string_view spec) { return OpenFaulty(spec, is_cuda); };
        }) {}

  void SetUp() override {}
  // Whatever a test did, each device gets back what was claimed of it.
  void TearDown() override {
    SessionTest::TearDown();
    for (const auto& object : context().volumes.List("", 100)) EXPECT_OK(context().volumes.Erase(object->id));
    for (const auto& object : context().matrices.List("", 100)) EXPECT_OK(context().matrices.Erase(object->id));
    for (const auto& object : context().transforms.List("", 100)) EXPECT_OK(context().transforms.Erase(object->id));
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(Eventually([&] { return Jobs(i).pending() == 0; }));
      for (const Resource resource : {Resource::kResident, Resource::kWorkspace}) {
        EXPECT_TRUE(Eventually([&] { return context().ledger.use(resource, i).in_use == 0; }))
            << context().ledger.use(resource, i).in_use << " bytes of device " << i;
      }
    }
  }

  JobQueue& Jobs(int device) { return context().devices[device].jobs; }
  const std::string& NameOf(int device) { return context().devices[device].device.name(); }
  int64_t ResidentOn(int device) { return context().ledger.use(Resource::kResident, device).in_use; }
  // A call's last references go after its answer.
  void AwaitResident(int device, int64_t bytes) {
    EXPECT_TRUE(Eventually([&] { return ResidentOn(device) == bytes; })) << ResidentOn(device) << ", not " << bytes;
  }
  std::shared_ptr<const StoredVolume> Volume(const std::string& id) { return *context().volumes.Find(id); }
  bool HasReplica(const std::string& id, int device) { return Volume(id)->replicas->Has(device); }

  void PutVolume(const std::string& id, const Geometry& grid, const std::vector<float>& voxels) {
    const grpc::Status status = server::Upload(*bulk_, MakeVolume(grid, voxels, "upload-" + id, id), nullptr, 1 << 20);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  // "volumes/fixed" on the first device, the larger "volumes/moving" on the second, and "volumes/twin", which is as
  // "moving", on the first.
  void PutPair() {
    const std::vector<float> moving = Blobs(MovingGrid(), Center(Grid()), kBlobScale, Inverse(MapOfFrame(2)));
    PutVolume("fixed", Grid(), ResidentImage());
    PutVolume("moving", MovingGrid(), moving);
    PutVolume("twin", MovingGrid(), moving);
    ASSERT_EQ(DeviceOf(*Volume("fixed")), 0);
    ASSERT_EQ(DeviceOf(*Volume("moving")), 1);
    ASSERT_EQ(DeviceOf(*Volume("twin")), 0);
  }
  static Geometry MovingGrid() { return ObliqueGeometry({44, 50, 24}); }

  static v1::RegisterRequest Request(const std::string& moving, StageKind method = StageKind::kFfd) {
    v1::RegisterRequest request;
    request.set_fixed("volumes/fixed");
    request.set_moving("volumes/" + moving);
    SetMethod(*request.mutable_options()->add_stages(), method);
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    return request;
  }

  std::unique_ptr<Carrier> OpenSession(const std::string& id) {
    v1::NavigateConfig config = RigidConfig();
    config.set_fixed("volumes/fixed");
    config.set_session_id(id);
    config.mutable_idle_timeout()->set_seconds(std::chrono::seconds(kIdleTimeout).count());
    return Open(config);
  }
  absl::Status Resume(const std::string& id) {
    v1::NavigateConfig config;
    config.set_session_id(id);
    config.set_resume(true);
    return context().sessions.Open(context(), config).status();
  }

  // The device fails with its next call, which is made here.
  void Lose(int device) {
    opened_[device]->FailAt(1, absl::UnavailableError(NameOf(device) + " is lost"));
    server_->Housekeep();
    ASSERT_TRUE(Eventually([&] { return !opened_[device]->health().ok(); }));
    server_->Housekeep();
  }
};
INSTANTIATE_TEST_SUITE_P(Pairs, SeveralDevicesTest, testing::ValuesIn(Pairs()),
                         [](const auto& info) { return info.param; });

TEST_P(SeveralDevicesTest, UploadsGoWhereThereIsMostRoom) {
  PutPair();
  EXPECT_EQ(ResidentOn(0), PreparedImage::Bytes(Grid()) + PreparedImage::Bytes(MovingGrid()));
  EXPECT_EQ(ResidentOn(1), PreparedImage::Bytes(MovingGrid()));
  const auto downloaded = server::Download(*bulk_, "volumes/moving");
  ASSERT_TRUE(downloaded.status.ok()) << downloaded.status.error_message();
  EXPECT_EQ(downloaded.voxels, server::Download(*bulk_, "volumes/twin").voxels);
}

TEST_P(SeveralDevicesTest, TheServerTellsOfBoth) {
  EXPECT_EQ(server_->device_name(), GetParam() == "cuda" ? "cuda:0,1" : "cpu:0,cpu:1");
  const std::string text = context().metrics.registry.Scrape();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(text, testing::HasSubstr("intrawarp_device_healthy{device=\"" + NameOf(i) + "\"} 1\n"));
    EXPECT_THAT(text, testing::HasSubstr("intrawarp_memory_capacity_bytes{device=\"" + NameOf(i) +
                                         "\",kind=\"resident\"} 67108864\n"));
  }
  const HttpAnswer health = HttpGet(server_->http_address(), "/healthz");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, "serving\n");
}

TEST_P(SeveralDevicesTest, VolumesOnBothDevicesAreRegisteredAsOnOne) {
  PutPair();
  const RegisterAnswer beside = Register(Request("twin"));
  ASSERT_TRUE(beside.status.ok()) << beside.status.error_message();
  EXPECT_EQ(beside.result->report().device(), NameOf(0));
  EXPECT_FALSE(HasReplica("fixed", 1));

  const RegisterAnswer apart = Register(Request("moving"));
  ASSERT_TRUE(apart.status.ok()) << apart.status.error_message();
  // The smaller one is copied.
  EXPECT_EQ(apart.result->report().device(), NameOf(1));
  EXPECT_TRUE(HasReplica("fixed", 1));
  EXPECT_FALSE(HasReplica("moving", 0));
  EXPECT_EQ(apart.chunks.bytes(), beside.chunks.bytes());
  EXPECT_EQ(apart.result->report().affine().SerializeAsString(), beside.result->report().affine().SerializeAsString());
  EXPECT_EQ(apart.result->report().after().mse(), beside.result->report().after().mse());
  // No object is counted twice, and the next call finds the copy.
  EXPECT_EQ(context().volumes.size(), 3);
  const auto copy = Volume("fixed")->replicas->Find(1);
  ASSERT_TRUE(Register(Request("moving", StageKind::kRigid)).status.ok());
  EXPECT_EQ(Volume("fixed")->replicas->Find(1), copy);
}

TEST_P(SeveralDevicesTest, WeightsOnAnotherDeviceAreCopiedAsMasksAre) {
  PutPair();
  std::vector<float> weights = RandomFloats(Grid().voxels(), 4, 0.1f, 1);
  PutVolume("weight", Grid(), weights);
  PutVolume("mask", Grid(), std::vector<float>(Grid().voxels(), 1));
  ASSERT_EQ(DeviceOf(*Volume("weight")), 1);
  const int mask_device = DeviceOf(*Volume("mask"));
  const auto request = [](const char* moving) {
    v1::RegisterRequest made = Request(moving);
    made.mutable_options()->set_fixed_weight("volumes/weight");
    made.mutable_options()->set_fixed_mask("volumes/mask");
    return made;
  };
  const RegisterAnswer beside = Register(request("moving"));
  ASSERT_TRUE(beside.status.ok()) << beside.status.error_message();
  EXPECT_EQ(beside.result->report().device(), NameOf(1));
  EXPECT_FALSE(HasReplica("weight", 0));
  const RegisterAnswer apart = Register(request("twin"));
  ASSERT_TRUE(apart.status.ok()) << apart.status.error_message();
  EXPECT_EQ(apart.result->report().device(), NameOf(0));
  EXPECT_TRUE(HasReplica("weight", 0));
  EXPECT_TRUE(HasReplica("mask", 1 - mask_device));
  EXPECT_TRUE(apart.chunks.bytes() == beside.chunks.bytes());
  EXPECT_FALSE(Register(Request("twin")).chunks.bytes() == apart.chunks.bytes()) << "weights have to matter";
}

TEST_P(SeveralDevicesTest, AReplicaGoesWithItsVolume) {
  PutPair();
  ASSERT_TRUE(Register(Request("moving", StageKind::kRigid)).status.ok());
  AwaitResident(1, PreparedImage::Bytes(MovingGrid()) + PreparedImage::Bytes(Grid()));
  ASSERT_OK(context().volumes.Erase("fixed"));
  AwaitResident(1, PreparedImage::Bytes(MovingGrid()));
}

TEST_P(SeveralDevicesTest, ReplicasMakeRoomUnlessTheyAreUsed) {
  PutPair();
  ASSERT_TRUE(Register(Request("moving", StageKind::kRigid)).status.ok());
  AwaitResident(1, PreparedImage::Bytes(MovingGrid()) + PreparedImage::Bytes(Grid()));
  EXPECT_TRUE(Eventually([&] { return Volume("fixed")->replicas->Droppable(1).has_value(); }));
  const int64_t room = context().ledger.available(Resource::kResident, Share::kCommon, 1);
  Claim claim;
  claim.device = 1;
  claim.resident_bytes = room + 1;
  {
    const std::shared_ptr<const StoredVolume> user = Volume("fixed")->replicas->Find(1);
    EXPECT_EQ(ReasonOf(context().ledger.Admit(claim).status()), v1::RESIDENT_MEMORY);
    EXPECT_TRUE(HasReplica("fixed", 1));
  }
  EXPECT_OK(context().ledger.Admit(claim).status());
  EXPECT_FALSE(HasReplica("fixed", 1));
  EXPECT_EQ(ResidentOn(1), PreparedImage::Bytes(MovingGrid()));
}

TEST_P(SeveralDevicesTest, WorkLeavesADeviceOnWhichItWouldWaitLong) {
  PutPair();
  std::promise<void> release;
  std::promise<void> ended;
  Job long_job;
  long_job.predicted = std::chrono::hours(1);
  long_job.run = [&](const absl::StatusOr<const ExecContext*>&) {
    release.get_future().wait();
    ended.set_value();
  };
  ASSERT_OK(Jobs(0).Submit(std::move(long_job)));
  const RegisterAnswer answer = Register(Request("twin", StageKind::kRigid));
  release.set_value();
  ended.get_future().wait();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.result->report().device(), NameOf(1));
  EXPECT_TRUE(HasReplica("twin", 1));
}

TEST_P(SeveralDevicesTest, AProductTakesItsMatricesFromBoth) {
  const auto stub = v1::SparseMatrixService::NewStub(channel_);
  const auto put = [&](const std::string& id, const HostCsr<float>& csr) {
    ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(csr, "upload-" + id, id), nullptr, 1 << 20).ok());
  };
  const HostCsr<float> a = RandomCsr<float>(60, 50, 5, 1), b = RandomCsr<float>(50, 70, 9, 2);
  put("a", a);
  put("b", b);
  put("twin", b);
  ASSERT_NE(DeviceOf(**context().matrices.Find("a")), DeviceOf(**context().matrices.Find("b")));
  ASSERT_EQ(DeviceOf(**context().matrices.Find("a")), DeviceOf(**context().matrices.Find("twin")));
  v1::MultiplyRequest request;
  request.set_a("sparseMatrices/a");
  request.set_b("sparseMatrices/twin");
  const Product beside = Multiply(*stub, request);
  ASSERT_TRUE(beside.status.ok()) << beside.status.error_message();
  request.set_b("sparseMatrices/b");
  const Product apart = Multiply(*stub, request);
  ASSERT_TRUE(apart.status.ok()) << apart.status.error_message();
  EXPECT_EQ(apart.bytes, beside.bytes);
  EXPECT_FALSE(apart.bytes.empty());
}

TEST_P(SeveralDevicesTest, AWarpTakesItsInputsFromBoth) {
  PutPair();
  RegisterAnswer made = Register(Request("moving"));
  ASSERT_TRUE(made.status.ok()) << made.status.error_message();
  v1::WarpVolumeRequest warp;
  warp.set_transform(made.result->transform());
  warp.set_moving("volumes/moving");
  warp.set_like_volume("volumes/fixed");
  const auto here = Warp(warp);
  ASSERT_TRUE(here.status.ok()) << here.status.error_message();
  warp.set_moving("volumes/twin");
  const auto there = Warp(warp);
  ASSERT_TRUE(there.status.ok()) << there.status.error_message();
  EXPECT_EQ(here.chunks.bytes(), there.chunks.bytes());
  EXPECT_FALSE(here.chunks.bytes().empty());
}

TEST_P(SeveralDevicesTest, SessionsSpreadOverTheDevices) {
  PutVolume("fixed", Grid(), ResidentImage());
  std::vector<std::unique_ptr<Carrier>> carriers;
  std::vector<int> open(2);
  for (int i = 0; i < 4; ++i) {
    carriers.push_back(OpenSession("s" + std::to_string(i)));
    ++open[carriers.back()->session().context().index];
    EXPECT_EQ(carriers.back()->session().Describe().device(), carriers.back()->session().context().device.name());
  }
  EXPECT_EQ(open, std::vector<int>({2, 2}));
  EXPECT_TRUE(HasReplica("fixed", 1));
  std::vector<std::string> maps;
  for (auto& carrier : carriers) {
    ASSERT_OK(carrier->Send(GoodFrame(1)));
    const v1::FrameResult result = Answers(*carrier, 1)[0];
    ASSERT_EQ(result.status().code(), 0) << result.status().message();
    EXPECT_EQ(result.report().device(), carrier->session().Describe().device());
    maps.push_back(result.report().affine().SerializeAsString());
  }
  EXPECT_EQ(maps, std::vector<std::string>(4, maps[0]));
  // A session's copy outlives the volume.
  ASSERT_OK(context().volumes.Erase("fixed"));
  for (auto& carrier : carriers) {
    ASSERT_OK(carrier->Send(GoodFrame(2)));
    EXPECT_EQ(Answers(*carrier, 2)[1].status().code(), 0);
  }
}

// A session on each device, and "volumes/mask", which leaves out a half, on one of them.
class MaskedFramesTest : public SeveralDevicesTest {
 protected:
  void SetUp() override {
    PutVolume("fixed", Grid(), ResidentImage());
    std::vector<float> half(Grid().voxels());
    for (size_t i = 0; i < half.size(); ++i) half[i] = i % Grid().size.x < 20 ? 0 : 1;
    PutVolume("mask", Grid(), half);
    home_ = DeviceOf(*Volume("mask"));
  }
  // On the device that does not have the mask, or on the one that has.
  std::unique_ptr<Carrier> OpenAway(bool latest_wins = false) {
    std::unique_ptr<Carrier> first = OpenMasked("first", latest_wins), second = OpenMasked("second", latest_wins);
    return first->session().context().index == home_ ? std::move(second) : std::move(first);
  }
  std::unique_ptr<Carrier> OpenMasked(const std::string& id, bool latest_wins = false) {
    v1::NavigateConfig config = RigidConfig();
    config.set_fixed("volumes/fixed");
    config.set_session_id(id);
    config.set_frame_masks(true);
    config.mutable_idle_timeout()->set_seconds(std::chrono::seconds(kIdleTimeout).count());
    if (latest_wins) config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
    return Open(config);
  }
  static std::vector<v1::NavigateRequest> MaskedFrame(int n) {
    std::vector<v1::NavigateRequest> frame = GoodFrame(n);
    frame[0].mutable_frame()->set_mask("volumes/mask");
    return frame;
  }
  // Copies to the other device wait until it is let go.
  TransferQueue::Turn HoldCopies() {
    std::promise<TransferQueue::Turn> held;
    context().devices.transfers().Submit(home_, 1 - home_,
                                         [&](TransferQueue::Turn turn) { held.set_value(std::move(turn)); });
    return held.get_future().get();
  }

  int home_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Pairs, MaskedFramesTest, testing::ValuesIn(Pairs()),
                         [](const auto& info) { return info.param; });

TEST_P(MaskedFramesTest, AMaskComesToTheDeviceOfItsFrame) {
  const std::unique_ptr<Carrier> sessions[] = {OpenMasked("first"), OpenMasked("second")};
  EXPECT_NE(sessions[0]->session().context().index, sessions[1]->session().context().index);
  EXPECT_FALSE(HasReplica("mask", 1 - home_)) << "no frame has named it";
  std::vector<std::string> maps;
  for (const auto& carrier : sessions) {
    ASSERT_OK(carrier->Send(MaskedFrame(1)));
    const v1::FrameResult result = Answers(*carrier, 1)[0];
    ASSERT_EQ(result.status().code(), 0) << result.status().message();
    maps.push_back(result.report().affine().SerializeAsString());
  }
  EXPECT_EQ(maps[0], maps[1]);
  EXPECT_TRUE(HasReplica("mask", 1 - home_));
}

// In the order of its frames, whoever has to wait for a mask.
TEST_P(MaskedFramesTest, AFrameWaitsForItsMaskAndThoseBehindItDo) {
  const std::unique_ptr<Carrier> carrier = OpenAway();
  TransferQueue::Turn held = HoldCopies();
  ASSERT_OK(carrier->Send(MaskedFrame(1)));
  ASSERT_OK(carrier->Send(GoodFrame(2)));
  EXPECT_TRUE(carrier->Answers().empty());
  EXPECT_EQ(carrier->statistics().frames_in_flight(), 2);
  held.reset();
  const std::vector<v1::FrameResult>& answers = Answers(*carrier, 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answers[i].frame_number(), i + 1);
    EXPECT_EQ(answers[i].status().code(), 0) << answers[i].status().message();
  }
  // The copy is there now, and nothing has to be waited for.
  held = HoldCopies();
  ASSERT_OK(carrier->Send(MaskedFrame(3)));
  EXPECT_EQ(Answers(*carrier, 3)[2].status().code(), 0);
}

TEST_P(MaskedFramesTest, AFrameThatIsSupersededWaitsForNoMask) {
  const std::unique_ptr<Carrier> carrier = OpenAway(/*latest_wins=*/true);
  TransferQueue::Turn held = HoldCopies();
  ASSERT_OK(carrier->Send(MaskedFrame(1)));
  ASSERT_OK(carrier->Send(GoodFrame(2)));
  EXPECT_EQ(Answers(*carrier, 2)[1].status().code(), 0) << carrier->Answers()[1].status().message();
  EXPECT_EQ(ReasonOf(carrier->Answers()[0].status()), v1::FRAME_SUPERSEDED);
  // The masks of one frame come at a time.
  ASSERT_OK(carrier->Send(MaskedFrame(3)));
  EXPECT_EQ(carrier->statistics().frames_in_flight(), 1);
  held.reset();
  EXPECT_EQ(Answers(*carrier, 3)[2].status().code(), 0) << carrier->Answers()[2].status().message();
}

TEST_P(MaskedFramesTest, AMaskMayComeWhenItsSessionIsOver) {
  std::unique_ptr<Carrier> carrier = OpenAway();
  TransferQueue::Turn held = HoldCopies();
  ASSERT_OK(carrier->Send(MaskedFrame(1)));
  carrier->Finish();
  carrier.reset();
  held.reset();
  EXPECT_TRUE(Eventually([this] { return HasReplica("mask", 1 - home_); }));
}

TEST_P(MaskedFramesTest, AMaskThatCannotComeIsAnErrorOfItsFrame) {
  const std::unique_ptr<Carrier> carrier = OpenAway();
  Lose(home_);
  ASSERT_OK(carrier->Send(MaskedFrame(1)));
  ASSERT_OK(carrier->Send(GoodFrame(2)));
  const std::vector<v1::FrameResult>& answers = Answers(*carrier, 2);
  EXPECT_EQ(ReasonOf(answers[0].status()), v1::DEVICE_LOST);
  EXPECT_EQ(answers[1].status().code(), 0) << answers[1].status().message();
}

TEST_P(SeveralDevicesTest, AFailedDeviceTakesOnlyItsOwnSessionsAlong) {
  PutVolume("fixed", Grid(), ResidentImage());
  auto first = OpenSession("first");
  auto second = OpenSession("second");
  ASSERT_EQ(first->session().context().index, 0);
  ASSERT_EQ(second->session().context().index, 1);
  Lose(1);

  const HttpAnswer health = HttpGet(server_->http_address(), "/healthz");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, "serving\n");
  EXPECT_EQ(context().devices[1].watchdog.state(), WatchdogState::kLost);
  ASSERT_OK(first->Send(GoodFrame(1)));
  ASSERT_OK(second->Send(GoodFrame(1)));
  EXPECT_EQ(Answers(*first, 1)[0].status().code(), 0) << Answers(*first, 1)[0].status().message();
  const google::rpc::Status failed = Answers(*second, 1)[0].status();
  EXPECT_EQ(failed.code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(failed.message(), testing::HasSubstr(NameOf(1)));
  EXPECT_EQ(ReasonOf(failed), v1::DEVICE_LOST);

  second->Break();
  EXPECT_EQ(server::ReasonOf(Resume("second")), v1::DEVICE_LOST);
  first->Break();
  EXPECT_OK(Resume("first"));
  auto third = OpenSession("third");
  EXPECT_EQ(third->session().context().index, 0);
  PutVolume("new", MovingGrid(), std::vector<float>(MovingGrid().voxels(), 1));
  PutVolume("newer", MovingGrid(), std::vector<float>(MovingGrid().voxels(), 2));
  EXPECT_EQ(DeviceOf(*Volume("newer")), 0);
}

TEST_P(SeveralDevicesTest, AHungDeviceTakesOnlyItsOwnSessionsAlong) {
  PutVolume("fixed", Grid(), ResidentImage());
  auto first = OpenSession("first");
  auto second = OpenSession("second");
  opened_[1]->BlockAt(1, DeviceCall::kFill);  // of the probe
  server_->Housekeep();
  opened_[1]->AwaitBlocked();
  // Two seconds at a time, as a process that runs looks.
  EXPECT_TRUE(Eventually([&] {
    AdvanceClock(std::chrono::seconds(2));
    server_->Housekeep();
    return context().devices[1].watchdog.state() == WatchdogState::kHung;
  }));
  // A probe of the first device may have been under way at a step; it comes back.
  EXPECT_TRUE(Eventually([&] {
    server_->Housekeep();
    return context().devices[0].watchdog.state() == WatchdogState::kWell;
  }));
  EXPECT_EQ(HttpGet(server_->http_address(), "/healthz").body, "serving\n");
  ASSERT_OK(first->Send(GoodFrame(1)));
  ASSERT_OK(second->Send(GoodFrame(1)));
  EXPECT_EQ(Answers(*first, 1)[0].status().code(), 0) << Answers(*first, 1)[0].status().message();
  const google::rpc::Status refused = Answers(*second, 1)[0].status();
  EXPECT_EQ(ReasonOf(refused), v1::DEVICE_HUNG);
  EXPECT_THAT(refused.message(), testing::HasSubstr(NameOf(1)));

  // A hang may pass.
  opened_[1]->Release();
  EXPECT_TRUE(Eventually([&] {
    server_->Housekeep();
    return CheckUsable(context().devices[1]).ok();
  }));
  ASSERT_OK(second->Send(GoodFrame(2)));
  EXPECT_EQ(Answers(*second, 2)[1].status().code(), 0);
}

TEST_P(SeveralDevicesTest, WhatLiesOnAFailedDeviceAloneIsUnavailable) {
  PutPair();
  Lose(1);
  const RegisterAnswer answer = Register(Request("moving", StageKind::kRigid));
  EXPECT_STATUS(answer.status, grpc::StatusCode::UNAVAILABLE, NameOf(1));
  EXPECT_EQ(ReasonOf(answer.status), v1::DEVICE_LOST);
  EXPECT_EQ(server::Download(*bulk_, "volumes/moving").status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Register(Request("twin", StageKind::kRigid)).status.ok());
}

TEST_P(SeveralDevicesTest, WithoutAnyDeviceTheServerDoesNotServe) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(HttpGet(server_->http_address(), "/healthz").status, 200);
    Lose(i);
  }
  const HttpAnswer health = HttpGet(server_->http_address(), "/healthz");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.body, "not serving\n");
}

TEST(SeveralDevices, ADeviceThatIsNotThereIsRefusedByName) {
  ServerOptions options;
  options.listen = options.http = "127.0.0.1:0";
  options.device = "cuda:0,99";
  options.open_device = [](absl::string_view spec) { return OpenDevice(spec == "cuda:0" ? "cpu" : spec); };
  const absl::Status refused = Server::Start(options).status();
  // A build without CUDA says so.
  EXPECT_TRUE(absl::IsNotFound(refused) || absl::IsUnimplemented(refused)) << refused;
  if (absl::IsNotFound(refused)) {
    EXPECT_THAT(refused.message(), testing::HasSubstr("no CUDA device 99"));
  }
}

}  // namespace
}  // namespace intrawarp::server
