// SPDX-License-Identifier: Apache-2.0
// Sessions of a server with a state directory that stops, is killed or loses its power, and starts again.
#include "server/session/durable_sessions.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/dimse/association.h"
#include "server/store/durable_objects.h"
#include "tests/server/session/session_fixture.h"
#include "tests/server/state/test_files.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

using State = NavigateSession::State;
using std::chrono::seconds;

// A base of the test, so that the disk is there before the first server and goes after the last one.
struct Disk {
  state::MemoryDisk disk_;
  state::LockedFiles locked_{disk_};
  std::unique_ptr<state::FaultyFiles> files_ = std::make_unique<state::FaultyFiles>(locked_, state::Fault::kFull);
  ServerOptions options_;
};

class DurableSessionsTest : protected Disk, public SessionTest {
 protected:
  DurableSessionsTest()
      : SessionTest(ServerLimits(), [this](ServerOptions& options) {
          options.state_dir = "d";
          options.state_files = files_.get();
          options_ = options;
        }) {}

  void SetUp() override { PutResident("resident"); }
  void PutResident(const std::string& id) {
    ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(Grid(), ResidentImage(), "u" + id, id)).ok());
  }

  static v1::NavigateConfig Config(StageKind method = StageKind::kRigid) {
    v1::NavigateConfig config;
    config.set_fixed("volumes/resident");
    v1::Stage& stage = *config.mutable_options()->add_stages();
    SetMethod(stage, method);
    SetLevels(stage, 1);
    SetIterations(stage, 3);
    config.set_session_id("s");
    config.mutable_resume_window()->set_seconds(60);
    return config;
  }
  static v1::NavigateConfig Resuming(const std::string& id) {
    v1::NavigateConfig config;
    config.set_session_id(id);
    config.set_resume(true);
    return config;
  }

  // Nothing reaches the disk any more, as if the process had been killed. What was not synced is lost, or not, by the
  // seed.
  void LosePower(int seed = 0) {
    files_->Unplug();
    server_.reset();
    disk_.LosePower(seed);
    Start();
  }
  void Start() {
    files_ = std::make_unique<state::FaultyFiles>(locked_, state::Fault::kFull);
    options_.state_files = files_.get();
    Serve(options_);
  }
  void Restart() {
    server_.reset();
    Start();
  }

  absl::StatusOr<std::unique_ptr<Carrier>> Resume(const std::string& id, const Identity& caller = Nobody()) {
    INTRAWARP_ASSIGN_OR_RETURN(auto session, context().sessions.Open(context(), Resuming(id), caller));
    auto carrier = std::make_unique<Carrier>(std::move(session), [] {});
    INTRAWARP_RETURN_IF_ERROR(carrier->Resume());
    return carrier;
  }
  // Sends good frames and returns their answers.
  std::vector<v1::FrameResult> Run(Carrier& carrier, int first, int last) {
    for (int n = first; n <= last; ++n) {
      EXPECT_OK(carrier.Send(GoodFrame(n)));
      Answers(carrier, static_cast<size_t>(n - first + 1));
    }
    for (const auto& answer : carrier.Answers()) EXPECT_EQ(answer.status().code(), 0) << answer.status().message();
    return carrier.Answers();
  }
  // Waits until the disk has the session's newest transform.
  void WaitUntilDurable(NavigateSession& session, int64_t frame) {
    EXPECT_TRUE(Eventually([&] {
      session.Flush();
      return session.durable_frame() == frame;
    }));
  }
  // The transform of a frame's answer, bit by bit.
  std::string TransformOf(const v1::FrameResult& result) {
    const auto stored = *context().transforms.Find(result.transform().substr(std::string("transforms/").size()));
    std::string bytes;
    const AffineMap& affine = stored->transform.affine();
    bytes.append(reinterpret_cast<const char*>(&affine), sizeof(affine));
    const std::vector<float> field = EngineField(stored->id, Grid());
    return bytes + Bytes(field);
  }
  std::vector<state::SessionRow> Rows() { return *context().durable.state().ListSessions(); }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DurableSessionsTest);

