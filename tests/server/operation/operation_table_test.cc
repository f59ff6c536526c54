// SPDX-License-Identifier: Apache-2.0
#include "server/operation/operation_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "server/base/seams.h"
#include "server/operation/operation_messages.h"
#include "server/store/request_table.h"

namespace intrawarp::server {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using std::chrono::steady_clock;
using std::chrono::system_clock;
using testing::ElementsAre;
using testing::IsEmpty;

// A state directory: rows by owner and id, as KeepFn writes them.
struct Rows {
  std::map<std::pair<std::string, std::string>, Operation> rows;
  absl::Status error;
  std::mutex mutex;

  OperationTable::KeepFn Keep() {
    return [this](const std::string& owner, const std::string& id, const Operation* operation) {
      std::lock_guard<std::mutex> lock(mutex);
      if (!error.ok()) return error;
      if (operation == nullptr) {
        rows.erase({owner, id});
      } else {
        rows[{owner, id}] = *operation;
      }
      return absl::OkStatus();
    };
  }
  static void Run(const std::function<void()>& work) { work(); }

  std::vector<Operation> All() const {
    std::vector<Operation> all;
    for (const auto& [key, operation] : rows) all.push_back(operation);
    return all;
  }
};

class OperationTableTest : public testing::Test {
 protected:
  static LedgerOptions Places() {
    LedgerOptions options;
    options.capacity.operations = 4;
    options.owner_limit.operations = 3;
    return options;
  }
  static RequestKey Key(const std::string& id, const std::string& owner = "ann") {
    return {id, "print of " + id, owner};
  }
  static Identity Caller(const std::string& name) { return {name, Role::kFrame}; }
  std::shared_ptr<OperationWork> Begin(const std::string& id, const std::string& owner = "ann") {
    return table_.Begin(OperationKind::kRegister, Key(id, owner)).value().work;
  }
  OperationState StateOf(const std::string& id, const std::string& owner = "ann") {
    return table_.Find(id, Caller(owner)).value().state;
  }
  static std::vector<std::string> NothingMade(OperationKind, const RequestKey&) { return {}; }

