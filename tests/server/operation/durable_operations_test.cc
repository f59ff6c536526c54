// SPDX-License-Identifier: Apache-2.0
// Operations over a restart, on a disk in memory.
#include "server/operation/durable_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/ledger/ledger.h"
#include "server/operation/operation_messages.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/store/matrix_store.h"
#include "server/store/transform_store.h"
#include "tests/server/partial_context.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::server {
namespace {

using std::chrono::hours;
using std::chrono::steady_clock;
using std::chrono::system_clock;
using testing::ElementsAre;
using testing::IsEmpty;

const RequestKey kKey{"request", "print", "ann"};
const Identity kAnn{"ann", Role::kFrame};

LedgerOptions Places() {
  LedgerOptions options;
  options.capacity.operations = 4;
  return options;
}

// One start of a server on the disk.
struct ServerRun {
  ServerRun(state::FileLayer& disk, const Seams& with) : seams(with) {
    EXPECT_TRUE(durable.Open(disk, "d", seams).ok());
    parts.durable = &durable;
    parts.seams = &seams;
    parts.operations = &operations;
    parts.matrices = &matrices;
    parts.transforms = &transforms;
  }
  absl::Status Restore() {
    ServerContext context = parts.Make();
    return RestoreOperations(context);
  }
  std::vector<state::OperationRow> Rows() { return durable.state().ListOperations().value(); }
  void PutTransform(const std::string& id, const RequestKey& request) {
    auto stored = std::make_shared<StoredTransform>(
        StoredTransform{id, {}, std::nullopt, nullptr, Transform(AffineMap::Identity()), std::nullopt, request});
    stored->owner = request.owner;
    ASSERT_TRUE(transforms.Insert(std::move(stored)).ok());
  }
  void PutMatrix(const std::string& id, const RequestKey& request) {
    const auto stored = std::make_shared<StoredMatrix>();
    stored->id = id;
    stored->owner = request.owner;
    stored->request = request;
    ASSERT_TRUE(matrices.Insert(stored).ok());
  }