// The frame after a restart has the bits that it has without one.
TEST_P(DurableSessionsTest, ASessionGoesOnFromItsLastGoodTransform) {
  for (const StageKind method : {StageKind::kRigid, StageKind::kAffine, StageKind::kFfd, StageKind::kLogDemons}) {
    SCOPED_TRACE(static_cast<int>(method));
    auto carrier = Open(Config(method));
    Run(*carrier, 1, 3);
    WaitUntilDurable(carrier->session(), 3);
    files_->Unplug();
    ASSERT_OK(carrier->Send(GoodFrame(4)));
    const v1::FrameResult fourth = Answers(*carrier, 4)[3];
    ASSERT_EQ(fourth.status().code(), 0) << fourth.status().message();
    EXPECT_EQ(fourth.kept_frame_number(), 3);
    const std::string expected = TransformOf(fourth);
    carrier->Break();
    carrier.reset();
    LosePower();

    auto session = context().sessions.Find("s");
    ASSERT_OK(session.status());
    EXPECT_EQ((*session)->state(), State::kDetached);
    const v1::Session described = (*session)->Describe();
    EXPECT_EQ(described.start_frame_number(), 3);
    EXPECT_EQ(described.kept_frame_number(), 3);
    EXPECT_EQ(described.config().resume_window().seconds(), 60);
    EXPECT_GE(described.statistics().frames_ok() + described.statistics().frames_dropped(), 3);
    EXPECT_EQ(described.statistics().frames_in_flight(), 0);
    auto resumed = Resume("s");
    ASSERT_OK(resumed.status());
    EXPECT_EQ((*resumed)->session().Describe().resumptions(), 1);
    ASSERT_OK((*resumed)->Send(GoodFrame(4)));
    const v1::FrameResult again = Answers(**resumed, 1)[0];
    ASSERT_EQ(again.status().code(), 0) << again.status().message();
    EXPECT_EQ(again.frame_number(), 4);
    EXPECT_TRUE(TransformOf(again) == expected);
    // Numbers go on growing.
    ASSERT_OK((*resumed)->Send(GoodFrame(4)));
    EXPECT_EQ(Answers(**resumed, 2)[1].status().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    (*resumed)->Finish();
    EXPECT_TRUE(Eventually([this] { return Rows().empty(); }));
  }
}

// Weights of the session and of a frame: the frames after a restart have the bits that they have without one.
TEST_P(DurableSessionsTest, WeightsCountAfterARestartAsBefore) {
  for (const char* const id : {"weight", "own"}) {
    std::vector<float> weights(static_cast<size_t>(Grid().voxels()));
    for (size_t i = 0; i < weights.size(); ++i) {
      const size_t at = *id == 'o' ? weights.size() - 1 - i : i;
      weights[i] = 0.1f + 0.9f * static_cast<float>(at) / static_cast<float>(weights.size());
    }
    ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(Grid(), weights, id, id)).ok());
  }
  v1::NavigateConfig config = Config(StageKind::kAffine);
  config.mutable_options()->set_moving_weight("volumes/weight");
  config.set_frame_masks(true);
  const auto with_own = [](int n) {
    std::vector<v1::NavigateRequest> frame = GoodFrame(n);
    frame[0].mutable_frame()->set_weight("volumes/own");
    return frame;
  };
  auto carrier = Open(config);
  Run(*carrier, 1, 2);
  WaitUntilDurable(carrier->session(), 2);
  files_->Unplug();
  const auto send_both = [&](Carrier& to, size_t first) {
    EXPECT_OK(to.Send(GoodFrame(3)));
    EXPECT_OK(to.Send(with_own(4)));
    const std::vector<v1::FrameResult>& answers = Answers(to, first + 2);
    std::vector<std::string> transforms;
    for (size_t i = first; i < first + 2; ++i) {
      EXPECT_EQ(answers[i].status().code(), 0) << answers[i].status().message();
      EXPECT_EQ(answers[i].report().options().moving_weight(), i == first ? "volumes/weight" : "volumes/own");
      transforms.push_back(TransformOf(answers[i]));
    }
    return transforms;
  };
  const std::vector<std::string> expected = send_both(*carrier, 2);
  carrier->Break();
  carrier.reset();
  LosePower();
  auto resumed = Resume("s");
  ASSERT_OK(resumed.status());
  const v1::NavigateConfig described = (*resumed)->session().Describe().config();
  EXPECT_TRUE(described.frame_masks());
  EXPECT_EQ(described.options().moving_weight(), "volumes/weight");
  EXPECT_TRUE(send_both(**resumed, 0) == expected);
  (*resumed)->Finish();
  EXPECT_TRUE(Eventually([this] { return Rows().empty(); }));
}

