// SPDX-License-Identifier: Apache-2.0
// A session of the test's own, on a state directory in memory, a copy lane of a CPU device and a clock that stands.
#include "server/session/session_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/schedule/copy_lane.h"
#include "server/device/device_set.h"
#include "server/session/navigate_session.h"
#include "server/status/errors.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/partial_context.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::IsEmpty;
using testing::SizeIs;
using Urgency = SessionKeeper::Urgency;

constexpr int64_t kUploading = int64_t{1} << 20;
constexpr Int3 kSize = {4, 5, 6};
constexpr int64_t kFieldBytes = 12 * 4 * 5 * 6;

// What a keeper calls once, perhaps on another thread, which may still be in the call when Wait returns.
class Gone {
 public:
  std::function<void()> Fn() const {
    return [told = told_] { told->set_value(); };
  }
  void Wait() const { waited_.wait(); }

 private:
  const std::shared_ptr<std::promise<void>> told_ = std::make_shared<std::promise<void>>();
  const std::shared_future<void> waited_ = told_->get_future().share();
};

class SessionKeeperTest : public testing::Test {
 protected:
  SessionKeeperTest() {
    EXPECT_TRUE(durable_.Open(files_, "d", seams_).ok());
    parts_.durable = &durable_;
    parts_.seams = &seams_;
    parts_.ledger = &ledger_;
    parts_.devices = &devices_;
    devices_.Add({parts_.Make(), 0, device_, *NoPart<const DeviceProbe>(), *NoPart<const Watchdog>(),
                  *NoPart<JobQueue>(), *lane_});
    setup_.owner = "ann";
    setup_.resident = std::make_shared<StoredVolume>();
    std::const_pointer_cast<StoredVolume>(setup_.resident)->digest = std::string(32, 'r');
    setup_.asked.set_fixed("volumes/ct");
    keeper_ = MakeKeeper();
  }
  // Nobody works for a keeper any more when its parts go.
  ~SessionKeeperTest() override {
    device_.Release();
    Settle();
    lane_->Shutdown();
    durable_.Shutdown();
  }

  std::shared_ptr<SessionKeeper> MakeKeeper() { return std::make_shared<SessionKeeper>(devices_[0], "s", setup_); }
  // The session as its keeper sees it.
  SessionKeeper::StateFn Session() {
    return [this]() -> std::optional<SessionKeeper::State> {
      const std::function<void()> meanwhile = [&] {
        std::lock_guard<std::mutex> lock(mutex_);
        ++looks_;
        return std::exchange(meanwhile_, nullptr);
      }();
      if (meanwhile) meanwhile();
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_gone_) return std::nullopt;
      return state_;
    };
  }
  // Runs once, the next time that the keeper looks at the session.
  void Meanwhile(std::function<void()> meanwhile) {
    std::lock_guard<std::mutex> lock(mutex_);
    meanwhile_ = std::move(meanwhile);
  }
  int looks() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return looks_;
  }
  void SetFrame(int64_t frame) {
    std::lock_guard<std::mutex> lock(mutex_);
    state_.session.set_last_frame_number(frame);
  }
  // The result of this frame is the start of the next one.
  void SetStart(int64_t frame, std::vector<StageOptions> chosen = {}) {
    Geometry grid;
    grid.size = kSize;
    Buffer memory = *device_.Allocate(kFieldBytes, owned_.context().stream());
    for (int64_t i = 0; i < kFieldBytes / 4; ++i) memory.as<float>()[i] = static_cast<float>(frame + i);
    auto start = std::make_shared<GoodResult>(GoodResult{frame, nullptr, Transform(std::move(memory), grid), {}});
    start->chosen = std::move(chosen);
    std::lock_guard<std::mutex> lock(mutex_);
    state_.start = std::move(start);
    state_.session.set_start_frame_number(frame);
    state_.session.set_last_frame_number(frame);
  }
  void Begin() { ASSERT_TRUE(keeper_->Begin(Session()).ok()); }
  // Waits for a write under way.
  void Settle() { keeper_->AwaitSuspended(steady_clock::now() + hours(1)); }
  void Change(Urgency urgency) {
    keeper_->Changed(urgency);
    Settle();
  }
  void Flush() {
    keeper_->Flush();
    Settle();
  }
  // Ends the session and waits for what comes after it.
  void End() {
    const Gone gone;
    keeper_->End(gone.Fn());
    gone.Wait();
  }
  void Advance(milliseconds time) { now_ += std::chrono::nanoseconds(time).count(); }

  std::vector<state::SessionRow> Rows() {
    const auto rows = durable_.state().ListSessions();
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.value_or(std::vector<state::SessionRow>());
  }
  // What the disk knows of the session.
  v1::Session Written() {
    const std::vector<state::SessionRow> rows = Rows();
    v1::Session session;
    EXPECT_EQ(rows.size(), 1);
    EXPECT_TRUE(rows.size() == 1 && session.ParseFromString(rows[0].description));
    return session;
  }
  int64_t WrittenFrame() { return Written().last_frame_number(); }
  std::vector<std::string> Payloads() {
    const auto names = locked_.List("d/spool");
    EXPECT_TRUE(names.ok()) << names.status();
    return names.value_or(std::vector<std::string>());
  }

  std::atomic<int64_t> now_{1'000'000'000};
  std::atomic<uint32_t> random_{1};
  const Seams seams_{
      [this] { return random_++; }, [this] { return steady_clock::time_point(std::chrono::nanoseconds(now_)); },
      [this] {
        return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
            std::chrono::nanoseconds(1'700'000'000'000'000'000 + now_)));
      }};
  FaultyDevice device_{*OpenDevice("cpu")};
  OwnedContext owned_ = *OwnedContext::Create(device_, 1024);
  state::MemoryDisk disk_;
  state::LockedFiles locked_{disk_};
  state::FaultyFiles files_{locked_, state::Fault::kFull};
  Ledger ledger_{{.capacity = {.uploading_bytes = kUploading}}};
  DurableObjects durable_;
  std::unique_ptr<CopyLane> lane_ = *CopyLane::Create(device_);
  PartialContext parts_;
  DeviceSet devices_;
  SessionSetup setup_;
  mutable std::mutex mutex_;
  int looks_ = 0;
  bool is_gone_ = false;
  std::function<void()> meanwhile_;
  SessionKeeper::State state_;
  std::shared_ptr<SessionKeeper> keeper_;
};

