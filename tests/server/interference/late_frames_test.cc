// SPDX-License-Identifier: Apache-2.0
// A frame waits behind another session's long frame until its answer is late.
#include <thread>

#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

constexpr auto kTimeLimit = std::chrono::milliseconds(20);

class LateFramesTest : public InterferenceTest {
 protected:
  static ServerOptions RoomForALongFrame() {
    ServerOptions options = SmallServer();
    options.limits.resident_capacity_bytes = int64_t{1} << 30;
    options.limits.pinned_capacity_bytes = int64_t{256} << 20;
    return options;
  }
  LateFramesTest() : InterferenceTest(RoomForALongFrame()) { Put("large", LargeGrid()); }

  static Geometry LargeGrid() { return BoxGeometry(96, 96, 96); }
  // Takes minutes.
  static SessionOptions LongFrames() {
    SessionOptions options = PatientSession();
    options.config.set_fixed("volumes/large");
    options.config.mutable_options()->mutable_stages(0)->mutable_log_demons()->set_iterations(10000);
    return options;
  }
  static std::vector<std::string> CausesOf(const v1::Report& report) {
    std::vector<std::string> causes;
    for (const v1::VerdictReason& reason : report.reasons()) causes.push_back(v1::VerdictCause_Name(reason.cause()));
    return causes;
  }
  // Its frames converge at once, so that nothing but lateness speaks against them.
  static SessionOptions EasyFrames() {
    SessionOptions options = PatientSession();
    options.still = true;
    options.config.mutable_options()->mutable_stages(0)->mutable_rigid()->set_levels(1);
    return options;
  }
  // Sends a frame behind another session's, which goes on until the frame is late for certain.
  FrameSeen LateFrame(SessionOptions options) {
    NavigationClient client(address(), std::move(options));
    client.Next();  // the session is open
    std::optional<NavigationClient> busy(std::in_place, address(), LongFrames());
    busy->Send(LargeGrid());
    AwaitUsage("the long frame runs", [](const v1::Usage& usage) { return usage.jobs() == 1; });
    client.Send(PatientGrid());
    AwaitUsage("a frame is there, or was refused", [](const v1::Usage& usage) { return usage.jobs() <= 2; });
    std::this_thread::sleep_for(2 * kTimeLimit);
    busy.reset();
    const FrameSeen frame = client.Receive();
    const v1::Report& report = frame.result.report();
    std::cout << "[ FRAMES   ] behind a long frame: " << frame.Name() << ", verdict "
              << v1::Verdict_Name(report.verdict()) << ", queue " << report.latency().queue_ms() << " ms, total "
              << report.latency().total_ms() << " ms of " << kTimeLimit.count() << "\n";
    EXPECT_TRUE(frame.in_stream);
    return frame;
  }
};

TEST_F(LateFramesTest, WithADeadlineAreNotCalledOk) {
  SessionOptions options = EasyFrames();
  options.deadline = kTimeLimit;
  const FrameSeen frame = LateFrame(options);
  // DEADLINE_PASSED or DEADLINE_UNREACHABLE.
  EXPECT_EQ(frame.code, grpc::DEADLINE_EXCEEDED) << frame.Name();
}

// A frame that starts in time, and takes longer.
TEST_F(LateFramesTest, ThatAreWantedAllTheSameAreNotCalledOkEither) {
  SessionOptions options = LongFrames();
  options.still = true;
  options.config.mutable_options()->mutable_stages(0)->mutable_log_demons()->set_iterations(20);
  options.deadline = kTimeLimit;
  options.config.set_late_frames(v1::LATE_FRAMES_DELIVER);
  NavigationClient client(address(), std::move(options));
  client.Send(LargeGrid());
  const FrameSeen frame = client.Receive();
  ASSERT_TRUE(frame.ok()) << frame.Name();
  EXPECT_EQ(frame.result.report().verdict(), v1::VERDICT_REVIEW) << "a late answer is not OK";
  EXPECT_THAT(CausesOf(frame.result.report()), testing::Contains("VERDICT_CAUSE_LATE"));
}

}  // namespace
}  // namespace intrawarp::server