TEST_P(DurableSessionsTest, ASessionKeepsItsChoiceOfStages) {
  v1::NavigateConfig config = Config();
  config.clear_options();
  auto carrier = Open(config);
  Run(*carrier, 1, 2);
  WaitUntilDurable(carrier->session(), 2);
  const std::vector<StageOptions> chosen = carrier->session().start()->chosen;
  carrier->Break();
  carrier.reset();
  Restart();
  const auto session = context().sessions.Find("s");
  ASSERT_OK(session.status());
  ASSERT_NE((*session)->start(), nullptr);
  EXPECT_EQ((*session)->start()->chosen.size(), chosen.size());
}

TEST_P(DurableSessionsTest, AStopWritesTheNewestTransform) {
  auto carrier = Open(Config());
  Run(*carrier, 1, 5);
  carrier->Break();
  carrier.reset();
  Restart();
  EXPECT_EQ((*context().sessions.Find("s"))->Describe().start_frame_number(), 5);
  EXPECT_EQ((*context().sessions.Find("s"))->last_frame_number(), 5);
}

// What a client was told of is there, whatever of the rest the disk has.
TEST_P(DurableSessionsTest, WhatWasAcknowledgedOutlivesALossOfPower) {
  for (int seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    auto carrier = Open(Config());
    std::optional<int64_t> kept;
    for (int n = 1; n <= 1 + 3 * seed; ++n) {
      ASSERT_OK(carrier->Send(GoodFrame(n)));
      const v1::FrameResult& answer = Answers(*carrier, static_cast<size_t>(n)).back();
      if (answer.has_kept_frame_number()) kept = answer.kept_frame_number();
    }
    carrier->Break();
    files_->Unplug();
    carrier.reset();
    LosePower(seed);
    auto resumed = Resume("s");
    ASSERT_OK(resumed.status()) << "its opening was acknowledged";
    const v1::Session session = (*resumed)->session().Describe();
    EXPECT_GE(session.start_frame_number(), kept.value_or(0));
    Run(**resumed, 100, 101);
    (*resumed)->Finish();
    EXPECT_TRUE(Eventually([this] { return Rows().empty(); }));
  }
}

TEST_P(DurableSessionsTest, TheWindowCountsFromTheRestart) {
  auto carrier = Open(Config());
  carrier->Break();
  carrier.reset();
  AdvanceClock(seconds(50));
  Restart();
  AdvanceClock(seconds(59));
  server_->Housekeep();
  ASSERT_OK(context().sessions.Find("s").status());
  AdvanceClock(seconds(1));
  server_->Housekeep();
  EXPECT_FALSE(context().sessions.Find("s").ok());
  EXPECT_TRUE(Eventually([this] { return Rows().empty(); }));
  Restart();
  EXPECT_EQ(context().sessions.size(), 0);
}

