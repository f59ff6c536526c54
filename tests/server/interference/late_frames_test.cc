// SPDX-License-Identifier: Apache-2.0
// A frame waits behind another session's long frame until its answer is late.
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
  // Takes much longer than kTimeLimit.
  static SessionOptions LongFrames() {
    SessionOptions options = PatientSession();
    options.config.set_fixed("volumes/large");
    options.config.mutable_options()->mutable_stages(0)->mutable_log_demons()->set_iterations(20);
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
  void ExpectNoLateOk(SessionOptions options) {
    NavigationClient busy(address(), LongFrames()), client(address(), std::move(options));
    busy.Send(LargeGrid());
    AwaitUsage("the long frame runs", [](const v1::Usage& usage) { return usage.jobs() == 1; });
    const FrameSeen frame = client.Next();
    const v1::Report& report = frame.result.report();
    std::cout << "[ FRAMES   ] behind a long frame: " << frame.Name() << ", verdict "
              << v1::Verdict_Name(report.verdict()) << ", queue " << report.latency().queue_ms() << " ms, total "
              << report.latency().total_ms() << " ms of " << kTimeLimit.count() << "\n";
    EXPECT_TRUE(frame.in_stream);
    EXPECT_NE(frame.code, grpc::UNIMPLEMENTED);
    if (!frame.ok()) {
      // DEADLINE_PASSED or DEADLINE_UNREACHABLE.
      EXPECT_EQ(frame.code, grpc::DEADLINE_EXCEEDED) << frame.Name();
      return;
    }
    if (report.latency().total_ms() <= static_cast<double>(kTimeLimit.count())) return;
    EXPECT_EQ(report.verdict(), v1::VERDICT_REVIEW) << "a late answer is not OK";
    EXPECT_THAT(CausesOf(report), testing::Contains("VERDICT_CAUSE_LATE"));
  }
};

TEST_F(LateFramesTest, WithADeadlineAreNotCalledOk) {
  SessionOptions options = EasyFrames();
  options.deadline = kTimeLimit;
  ExpectNoLateOk(options);
}

TEST_F(LateFramesTest, ThatAreWantedAllTheSameAreNotCalledOkEither) {
  SessionOptions options = EasyFrames();
  options.deadline = kTimeLimit;
  options.config.set_late_frames(v1::LATE_FRAMES_DELIVER);
  ExpectNoLateOk(options);
}

}  // namespace
}  // namespace intrawarp::server