  steady_clock::time_point now_{hours(1)};
  const Seams seams_{[] { return 7u; }, [this] { return now_; },
                     [this] { return system_clock::time_point(now_.time_since_epoch()); }};
  Ledger ledger_{Places()};
  OperationTable table_{ledger_, seams_, {.ttl = hours(2), .ended_of_owner = 3, .ended = 5}};
};

TEST_F(OperationTableTest, AnOperationGoesFromQueuedToDone) {
  const std::shared_ptr<OperationWork> work = Begin("a");
  EXPECT_EQ(StateOf("a"), OperationState::kQueued);
  EXPECT_EQ(ledger_.in_use(Resource::kOperations), 1);
  now_ += seconds(1);
  work->Started();
  work->Progressed({"level", 3, 9, "iterations"});
  Operation running = table_.Find("a", Caller("ann")).value();
  EXPECT_EQ(running.state, OperationState::kRunning);
  EXPECT_EQ(running.progress, (OperationProgress{"level", 3, 9, "iterations"}));
  EXPECT_EQ(*running.start_time - running.create_time, seconds(1));
  EXPECT_FALSE(running.end_time || running.expiry);
  now_ += seconds(1);
  work->Done({"transforms/x"});
  const Operation done = table_.Find("a", Caller("ann")).value();
  EXPECT_EQ(done.state, OperationState::kDone);
  EXPECT_THAT(done.results, ElementsAre("transforms/x"));
  EXPECT_EQ(*done.end_time - done.create_time, seconds(2));
  EXPECT_EQ(done.expiry->time - *done.end_time, hours(2));
  EXPECT_EQ(ledger_.in_use(Resource::kOperations), 0);
  // A change after the end has no effect.
  work->Failed(absl::InternalError("late"));
  work->Progressed({"later", 1, 1, ""});
  EXPECT_EQ(OperationToProto(table_.Find("a", Caller("ann")).value()).SerializeAsString(),
            OperationToProto(done).SerializeAsString());
}

TEST_F(OperationTableTest, ARepeatedRequestFindsItsOperationAndBeginsAFailedOneAnew) {
  std::shared_ptr<OperationWork> work = Begin("a");
  for (const bool has_ended : {false, true}) {
    if (has_ended) work->Done({"transforms/x"});
    const OperationTable::Begun again = table_.Begin(OperationKind::kRegister, Key("a")).value();
    EXPECT_EQ(again.work, nullptr);
    EXPECT_EQ(again.operation.has_ended(), has_ended);
    EXPECT_EQ(table_.FindBegun(OperationKind::kRegister, Key("a")).value()->has_ended(), has_ended);
  }
  const std::shared_ptr<OperationWork> failing = Begin("b");
  failing->Failed(absl::UnavailableError("gone"));
  EXPECT_EQ(table_.Find("b", Caller("ann"))->error.message(), "gone");
  EXPECT_EQ(table_.FindBegun(OperationKind::kRegister, Key("b")).value(), std::nullopt);
  const std::shared_ptr<OperationWork> anew = Begin("b");
  ASSERT_NE(anew, nullptr);
  failing->Done({"transforms/stale"});  // not its operation any more
  EXPECT_EQ(StateOf("b"), OperationState::kQueued);
}

TEST_F(OperationTableTest, AnIdOfAnotherRequestIsRefused) {
  const std::shared_ptr<OperationWork> work = Begin("a");
  RequestKey other = Key("a");
  other.fingerprint = "another";
  for (const absl::Status& status : {table_.Begin(OperationKind::kRegister, other).status(),
                                     table_.Begin(OperationKind::kMultiply, Key("a")).status(),
                                     table_.FindBegun(OperationKind::kRegister, other).status()}) {
    EXPECT_EQ(ReasonOf(status), v1::REQUEST_ID_REUSED);
  }
  EXPECT_NE(Begin("a", "bob"), nullptr);  // an id belongs to its owner
}

TEST_F(OperationTableTest, AnIdIsAnothersOnceAnInputWasReplaced) {
  const auto key = [](const InputPrint& input) {
    return RequestKey{"a", WithInputs(Fingerprint("Register", v1::Operation()), {input}), "ann"};
  };
  const auto begun = table_.Begin(OperationKind::kRegister, key(InputPrint::OfText("one")));
  ASSERT_TRUE(begun.ok());
  EXPECT_TRUE(table_.FindBegun(OperationKind::kRegister, key(InputPrint::OfText("one"))).value().has_value());
  EXPECT_TRUE(table_.FindBegun(OperationKind::kRegister, key(InputPrint::Gone())).value().has_value());
  const absl::Status other = table_.FindBegun(OperationKind::kRegister, key(InputPrint::OfText("two"))).status();
  EXPECT_EQ(ReasonOf(other), v1::REQUEST_ID_REUSED);
}

TEST_F(OperationTableTest, PlacesAreBoundedForAnOwnerAndInAll) {
  std::vector<std::shared_ptr<OperationWork>> works;
  for (const char* id : {"a", "b", "c"}) works.push_back(Begin(id));
  EXPECT_EQ(ReasonOf(table_.Begin(OperationKind::kRegister, Key("d")).status()), v1::OWNER_QUOTA);
  EXPECT_EQ(table_.Begin(OperationKind::kRegister, Key("a")).value().work, nullptr);  // it is there
  works.push_back(Begin("a", "bob"));
  EXPECT_EQ(ReasonOf(table_.Begin(OperationKind::kRegister, Key("b", "bob")).status()), v1::TOO_MANY_OPERATIONS);
  works[0]->Failed(absl::CancelledError(""));
  EXPECT_NE(Begin("b", "bob"), nullptr);
}

TEST_F(OperationTableTest, OtherOwnersDoNotExist) {
  const std::shared_ptr<OperationWork> work = Begin("a");
  EXPECT_TRUE(absl::IsNotFound(table_.Find("a", Caller("bob")).status()));
  EXPECT_TRUE(absl::IsNotFound(table_.Cancel("a", Caller("bob")).status()));
  EXPECT_TRUE(absl::IsNotFound(table_.Watch("a", Caller("bob"), [](const Operation&) {}).status()));
  EXPECT_THAT(table_.List("", 9, Caller("bob")), IsEmpty());
  EXPECT_FALSE(work->cancelled());
  const Identity admin{"chief", Role::kAdmin};
  EXPECT_EQ(table_.List("", 9, admin).size(), 1u);
  EXPECT_TRUE(table_.Find("a", admin).ok());
  const std::shared_ptr<OperationWork> of_bob = Begin("a", "bob");
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.Find("a", admin).status()));
}