TEST_P(DurableSessionsTest, OnlyItsOwnerAndOnlyWithItsConfigTakesItUp) {
  const Identity owner{"or3", Roles(Role::kFrame)};
  v1::NavigateConfig config = Config();
  config.clear_resume_window();
  auto session = context().sessions.Open(context(), config, Identity{"or3", Roles(Role::kAdmin)});
  ASSERT_OK(session.status());
  std::promise<absl::Status> opened;
  WarmUp(*session, [&](const absl::StatusOr<bool>& done) { opened.set_value(done.status()); });
  ASSERT_OK(opened.get_future().get());
  ASSERT_OK((*session)->Open(true, nullptr).status());
  session->reset();
  Restart();
  EXPECT_EQ(server::ReasonOf(Resume("s").status()), v1::SESSION_NOT_RESUMABLE) << "nobody";
  EXPECT_EQ(server::ReasonOf(Resume("s", {"or4", Roles(Role::kFrame)}).status()), v1::SESSION_NOT_RESUMABLE);
  v1::NavigateConfig other = config;
  other.set_resume(true);
  other.set_max_pending(3);
  EXPECT_EQ(server::ReasonOf(context().sessions.Open(context(), other, owner).status()), v1::SESSION_NOT_RESUMABLE);
  const auto resumed = Resume("s", owner);
  ASSERT_OK(resumed.status());
  EXPECT_EQ((*resumed)->session().owner(), "or3");
}

TEST_P(DurableSessionsTest, AClosedSessionDoesNotComeBack) {
  auto carrier = Open(Config());
  Run(*carrier, 1, 1);
  std::promise<void> gone;
  carrier->session().Close(absl::OkStatus(), [&] { gone.set_value(); });
  gone.get_future().wait();
  EXPECT_TRUE(Rows().empty()) << "the close was acknowledged";
  carrier.reset();
  LosePower();
  EXPECT_EQ(context().sessions.size(), 0);
  EXPECT_TRUE(disk_.Paths("d/spool/").size() == 1) << "the resident volume alone";
}

TEST_P(DurableSessionsTest, ASessionOfOneConnectionIsNotKept) {
  v1::NavigateConfig config = Config();
  config.mutable_resume_window()->set_seconds(0);
  auto carrier = Open(config);
  Run(*carrier, 1, 1);
  EXPECT_FALSE(carrier->Answers()[0].has_kept_frame_number());
  EXPECT_TRUE(Rows().empty());
}

TEST_P(DurableSessionsTest, ADiskThatIsFullRefusesTheOpeningAndLeavesFramesAlone) {
  auto carrier = Open(Config());
  files_->Unplug();
  v1::NavigateConfig config = Config();
  config.set_session_id("t");
  auto session = context().sessions.Open(context(), config);
  ASSERT_OK(session.status());
  std::promise<absl::Status> opened;
  WarmUp(*session, [&](const absl::StatusOr<bool>& done) { opened.set_value(done.status()); });
  EXPECT_EQ(server::ReasonOf(opened.get_future().get()), v1::STATE_FULL);
  EXPECT_FALSE(context().sessions.Find("t").ok());
  Run(*carrier, 1, 3);
  EXPECT_FALSE(carrier->session().durable_frame().has_value());
  files_->Replug();
  WaitUntilDurable(carrier->session(), 3);
}

TEST_P(DurableSessionsTest, AClosedSessionWaitsForNoDevice) {
  auto carrier = Open(Config());
  auto hung = std::make_unique<JobBlocker>(context().copies);
  Run(*carrier, 1, 2);
  carrier->session().Flush();
  const auto gone = std::make_shared<std::promise<void>>();
  carrier->session().Close(SessionEnded("closed"), [gone] { gone->set_value(); });
  EXPECT_EQ(gone->get_future().wait_for(seconds(60)), std::future_status::ready);
  EXPECT_TRUE(Rows().empty());
  hung.reset();
  { JobBlocker behind(context().copies); }
  carrier.reset();
  Restart();
  EXPECT_TRUE(Rows().empty());
  EXPECT_EQ(context().sessions.size(), 0);
}