TEST_F(SessionKeeperTest, ASessionThatOpensHasARow) {
  SetFrame(3);
  setup_.by_admin = true;
  keeper_ = MakeKeeper();
  Begin();
  const std::vector<state::SessionRow> rows = Rows();
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].id, "s");
  EXPECT_EQ(rows[0].owner, "ann");
  EXPECT_TRUE(rows[0].by_admin);
  EXPECT_EQ(rows[0].incarnation.size(), 16);
  EXPECT_EQ(rows[0].config, setup_.asked.SerializeAsString());
  EXPECT_EQ(rows[0].resident, PrintOf(setup_));
  EXPECT_EQ(rows[0].start_header, "");
  EXPECT_EQ(rows[0].chosen, "");
  EXPECT_EQ(rows[0].payload_bytes, 0);
  EXPECT_EQ(WrittenFrame(), 3);
  EXPECT_FALSE(keeper_->durable_frame());
}

TEST_F(SessionKeeperTest, NothingIsWrittenBeforeTheRowIsThere) {
  keeper_->Changed(Urgency::kNow);
  keeper_->Flush();
  EXPECT_THAT(Rows(), IsEmpty());
  EXPECT_EQ(looks(), 0);
}

TEST_F(SessionKeeperTest, ASessionThatCannotBeKeptDoesNotOpen) {
  files_.set_fails_writes(true);
  const absl::Status status = keeper_->Begin(Session());
  EXPECT_EQ(ReasonOf(status), v1::STATE_FULL) << status;
  files_.set_fails_writes(false);
  keeper_->Changed(Urgency::kNow);
  EXPECT_EQ(looks(), 1);
  End();
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(SessionKeeperTest, ASessionThatIsGoneDoesNotOpen) {
  is_gone_ = true;
  EXPECT_TRUE(absl::IsCancelled(keeper_->Begin(Session())));
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(SessionKeeperTest, ASessionThatEndedBeforeDoesNotOpen) {
  End();
  EXPECT_TRUE(absl::IsCancelled(keeper_->Begin(Session())));
  EXPECT_EQ(looks(), 0);
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(SessionKeeperTest, ASessionThatEndsMeanwhileLeavesNoRow) {
  const Gone gone;
  Meanwhile([this, gone] { keeper_->End(gone.Fn()); });
  EXPECT_TRUE(absl::IsCancelled(keeper_->Begin(Session())));
  gone.Wait();
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(SessionKeeperTest, TheStartIsWrittenWithTheSession) {
  Begin();
  FfdOptions ffd;
  SetStart(7, {AffineOptions(), ffd});
  Change(Urgency::kSoon);
  EXPECT_EQ(keeper_->durable_frame(), 7);
  const std::vector<state::SessionRow> rows = Rows();
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(WrittenFrame(), 7);
  EXPECT_EQ(rows[0].payload_bytes, kFieldBytes);
  std::vector<float> values(kFieldBytes / 4);
  ASSERT_TRUE(durable_.Read(rows[0].payload, absl::MakeSpan(reinterpret_cast<char*>(values.data()), kFieldBytes)).ok());
  EXPECT_EQ(values[0], 7);
  EXPECT_EQ(values.back(), 7 + kFieldBytes / 4 - 1);
  v1::UploadHeader header;
  ASSERT_TRUE(header.ParseFromString(rows[0].start_header));
  EXPECT_EQ(header.transform().field().geometry().size(1), 5);
  EXPECT_EQ(header.total_bytes(), kFieldBytes);
  v1::Transform described;
  ASSERT_TRUE(described.ParseFromString(rows[0].start_description));
  EXPECT_EQ(described.kind(), v1::TRANSFORM_KIND_DISPLACEMENT);
  EXPECT_EQ(described.domain().size(2), 6);
  v1::RegistrationOptions chosen;
  ASSERT_TRUE(chosen.ParseFromString(rows[0].chosen));
  ASSERT_EQ(chosen.stages_size(), 2);
  EXPECT_TRUE(chosen.stages(1).has_ffd());
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0) << "the disk has it";
}

TEST_F(SessionKeeperTest, AStartThatIsThereIsNotCopiedAgain) {
  Begin();
  SetStart(7);
  Change(Urgency::kNow);
  const int64_t copies = device_.calls(DeviceCall::kSynchronize);
  SetFrame(8);
  Change(Urgency::kNow);
  EXPECT_EQ(device_.calls(DeviceCall::kSynchronize), copies);
  EXPECT_EQ(WrittenFrame(), 8);
  EXPECT_EQ(keeper_->durable_frame(), 7);
  EXPECT_EQ(Rows()[0].payload_bytes, kFieldBytes);
  SetStart(9);
  Change(Urgency::kNow);
  EXPECT_GT(device_.calls(DeviceCall::kSynchronize), copies);
  EXPECT_EQ(keeper_->durable_frame(), 9);
}

TEST_F(SessionKeeperTest, AStartThatIsNoMoreGoesFromTheDisk) {
  Begin();
  SetStart(7);
  Change(Urgency::kNow);
  EXPECT_THAT(Payloads(), SizeIs(1));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_.start = nullptr;
    state_.session.clear_start_frame_number();
  }
  Change(Urgency::kNow);
  EXPECT_FALSE(keeper_->durable_frame());
  EXPECT_EQ(Rows()[0].payload_bytes, 0);
  EXPECT_EQ(Rows()[0].start_header, "");
  durable_.Shutdown();  // which waits for the file's removal
  EXPECT_THAT(Payloads(), IsEmpty());
}

TEST_F(SessionKeeperTest, WritingTakesATenthOfTheTime) {
  Begin();
  Meanwhile([&] { Advance(milliseconds(10)); });
  SetFrame(1);
  Change(Urgency::kSoon);
  EXPECT_EQ(WrittenFrame(), 1);
  SetFrame(2);
  Advance(milliseconds(89));
  Change(Urgency::kSoon);
  EXPECT_EQ(WrittenFrame(), 1) << "the last write is too fresh";
  Flush();
  EXPECT_EQ(WrittenFrame(), 1);
  Advance(milliseconds(1));
  Flush();
  EXPECT_EQ(WrittenFrame(), 2);
  const int before = looks();
  Flush();
  EXPECT_EQ(looks(), before) << "nothing has changed";
}

TEST_F(SessionKeeperTest, WhatIsUrgentWaitsForNothing) {
  Begin();
  Meanwhile([&] { Advance(milliseconds(10)); });
  Change(Urgency::kNow);
  SetFrame(2);
  Change(Urgency::kNow);
  EXPECT_EQ(WrittenFrame(), 2);
}

TEST_F(SessionKeeperTest, WhatIsNotUrgentWaitsForTheHousekeeping) {
  Begin();
  SetFrame(1);
  Change(Urgency::kLater);
  EXPECT_EQ(looks(), 1);
  Flush();
  EXPECT_EQ(WrittenFrame(), 1);
}

TEST_F(SessionKeeperTest, AChangeDuringAWriteIsWrittenAfterIt) {
  Begin();
  int before = looks();
  Meanwhile([&] {
    for (int i = 0; i < 3; ++i) keeper_->Changed(Urgency::kNow);
  });
  Change(Urgency::kNow);
  EXPECT_EQ(looks() - before, 2) << "one write for all three";

  before = looks();
  Meanwhile([&] {
    keeper_->Changed(Urgency::kSoon);
    Advance(milliseconds(10));
  });
  Change(Urgency::kNow);
  EXPECT_EQ(looks() - before, 1);
  Advance(milliseconds(90));
  Flush();
  EXPECT_EQ(looks() - before, 2);
}

TEST_F(SessionKeeperTest, WhileTheDiskFailsTheLastStateStays) {
  Begin();
  SetStart(1);
  Change(Urgency::kNow);
  files_.set_fails_writes(true);
  SetStart(2);
  Meanwhile([&] { Advance(milliseconds(10)); });
  Change(Urgency::kNow);
  EXPECT_EQ(keeper_->durable_frame(), 1);
  files_.set_fails_writes(false);
  EXPECT_EQ(WrittenFrame(), 1);
  const int before = looks();
  Flush();
  EXPECT_EQ(looks(), before) << "not at once";
  Advance(milliseconds(90));
  Flush();
  EXPECT_EQ(WrittenFrame(), 2);
  EXPECT_EQ(keeper_->durable_frame(), 2);
}

TEST_F(SessionKeeperTest, WithoutHostMemoryAStartWaits) {
  Begin();
  Grant others = *ledger_.Admit(Claim{{.uploading_bytes = kUploading}});
  SetStart(1);
  Change(Urgency::kNow);
  EXPECT_FALSE(keeper_->durable_frame());
  EXPECT_FALSE(Written().has_last_frame_number());
  others = Grant();
  Flush();
  EXPECT_EQ(keeper_->durable_frame(), 1);
}

TEST_F(SessionKeeperTest, AnErrorOfTheDeviceLeavesTheLastState) {
  Begin();
  SetStart(1);
  device_.FailAt(1, absl::InternalError("a copy that failed"), DeviceCall::kSynchronize);
  Change(Urgency::kNow);
  EXPECT_FALSE(keeper_->durable_frame());
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
  Flush();
  EXPECT_EQ(keeper_->durable_frame(), 1);
}

TEST_F(SessionKeeperTest, ALaneThatStopsLeavesTheLastState) {
  Begin();
  lane_->Shutdown();
  SetStart(1);
  Change(Urgency::kNow);
  EXPECT_FALSE(keeper_->durable_frame());
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
  End();
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(SessionKeeperTest, TheEndTakesTheRowAway) {
  Begin();
  SetStart(1);
  Change(Urgency::kNow);
  End();
  EXPECT_THAT(Rows(), IsEmpty());
  const int before = looks();
  keeper_->Changed(Urgency::kNow);
  keeper_->Flush();
  Settle();
  EXPECT_EQ(looks(), before);
  EXPECT_THAT(Rows(), IsEmpty());
  durable_.Shutdown();  // which waits for the file's removal
  EXPECT_THAT(Payloads(), IsEmpty());
}

TEST_F(SessionKeeperTest, AnEndDuringAWriteComesAfterIt) {
  Begin();
  const Gone gone;
  Meanwhile([this, gone] { keeper_->End(gone.Fn()); });
  keeper_->Changed(Urgency::kNow);
  gone.Wait();
  Settle();
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(SessionKeeperTest, AnEndWaitsForNoDevice) {
  Begin();
  SetStart(1);
  device_.BlockAt(1, DeviceCall::kSynchronize);
  keeper_->Changed(Urgency::kNow);
  device_.AwaitBlocked();
  End();
  EXPECT_THAT(Rows(), IsEmpty());
  device_.Release();
  lane_->Shutdown();
  durable_.Shutdown();
  EXPECT_THAT(Rows(), IsEmpty()) << "the copy came to nothing";
  EXPECT_THAT(Payloads(), IsEmpty());
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
}

// The keeper is asked for its state just before it submits a copy.
TEST_F(SessionKeeperTest, AnEndBeforeTheCopyMakesItNeedless) {
  Begin();
  SetStart(1);
  const Gone gone;
  Meanwhile([this, gone] { keeper_->End(gone.Fn()); });
  const int64_t copies = device_.calls(DeviceCall::kSynchronize);
  keeper_->Changed(Urgency::kNow);
  gone.Wait();
  Settle();
  EXPECT_EQ(device_.calls(DeviceCall::kSynchronize), copies);
  EXPECT_THAT(Rows(), IsEmpty());
  durable_.Shutdown();  // which waits for the write that lets go of the copy's memory
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
}

TEST_F(SessionKeeperTest, AServerThatStopsWritesTheNewestStateAndLeavesTheRow) {
  Begin();
  Meanwhile([&] { Advance(milliseconds(10)); });
  Change(Urgency::kNow);
  SetStart(5);
  keeper_->BeginSuspend();
  Settle();
  EXPECT_EQ(WrittenFrame(), 5) << "fresh or not";
  End();
  EXPECT_EQ(WrittenFrame(), 5);
}

// Whoever stops the server does not wait until its patience ends.
TEST_F(SessionKeeperTest, ASessionThatOpensWhenTheServerStopsIsWaitedFor) {
  std::promise<void> waits;
  std::thread stop;
  Meanwhile([&] {
    stop = std::thread([&] {
      keeper_->BeginSuspend();
      waits.set_value();
      Settle();
    });
    waits.get_future().wait();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  });
  Begin();
  stop.join();
  End();
  EXPECT_THAT(Rows(), SizeIs(1));
}

TEST_F(SessionKeeperTest, ASessionOfARowGoesOnWithIt) {
  state::SessionRow row;
  row.id = "s";
  row.owner = "ann";
  row.incarnation = "the first";
  row.config = "a config";
  row.resident = "prints";
  v1::Session before;
  before.set_start_frame_number(41);
  row.description = before.SerializeAsString();
  ASSERT_TRUE(durable_.CommitSession(row, nullptr).ok());
  keeper_->Continue(row, Session());
  EXPECT_EQ(keeper_->durable_frame(), 41);
  SetStart(42);
  Change(Urgency::kNow);
  EXPECT_EQ(keeper_->durable_frame(), 42);
  ASSERT_THAT(Rows(), SizeIs(1));
  EXPECT_EQ(Rows()[0].incarnation, "the first");
  EXPECT_EQ(Rows()[0].config, "a config");
  EXPECT_EQ(WrittenFrame(), 42);
  End();
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(SessionKeeperTest, TheLateEndOfASessionLeavesTheNextOneOfItsName) {
  Begin();
  const std::string first = Rows()[0].incarnation;
  ASSERT_TRUE(durable_.RemoveSession(Rows()[0]).ok());
  const std::shared_ptr<SessionKeeper> old = std::exchange(keeper_, MakeKeeper());
  Begin();
  EXPECT_NE(Rows()[0].incarnation, first);
  const Gone gone;
  old->Changed(Urgency::kNow);
  old->End(gone.Fn());
  gone.Wait();
  ASSERT_THAT(Rows(), SizeIs(1));
  EXPECT_NE(Rows()[0].incarnation, first);
}

TEST_F(SessionKeeperTest, ManyThreadsChangeASessionThatEnds) {
  for (int round = 0; round < 20; ++round) {
    keeper_ = MakeKeeper();
    Begin();
    SetStart(round);
    // It tells once: a second time would throw.
    const Gone gone;
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 30; ++i) {
          if (i == 20 && t == round % 3) SetStart(100 + round);
          t == 0 ? keeper_->Flush() : keeper_->Changed(t == 1 ? Urgency::kSoon : Urgency::kNow);
          (void)keeper_->durable_frame();
        }
      });
    }
    threads.emplace_back([&] {
      for (int i = 0; i < 50 * round; ++i) std::this_thread::yield();
      keeper_->End(gone.Fn());
    });
    for (std::thread& thread : threads) thread.join();
    gone.Wait();
    Settle();
    EXPECT_THAT(Rows(), IsEmpty());
  }
  lane_->Shutdown();
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
}

}  // namespace
}  // namespace intrawarp::server