  const Seams& seams;
  Ledger ledger{Places()};
  MatrixStore matrices;
  TransformStore transforms;
  OperationTable operations{ledger, seams, {.ttl = hours(2)}};
  DurableObjects durable;  // its threads use the table
  PartialContext parts;
};

class DurableOperationsTest : public testing::Test {
 protected:
  std::chrono::nanoseconds time_ = hours(1000);
  std::chrono::nanoseconds wall_step_{0};
  const Seams seams_{
      [] { return 7u; },
      [this] { return steady_clock::time_point(std::chrono::duration_cast<steady_clock::duration>(time_)); },
      [this] {
        return system_clock::time_point(std::chrono::duration_cast<system_clock::duration>(time_ + wall_step_));
      }};
  state::MemoryDisk memory_;
  state::LockedFiles disk_{memory_};  // threads of a server use it
};

TEST_F(DurableOperationsTest, AnOperationThatEndedComesBackAsItWas) {
  v1::Operation before;
  {
    ServerRun run(disk_, seams_);
    ASSERT_TRUE(run.Restore().ok());
    const auto work = run.operations.Begin(OperationKind::kRegister, kKey)->work;
    ASSERT_TRUE(work->Keep().ok());
    work->Started();
    work->Progressed({"affine", 1, 2, "iterations"});
    work->Done({"transforms/x"});
    before = OperationToProto(*run.operations.Find("request", kAnn));
    run.durable.Shutdown();
  }
  ServerRun run(disk_, seams_);
  ASSERT_TRUE(run.Restore().ok());
  const v1::Operation after = OperationToProto(*run.operations.Find("request", kAnn));
  EXPECT_EQ(after.state(), v1::OPERATION_STATE_DONE);
  EXPECT_EQ(after.DebugString(), before.DebugString());
  // The fingerprint stands beside the message.
  EXPECT_EQ(run.operations.Begin(OperationKind::kRegister, {"request", "other", "ann"}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(DurableOperationsTest, TimeThatPassedWhileTheServerRanCounts) {
  {
    ServerRun run(disk_, seams_);
    ASSERT_TRUE(run.Restore().ok());
    const auto work = run.operations.Begin(OperationKind::kRegister, kKey)->work;
    ASSERT_TRUE(work->Keep().ok());
    work->Done({"transforms/x"});
    run.durable.Shutdown();
  }
  time_ += std::chrono::minutes(30);
  ServerRun run(disk_, seams_);
  ASSERT_TRUE(run.Restore().ok());
  time_ += std::chrono::minutes(89);
  run.operations.Expire(seams_.steady_now());
  EXPECT_TRUE(run.operations.Find("request", kAnn).ok());
  time_ += std::chrono::minutes(2);
  run.operations.Expire(seams_.steady_now());
  EXPECT_EQ(run.operations.Find("request", kAnn).status().code(), absl::StatusCode::kNotFound);
  run.durable.Shutdown();
  EXPECT_THAT(run.Rows(), IsEmpty());
}

// Three days ahead, which no stop of a server explains.
TEST_F(DurableOperationsTest, AStepOfTheWallClockTakesNoTime) {
  {
    ServerRun run(disk_, seams_);
    ASSERT_TRUE(run.Restore().ok());
    const auto work = run.operations.Begin(OperationKind::kRegister, kKey)->work;
    ASSERT_TRUE(work->Keep().ok());
    work->Done({"transforms/x"});
    run.durable.Shutdown();
  }
  wall_step_ = hours(72);
  ServerRun run(disk_, seams_);
  ASSERT_TRUE(run.Restore().ok());
  time_ += std::chrono::minutes(119);
  run.operations.Expire(seams_.steady_now());
  EXPECT_TRUE(run.operations.Find("request", kAnn).ok());
  time_ += std::chrono::minutes(2);
  run.operations.Expire(seams_.steady_now());
  EXPECT_FALSE(run.operations.Find("request", kAnn).ok());
}

TEST_F(DurableOperationsTest, WhatWasInterruptedIsDoneWhereItsResultIsThere) {
  const RequestKey lost{"lost", "print", "ann"}, product{"product", "print", "ann"};
  {
    ServerRun run(disk_, seams_);
    ASSERT_TRUE(run.Restore().ok());
    std::vector<std::shared_ptr<OperationWork>> works;
    for (const auto& [kind, key] : std::vector<std::pair<OperationKind, RequestKey>>{
             {OperationKind::kRegister, kKey}, {OperationKind::kRegister, lost}, {OperationKind::kMultiply, product}}) {
      works.push_back(run.operations.Begin(kind, key)->work);
      ASSERT_TRUE(works.back()->Keep().ok());
    }
    // The rows as a kill leaves them, in place of those that the end of the work writes.
    const std::vector<state::OperationRow> rows = run.Rows();
    ASSERT_EQ(rows.size(), 3);
    works.clear();
    run.durable.Shutdown();
    for (const state::OperationRow& row : rows) ASSERT_TRUE(run.durable.PutOperation(row).ok());
  }
  ServerRun run(disk_, seams_);
  run.PutTransform("x", kKey);
  run.PutMatrix("c", product);
  ASSERT_TRUE(run.Restore().ok());
  EXPECT_THAT(run.operations.Find("request", kAnn)->results, ElementsAre("transforms/x"));
  EXPECT_THAT(run.operations.Find("product", kAnn)->results, ElementsAre("sparseMatrices/c"));
  const Operation failed = *run.operations.Find("lost", kAnn);
  EXPECT_EQ(failed.state, OperationState::kFailed);
  EXPECT_EQ(failed.error.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  // The rows say so, too.
  for (const state::OperationRow& row : run.Rows()) {
    v1::Operation message;
    ASSERT_TRUE(message.ParseFromString(row.description));
    EXPECT_EQ(message.state(), row.id == "lost" ? v1::OPERATION_STATE_FAILED : v1::OPERATION_STATE_DONE) << row.id;
  }
}

TEST_F(DurableOperationsTest, ARowThatIsDamagedIsRemovedAndTheOthersStay) {
  {
    ServerRun run(disk_, seams_);
    ASSERT_TRUE(run.Restore().ok());
    const auto work = run.operations.Begin(OperationKind::kRegister, kKey)->work;
    ASSERT_TRUE(work->Keep().ok());
    work->Done({"transforms/x"});
    run.durable.Shutdown();
    const std::vector<state::OperationRow> rows = run.Rows();
    ASSERT_EQ(rows.size(), 1);
    // Under an id or an owner that its message does not have, without a message, and with half of one.
    const std::string& good = rows[0].description;
    for (const state::OperationRow& row :
         std::vector<state::OperationRow>{{"moved", "ann", "print", good},
                                          {"request", "bob", "print", good},
                                          {"empty", "ann", "print", ""},
                                          {"half", "ann", "print", good.substr(0, good.size() / 2)}}) {
      ASSERT_TRUE(run.durable.PutOperation(row).ok());
    }
  }
  ServerRun run(disk_, seams_);
  ASSERT_TRUE(run.Restore().ok());
  EXPECT_EQ(run.operations.List("", 9, Anybody()).size(), 1);
  EXPECT_TRUE(run.operations.Find("request", kAnn).ok());
  const std::vector<state::OperationRow> rows = run.Rows();
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0].id, "request");
  EXPECT_EQ(rows[0].owner, "ann");
}

TEST_F(DurableOperationsTest, WhatTheDiskDoesNotTakeIsNotKept) {
  state::FaultyFiles files(disk_, state::Fault::kGone);
  ServerRun run(files, seams_);
  ASSERT_TRUE(run.Restore().ok());
  const auto work = run.operations.Begin(OperationKind::kRegister, kKey)->work;
  files.set_fails_writes(true);
  EXPECT_FALSE(work->Keep().ok()) << "its caller is not told of it";
  EXPECT_THAT(run.Rows(), IsEmpty());
  files.set_fails_writes(false);
  EXPECT_TRUE(work->Keep().ok());
  EXPECT_EQ(run.Rows().size(), 1);
  work->Drop();
  run.durable.Shutdown();
  EXPECT_THAT(run.Rows(), IsEmpty());
}

TEST_F(DurableOperationsTest, ResultsAreThoseOfThisVeryRequest) {
  ServerRun run(disk_, seams_);
  run.PutTransform("x", kKey);
  run.PutMatrix("c", kKey);
  const ServerContext context = run.parts.Make();
  EXPECT_THAT(ResultsOf(context, OperationKind::kRegister, kKey), ElementsAre("transforms/x"));
  EXPECT_THAT(ResultsOf(context, OperationKind::kMultiply, kKey), ElementsAre("sparseMatrices/c"));
  EXPECT_THAT(ResultsOf(context, OperationKind::kImport, kKey), IsEmpty());
  EXPECT_THAT(ResultsOf(context, OperationKind::kRegister, {"request", "other", "ann"}), IsEmpty());
  EXPECT_THAT(ResultsOf(context, OperationKind::kRegister, {"request", "print", "bob"}), IsEmpty());
  EXPECT_THAT(ResultsOf(context, OperationKind::kRegister, {"another", "print", "ann"}), IsEmpty());
}

}  // namespace
}  // namespace intrawarp::server