// The peer has all of the time that a stop gives to what is under way, and sessions do not wait for it.
TEST_P(DurableSessionsTest, AStopWritesSessionsWhileADicomPeerLingers) {
  const std::string peers = testing::TempDir() + "/durable_sessions_peers_" + std::to_string(getpid());
  std::ofstream(peers) << "SCU 127.0.0.1 -\n";
  options_.dicom.listen = "127.0.0.1:0";
  options_.dicom.peers = peers;
  options_.dicom.spool = testing::TempDir() + "/durable_sessions_spool_" + std::to_string(getpid());
  std::filesystem::create_directory(options_.dicom.spool);
  options_.drain_timeout = std::chrono::minutes(10);
  Restart();
  const std::string address = server_->dicom_address();
  const auto connection = dimse::Connection::Connect("127.0.0.1", std::stoi(address.substr(address.rfind(':') + 1)),
                                                     std::chrono::steady_clock::now() + seconds(60));
  ASSERT_OK(connection.status());
  auto peer = dimse::Association::Request(
      *connection, {}, {"INTRAWARP", "SCU", {{1, "1.2.840.10008.1.1", {"1.2.840.10008.1.2"}}}, {}, 16384});
  ASSERT_OK(peer.status());
  auto carrier = Open(Config());
  Run(*carrier, 1, 3);
  std::thread stop([this] { server_->Stop(); });
  EXPECT_TRUE(Eventually([this] { return context().sessions.size() == 0; }));
  EXPECT_EQ(carrier->session().durable_frame(), 3);
  (*peer)->Release();
  stop.join();
  carrier.reset();
  options_.dicom = {};
  Restart();
  EXPECT_EQ(context().sessions.size(), 1);
  std::filesystem::remove_all(peers);
}

TEST_P(DurableSessionsTest, ASessionForWhichThereIsNoPlaceNowIsNotForgotten) {
  auto carrier = Open(Config());
  v1::NavigateConfig config = Config();
  config.set_session_id("t");
  auto other = Open(config);
  for (Carrier* one : {carrier.get(), other.get()}) {
    Run(*one, 1, 1);
    WaitUntilDurable(one->session(), 1);
    one->Break();
  }
  carrier.reset();
  other.reset();
  const int places = std::exchange(options_.limits.max_sessions, 1);
  Restart();
  EXPECT_EQ(context().sessions.size(), 1);
  EXPECT_EQ(Rows().size(), 2u);
  options_.limits.max_sessions = places;
  Restart();
  EXPECT_EQ(context().sessions.size(), 2);
}

TEST_P(DurableSessionsTest, ASessionThatCannotGoOnIsForgotten) {
  PutResident("other");
  auto carrier = Open(Config());
  v1::NavigateConfig config = Config();
  config.set_session_id("t");
  config.set_fixed("volumes/other");
  auto other = Open(config);
  Run(*other, 1, 1);
  WaitUntilDurable(other->session(), 1);
  ASSERT_OK(context().durable.Erase(context().volumes, "resident", Anybody()));
  carrier->Break();
  other->Break();
  carrier.reset();
  other.reset();
  Restart();
  EXPECT_FALSE(context().sessions.Find("s").ok());
  EXPECT_TRUE(context().sessions.Find("t").ok());
  EXPECT_EQ(Rows().size(), 1u);
  EXPECT_EQ(server::ReasonOf(Resume("s").status()), v1::SESSION_NOT_RESUMABLE);
  // Another volume under the id of its own is not its own.
  auto again = Resume("t");
  ASSERT_OK(again.status());
  ASSERT_OK(context().durable.Erase(context().volumes, "other", Anybody()));
  ASSERT_TRUE(
      server::Upload(*bulk_, MakeVolume(Grid(), std::vector<float>(ResidentImage().size(), 1.f), "v", "other")).ok());
  (*again)->Break();
  again->reset();
  Restart();
  EXPECT_EQ(context().sessions.size(), 0);
  EXPECT_TRUE(Rows().empty());
}

TEST_P(DurableSessionsTest, ADamagedTransformIsNeverAStart) {
  auto carrier = Open(Config(StageKind::kFfd));
  Run(*carrier, 1, 1);
  WaitUntilDurable(carrier->session(), 1);
  const std::string payload = "d/" + state::PayloadSpool::FileName(Rows()[0].payload);
  carrier->Break();
  carrier.reset();
  server_.reset();
  disk_.FlipBit(payload, 100);
  Start();
  EXPECT_EQ(context().sessions.size(), 0);
  EXPECT_TRUE(Rows().empty());
}

}  // namespace
}  // namespace intrawarp::server