TEST_F(OperationTableTest, ListsInOrderByPages) {
  const auto c = Begin("c"), a = Begin("a"), b = Begin("b");
  const auto ids = [&](const std::string& after, int limit) {
    std::vector<std::string> found;
    for (const Operation& operation : table_.List(after, limit, Caller("ann"))) found.push_back(operation.key.id);
    return found;
  };
  EXPECT_THAT(ids("", 2), ElementsAre("a", "b"));
  EXPECT_THAT(ids(OwnedKey("b", "ann"), 2), ElementsAre("c"));
}

TEST_F(OperationTableTest, CancellingCallsTheWorkOnce) {
  const std::shared_ptr<OperationWork> work = Begin("a");
  int calls = 0;
  work->set_on_cancel([&] {
    ++calls;
    work->Failed(absl::CancelledError("by the caller"));
  });
  EXPECT_EQ(table_.Cancel("a", Caller("ann"))->state, OperationState::kFailed);
  EXPECT_EQ(table_.Cancel("a", Caller("ann"))->state, OperationState::kFailed);
  EXPECT_EQ(calls, 1);
  // Cancelled before the work said how.
  const std::shared_ptr<OperationWork> early = Begin("b");
  EXPECT_EQ(table_.Cancel("b", Caller("ann"))->state, OperationState::kQueued);
  EXPECT_TRUE(early->cancelled());
  early->set_on_cancel([&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST_F(OperationTableTest, WatchersHearOfTheEnd) {
  const std::shared_ptr<OperationWork> work = Begin("a");
  int heard = 0, unheard = 0;
  const int64_t watch = table_.Watch("a", Caller("ann"), [&](const Operation&) { ++unheard; }).value();
  ASSERT_TRUE(table_
                  .Watch("a", Caller("ann"),
                         [&](const Operation& ended) {
                           EXPECT_EQ(ended.state, OperationState::kDone);
                           ++heard;
                         })
                  .ok());
  table_.Unwatch(watch);
  work->Done({});
  ASSERT_TRUE(table_.Watch("a", Caller("ann"), [&](const Operation&) { ++heard; }).ok());
  EXPECT_EQ(heard, 2);
  EXPECT_EQ(unheard, 0);
}

TEST_F(OperationTableTest, WorkThatIsGivenUpHasFailed) {
  Begin("a").reset();
  EXPECT_EQ(table_.Find("a", Caller("ann"))->error.code(), static_cast<int>(absl::StatusCode::kInternal));
  const std::shared_ptr<OperationWork> refused = Begin("b");
  refused->Drop();
  EXPECT_TRUE(absl::IsNotFound(table_.Find("b", Caller("ann")).status()));
  EXPECT_EQ(ledger_.in_use(Resource::kOperations), 0);
}

TEST_F(OperationTableTest, EndedOperationsExpireAndTheOldestGoFirst) {
  const std::shared_ptr<OperationWork> running = Begin("running", "bob");
  for (int i = 0; i < 5; ++i) {
    now_ += seconds(1);
    Begin(absl::StrCat("a", i))->Done({});
  }
  std::vector<std::string> left;
  for (const Operation& operation : table_.List("", 99, Caller("ann"))) left.push_back(operation.key.id);
  EXPECT_THAT(left, ElementsAre("a2", "a3", "a4"));  // three of an owner
  for (int i = 0; i < 3; ++i) {
    now_ += seconds(1);
    Begin(absl::StrCat("b", i), "bob")->Done({});
  }
  EXPECT_EQ(table_.List("", 99, Caller("ann")).size(), 2u);  // five in all
  now_ += hours(2) - seconds(2);
  table_.Expire(now_);
  EXPECT_THAT(table_.List("", 99, Caller("ann")), IsEmpty());
  EXPECT_EQ(table_.List("", 99, Caller("bob")).size(), 3u);  // b1, b2 and the one that runs
  now_ += hours(100);
  table_.Expire(now_);
  EXPECT_EQ(StateOf("running", "bob"), OperationState::kQueued);
}

TEST_F(OperationTableTest, ARestartFindsWhatEndedAndFailsWhatDidNot) {
  Rows rows;
  table_.KeepWith(rows.Keep(), Rows::Run);
  const auto done = Begin("done"), failed = Begin("failed"), interrupted = Begin("interrupted");
  for (const auto& work : {done, failed, interrupted}) ASSERT_TRUE(work->Keep().ok());
  done->Done({"transforms/x"});
  failed->Failed(InvalidField("options.budget", "must be above 0"));
  const auto made = Begin("made", "bob");
  ASSERT_TRUE(made->Keep().ok());
  const auto dropped = Begin("dropped");
  ASSERT_TRUE(dropped->Keep().ok());
  dropped->Drop();

  // The next server: what "made" made was kept before the crash, its row's last state was not.
  Ledger ledger(Places());
  OperationTable next(ledger, seams_, {.ttl = hours(2)});
  next.KeepWith(rows.Keep(), Rows::Run);
  ASSERT_TRUE(next.Restore(rows.All(),
                           [](OperationKind, const RequestKey& key) {
                             return key.id == "made" ? std::vector<std::string>{"transforms/y"}
                                                     : std::vector<std::string>{};
                           })
                  .ok());
  EXPECT_EQ(OperationToProto(next.Find("done", Caller("ann")).value()).SerializeAsString(),
            OperationToProto(table_.Find("done", Caller("ann")).value()).SerializeAsString());
  EXPECT_EQ(next.Find("failed", Caller("ann"))->error.SerializeAsString(),
            table_.Find("failed", Caller("ann"))->error.SerializeAsString());
  EXPECT_THAT(next.Find("made", Caller("bob"))->results, ElementsAre("transforms/y"));
  const Operation lost = next.Find("interrupted", Caller("ann")).value();
  EXPECT_EQ(lost.state, OperationState::kFailed);
  EXPECT_EQ(lost.error.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(lost.error.message(), "the server restarted while the work ran");
  EXPECT_EQ(ledger.in_use(Resource::kOperations), 0);
  // The rows say so, too, and go in the end.
  EXPECT_EQ((rows.rows[{"ann", "interrupted"}].state), OperationState::kFailed);
  EXPECT_EQ(rows.rows.size(), 4u);
  now_ += hours(2);
  next.Expire(now_);
  EXPECT_THAT(rows.rows, IsEmpty());
}

TEST_F(OperationTableTest, AFullDiskIsToldBeforeTheOperationIs) {
  Rows rows;
  table_.KeepWith(rows.Keep(), Rows::Run);
  rows.error = absl::ResourceExhaustedError("full");
  const std::shared_ptr<OperationWork> work = Begin("a");
  EXPECT_EQ(work->Keep(), rows.error);
  work->Done({});  // only the row is missing
  EXPECT_EQ(StateOf("a"), OperationState::kDone);
}

TEST_F(OperationTableTest, AStopWaitsThenCancels) {
  const std::shared_ptr<OperationWork> work = Begin("a");
  EXPECT_FALSE(table_.WaitIdle(steady_clock::now()));
  work->set_on_cancel([&] { work->Failed(absl::CancelledError("")); });
  table_.CancelAll(absl::UnavailableError("the server is shutting down"));
  EXPECT_EQ(table_.Find("a", Caller("ann"))->error.message(), "the server is shutting down");
  const std::shared_ptr<OperationWork> late = Begin("b");
  EXPECT_TRUE(late->cancelled());
  std::thread ending([&] { late->Done({}); });
  EXPECT_TRUE(table_.WaitIdle(steady_clock::now() + hours(1)));
  ending.join();
}

TEST_F(OperationTableTest, CountsByKindAndState) {
  const auto a = Begin("a");
  const auto b = table_.Begin(OperationKind::kImport, Key("b")).value().work;
  b->Started();
  Begin("c")->Done({});
  OperationCounts expected = {};
  expected[0][0] = expected[0][2] = expected[2][1] = 1;
  EXPECT_EQ(table_.counts(), expected);
}

// Every thread begins, ends, cancels and looks; no place is lost.
TEST_F(OperationTableTest, ThreadsMeet) {
  Rows rows;
  table_.KeepWith(rows.Keep(), Rows::Run);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string id = absl::StrCat("x", i % 5);
        const auto begun = table_.Begin(OperationKind::kRegister, Key(id, t % 2 == 0 ? "ann" : "bob"));
        if (begun.ok() && begun->work != nullptr) {
          begun->work->set_on_cancel([] {});
          begun->work->Started();
          i % 2 == 0 ? begun->work->Failed(absl::AbortedError("")) : begun->work->Drop();
        }
        (void)table_.Cancel(id, Caller("ann"));
        (void)table_.List("", 9, Caller("bob"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(table_.WaitIdle(steady_clock::now()));
  EXPECT_EQ(ledger_.in_use(Resource::kOperations), 0);
}

TEST(OperationMessagesTest, AMessageIsReadBack) {
  const Seams seams = SystemSeams();
  Operation operation;
  operation.kind = OperationKind::kImport;
  operation.key = {"a", std::string("\0\x01", 2), "ann"};
  operation.state = OperationState::kFailed;
  operation.progress = {"instances", 3, 0, "instances"};
  operation.create_time = system_clock::now();
  operation.end_time = operation.create_time + seconds(3);
  operation.expiry = ExpiryAfter(seams, hours(1));
  operation.error = ToRpcStatusProto(InvalidField("a.b", "is wrong"));
  const v1::Operation message = OperationToProto(operation);
  const absl::StatusOr<Operation> back = OperationFromProto(message, operation.key.fingerprint, seams);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(OperationToProto(*back).SerializeAsString(), message.SerializeAsString());
  EXPECT_EQ(back->key.fingerprint, operation.key.fingerprint);
  EXPECT_LT(back->expiry->end - operation.expiry->end, seconds(60));

  v1::Operation damaged = message;
  damaged.set_name("volumes/a");
  EXPECT_TRUE(absl::IsDataLoss(OperationFromProto(damaged, "", seams).status()));
  damaged = message;
  damaged.set_state(static_cast<v1::OperationState>(9));
  EXPECT_TRUE(absl::IsDataLoss(OperationFromProto(damaged, "", seams).status()));
  for (const int64_t outside : {int64_t{-1}, int64_t{9'000'000'000}, std::numeric_limits<int64_t>::max()}) {
    damaged = message;
    damaged.mutable_expire_time()->set_seconds(outside);
    EXPECT_TRUE(absl::IsDataLoss(OperationFromProto(damaged, "", seams).status())) << outside;
    damaged = message;
    damaged.mutable_start_time()->set_seconds(outside);
    EXPECT_TRUE(absl::IsDataLoss(OperationFromProto(damaged, "", seams).status())) << outside;
  }
}

}  // namespace
}  // namespace intrawarp::server
