// SPDX-License-Identifier: Apache-2.0
// Navigate under load and with clients that break off: flow control, late frames, cancel, resume, an idle session.
#include <atomic>

#include "server/session/navigate_session.h"
#include "server/session/rpc/navigate_stream.h"
#include "server/session/session_store.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/session/rpc/navigate_fixture.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

TEST_P(NavigateTest, ReadsAheadNoMoreThanItMay) {
  PutResident();
  v1::NavigateRequest config = Config();
  config.mutable_config()->set_max_pending(1);
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(config));
  std::thread writer([&] {
    for (int n = 1; n <= 8; ++n) ASSERT_TRUE(WriteAll(*stream, GoodFrame(n)));
    stream->WritesDone();
  });
  int results = 0;
  std::optional<v1::Session> closed;
  v1::NavigateResponse response;
  while (stream->Read(&response)) {
    results += response.has_result() ? 1 : 0;
    if (response.has_closed()) closed = response.closed();
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(results, 8);
  // Two frames: the one that is answered, and one ahead.
  ASSERT_TRUE(closed.has_value());
  EXPECT_LE(closed->statistics().peak_frames_in_flight(), 2);
}

TEST_P(NavigateTest, AFloodOfHeadersIsHeldByFlowControl) {
  constexpr int kHeaders = 10000;
  PutResident();
  v1::NavigateRequest config = NamedConfig("flooded");
  config.mutable_config()->set_max_pending(1);
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(config));
  ReadOpened(*stream);
  const size_t leased = context().pinned.leased_bytes();
  const auto session = *context().sessions.Find("flooded");
  std::thread writer([&] {
    v1::NavigateRequest header = GoodFrame(1)[0];
    for (int n = 1; n <= kHeaders; ++n) {
      header.mutable_frame()->set_frame_number(n);
      if (!stream->Write(header)) return;
    }
    stream->WritesDone();
  });
  // Nothing is read until some have been answered.
  EXPECT_TRUE(Eventually([&] { return session->Describe().statistics().frames_failed() > 2; }));
  EXPECT_EQ(context().pinned.leased_bytes(), leased);
  int results = 0;
  while (std::optional<Answered> answered = ReadResult(*stream)) {
    EXPECT_EQ(answered->result.frame_number(), ++results);
    EXPECT_EQ(answered->result.status().code(), grpc::INVALID_ARGUMENT);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(results, kHeaders);
  EXPECT_LE(session->Describe().statistics().peak_frames_in_flight(), 2);
}

TEST_P(NavigateTest, AFrameBehindLongWorkIsNeverOkWhenLate) {
  PutResident();
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  v1::NavigateRequest config = Config();
  // A budget alone does not see the queue.
  config.mutable_config()->mutable_options()->mutable_budget()->set_seconds(60);
  config.mutable_config()->mutable_frame_deadline()->set_nanos(1000000);
  ASSERT_TRUE(stream->Write(config));
  ReadOpened(*stream);
  JobBlocker blocker(context().jobs);
  ASSERT_TRUE(WriteAll(*stream, GoodFrame(1)));
  const std::optional<Answered> answered = ReadResult(*stream);
  ASSERT_TRUE(answered.has_value());
  EXPECT_EQ(answered->result.status().code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(answered->result.status()), v1::DEADLINE_PASSED);
  EXPECT_FALSE(answered->result.has_report());
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(NavigateTest, AFrameDoesNotWaitForABatchJobToEnd) {
  PutResident();
  std::atomic<bool> end = false;
  std::promise<void> started, ended;
  Job batch;
  batch.job_class = JobClass::kBatch;
  batch.run = [&](const absl::StatusOr<const ExecContext*>& ctx) {
    started.set_value();
    while (!end) EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kContinue);
    ended.set_value();
  };
  ASSERT_TRUE(context().jobs.Submit(std::move(batch)).ok());
  started.get_future().wait();

  const Answer answer = Navigate({{Config()}, GoodFrame(1), GoodFrame(2)});

  ASSERT_EQ(answer.frames.size(), 2);
  for (const Answered& frame : answer.frames) EXPECT_EQ(frame.result.status().code(), 0);
  EXPECT_EQ(context().jobs.started(JobClass::kBatch), 1);
  end = true;
  ended.get_future().wait();
}

TEST_P(NavigateTest, ACancelLeavesNothingWhereverItComes) {
  PutResident();
  for (const int stage : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(stage);
    grpc::ClientContext rpc;
    auto stream = registration_->Navigate(&rpc);
    std::vector<v1::NavigateRequest> half = GoodFrame(2);
    half.resize(2);
    std::unique_ptr<JobBlocker> blocker;
    if (stage == 1) {  // the session waits for its warm-up
      blocker = std::make_unique<JobBlocker>(context().jobs);
      ASSERT_TRUE(stream->Write(Config()));
    }
    if (stage >= 2) {  // a frame waits for the device
      ASSERT_TRUE(stream->Write(Config()));
      ReadOpened(*stream);
      blocker = std::make_unique<JobBlocker>(context().jobs);
      ASSERT_TRUE(WriteAll(*stream, GoodFrame(1)));
    }
    if (stage >= 3) {  // another is being received
      ASSERT_TRUE(WriteAll(*stream, half));
    }
    if (stage >= 1) {
      ASSERT_TRUE(Eventually([&] { return context().jobs.pending() == 2; }));
    }
    if (stage >= 4) {
      blocker->Release();  // it runs, or is answered
      ASSERT_TRUE(Eventually([&] { return context().jobs.pending() <= 1; }));
    }

    rpc.TryCancel();

    EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
    EXPECT_TRUE(Eventually([&] { return context().ledger.in_use(Resource::kStreams) == 0; }));
    blocker.reset();
    EXPECT_TRUE(Eventually([&] {
      return context().jobs.pending() == 0 && context().pinned.leased_bytes() == 0 && context().transforms.size() == 0;
    }));
  }
}

