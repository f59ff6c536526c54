// SPDX-License-Identifier: Apache-2.0
// A client that falls silent within a message is ended; one that owes nothing may wait.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/server/raw_call.h"
#include "tests/server/state_cleanup_fixture.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

// Calls whose client stops half way and stays. An upload or a frame that has begun is owed; a stream of frames between
// two of them, and a call that waits for its job, may wait.
class SilentClientTest : public StateCleanupTest {
 protected:
  SilentClientTest() { ExpireUploads(); }  // as the clock goes on

  std::unique_ptr<RawCall> Begin(const std::string& label, const Stop& stop) {
    const std::vector<Rpc> rpcs = AllRpcs();
    const Rpc& rpc = Find(rpcs, label);
    auto call = std::make_unique<RawCall>(test_.channel, rpc.method());
    Messages messages = UnderItsOwnName(rpc, absl::StrCat("new-", stop.messages));
    messages.resize(stop.messages);
    // A session that has opened says so.
    if (label == kNavigate && stop.messages > 0) {
      Send(*call, messages, 1, false);
      EXPECT_TRUE(call->Read().has_value());
      WaitUntilWritten();
      messages.erase(messages.begin());
    }
    Send(*call, messages, messages.size(), stop.writes_done);
    Roundtrip(test_.channel);
    WaitForWorkers();
    // A session has its place from its config on.
    const int places = label == kNavigate && stop.messages == 0 ? 0 : 1;
    EXPECT_TRUE(Eventually([&] { return context().ledger.in_use(Resource::kStreams) == places; }));
    return call;
  }
  // A client may have read a message before the server hears that it was written; until then the server would take a
  // leap of the clock for a client that does not read. Only for a stream whose client owes nothing.
  void WaitUntilWritten() {
    EXPECT_TRUE(Eventually([this] {
      test_.clock.Advance(std::chrono::milliseconds(1));
      test_.server->Housekeep();
      return context().stream_watch.longest_wait() == std::chrono::nanoseconds(0);
    }));
  }
  // Gives the workers time for what they have: tasks are begun in order, and each here waits for the one before.
  void WaitForWorkers() {
    for (int i = 0; i < 100; ++i) {
      std::promise<void> done;
      context().workers.Submit([&] { context().receivers.Submit([&done] { done.set_value(); }); });
      done.get_future().wait();
    }
  }
  void ExpectEnds(const std::string& label, const Stop& stop) {
    SCOPED_TRACE(absl::StrCat(label, " after ", stop.messages, " messages"));
    const std::unique_ptr<RawCall> call = Begin(label, stop);
    EXPECT_TRUE(EndsWhenStalled());
    while (call->Read().has_value()) {
    }
    const grpc::Status status = call->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
    EXPECT_EQ(DetailsOf(status).reason, "STREAM_STALLED");
  }
};

TEST_F(SilentClientTest, IsEndedWithinAnUpload) {
  for (const size_t messages : {0, 1, 2}) ExpectEnds("/intrawarp.v1.BulkService/Upload#volume", {messages});
}

TEST_F(SilentClientTest, IsEndedWithinAFrame) {
  for (const size_t messages : {0, 2, 3}) ExpectEnds(kNavigate, {messages});
}

TEST_F(SilentClientTest, MayWaitBetweenFrames) {
  auto call = Begin(kNavigate, {1});
  EXPECT_TRUE(StaysWhenIdle());
  call->Cancel();
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  call = Begin(kNavigate, {4});
  // The field's header, its chunk, the result.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(call->Read().has_value());
  // The frame's job may still be at its end when its result has been read.
  EXPECT_TRUE(Eventually([&] { return context().jobs.pending() == 0; }));
  Roundtrip(test_.channel);
  WaitForWorkers();
  WaitUntilWritten();
  EXPECT_TRUE(StaysWhenIdle());
  call->WritesDone();
  EXPECT_TRUE(call->Read().has_value());  // the session's last word
  EXPECT_FALSE(call->Read().has_value());
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(SilentClientTest, MayWaitForItsJob) {
  for (const char* label : {"/intrawarp.v1.RegistrationService/Register", "/intrawarp.v1.BulkService/Upload#volume"}) {
    JobBlocker blocker(context().jobs);
    const auto call = Begin(label, {absl::EndsWith(label, "Register") ? size_t{1} : size_t{3}, true});
    EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));
    EXPECT_TRUE(StaysWhenIdle());
    blocker.Release();
    while (call->Read().has_value()) {
    }
    EXPECT_TRUE(call->Finish().ok());
  }
}

}  // namespace
}  // namespace intrawarp::server