TEST_P(NavigateTest, ABrokenConnectionIsResumedFromTheLastGoodTransform) {
  PutResident();
  v1::NavigateRequest config = NamedConfig("s");
  {
    TcpRelay relay(server_->grpc_address());
    auto stub =
        v1::RegistrationService::NewStub(grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext rpc;
    auto stream = stub->Navigate(&rpc);
    ASSERT_TRUE(stream->Write(config));
    ASSERT_TRUE(WriteAll(*stream, GoodFrame(7)));
    ASSERT_TRUE(ReadResult(*stream).has_value());
    relay.Cut();
    EXPECT_FALSE(ReadResult(*stream).has_value());
    EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  }
  const auto session = *context().sessions.Find("s");
  ASSERT_TRUE(Eventually([&] { return session->state() == NavigateSession::State::kDetached; }));
  EXPECT_EQ(context().transforms.size(), 1);

  config.mutable_config()->set_resume(true);
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(config));
  const v1::SessionOpened opened = ReadOpened(*stream);
  EXPECT_EQ(opened.resumed_from_frame(), 7);
  EXPECT_EQ(opened.session().last_frame_number(), 7);
  ASSERT_TRUE(WriteAll(*stream, GoodFrame(8)));
  EXPECT_EQ(ReadResult(*stream)->result.status().code(), 0);
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(context().transforms.size(), 0);
}

TEST_P(NavigateTest, ASecondStreamTakesTheSessionOver) {
  PutResident();
  grpc::ClientContext first_rpc, second_rpc, third_rpc;
  auto first = registration_->Navigate(&first_rpc);
  ASSERT_TRUE(first->Write(NamedConfig("s")));
  ReadOpened(*first);
  ASSERT_TRUE(WriteAll(*first, GoodFrame(1)));
  ASSERT_TRUE(ReadResult(*first).has_value());

  auto refused = registration_->Navigate(&third_rpc);
  ASSERT_TRUE(refused->Write(NamedConfig("s")));
  EXPECT_FALSE(ReadResult(*refused).has_value());
  EXPECT_EQ(ReasonOf(refused->Finish()), v1::RESOURCE_EXISTS);

  v1::NavigateRequest config = NamedConfig("s");
  config.mutable_config()->set_resume(true);
  auto second = registration_->Navigate(&second_rpc);
  ASSERT_TRUE(second->Write(config));
  EXPECT_EQ(ReadOpened(*second).resumed_from_frame(), 1);
  EXPECT_FALSE(ReadResult(*first).has_value());
  const grpc::Status status = first->Finish();
  EXPECT_STATUS(status, grpc::ABORTED, "resumed");
  EXPECT_EQ(ReasonOf(status), v1::SESSION_ENDED);
  ASSERT_TRUE(WriteAll(*second, GoodFrame(2)));
  EXPECT_EQ(ReadResult(*second)->result.status().code(), 0);
  second->WritesDone();
  EXPECT_FALSE(ReadResult(*second).has_value());
  EXPECT_TRUE(second->Finish().ok());
}

// The clock jumps, so that a write whose end was not noted yet would look stalled.
class UnwatchedNavigateTest : public NavigateTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.stream_idle_timeout = std::chrono::seconds(0);
    return limits;
  }
  UnwatchedNavigateTest() : NavigateTest(Limits()) {}
};

INTRAWARP_INSTANTIATE_DEVICE_TEST(UnwatchedNavigateTest);

TEST_P(UnwatchedNavigateTest, AnIdleSessionEndsItsStream) {
  PutResident();
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(Config()));
  ReadOpened(*stream);
  AdvanceClock(std::chrono::minutes(16));
  server_->Housekeep();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  const grpc::Status status = stream->Finish();
  EXPECT_STATUS(status, grpc::ABORTED, "idle");
  EXPECT_EQ(ReasonOf(status), v1::SESSION_ENDED);
  EXPECT_EQ(context().sessions.size(), 0);
}

TEST_P(NavigateTest, AVanishedClientLeavesNothing) {
  PutResident();
  TcpRelay relay(server_->grpc_address());
  auto stub =
      v1::RegistrationService::NewStub(grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext rpc;
  auto stream = stub->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(Config()));
  ASSERT_TRUE(WriteAll(*stream, GoodFrame(1)));
  ASSERT_TRUE(ReadResult(*stream).has_value());
  EXPECT_EQ(context().transforms.size(), 1);

  relay.Cut();

  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_TRUE(
      Eventually([&] { return context().ledger.in_use(Resource::kStreams) == 0 && context().transforms.size() == 0; }));
}

TEST_P(NavigateTest, ADeadlineEndsAStream) {
  PutResident();
  grpc::ClientContext rpc;
  rpc.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  auto stream = registration_->Navigate(&rpc);
  stream->Write(Config());
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_EQ(stream->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return context().ledger.in_use(Resource::kStreams) == 0; }));
}

}  // namespace
}  // namespace intrawarp::server
