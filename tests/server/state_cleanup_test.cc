// SPDX-License-Identifier: Apache-2.0
// Every RPC, however it ends, leaves nothing behind: each method of intrawarp.v1 ends well, ends as an invalid one, by
// its deadline, by a cancel, and with a client that vanishes; then what the server counts is what it was before, and
// zero once the volumes, transforms and matrices that it was given are deleted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/monitor/registry.h"
#include "server/operation/operation_table.h"
#include "server/rpc/rpc_monitor.h"
#include "tests/server/matrix_client.h"
#include "tests/server/raw_call.h"
#include "tests/server/state_cleanup_fixture.h"
#include "tests/support/eventually.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

std::string NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kInvalid:
      return "invalid";
    case Outcome::kDeadline:
      return "deadline";
    case Outcome::kCancel:
      return "cancel";
    case Outcome::kVanish:
      return "vanished_client";
    case Outcome::kStall:
      return "stalled_client";
  }
  return "";
}

grpc::StatusCode CodeOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDeadline:
      return grpc::DEADLINE_EXCEEDED;
    case Outcome::kCancel:
      return grpc::CANCELLED;
    case Outcome::kVanish:
      return grpc::UNAVAILABLE;
    case Outcome::kStall:  // a status with details would wait behind the unread answer
      return grpc::CANCELLED;
    default:
      return grpc::OK;
  }
}

std::vector<std::string> Labels(const std::vector<Rpc>& rpcs) {
  std::vector<std::string> methods;
  for (const Rpc& rpc : rpcs) methods.push_back(rpc.label);
  return methods;
}

std::string CellName(const testing::TestParamInfo<Cell>& info) {
  const std::string& label = std::get<0>(info.param);
  std::string name = label.substr(label.rfind('/') + 1);
  std::replace(name.begin(), name.end(), '#', '_');
  return absl::StrCat(name, "_", NameOf(std::get<1>(info.param)));
}

class WholeCallTest : public StateCleanupTest {};

TEST_P(WholeCallTest, LeavesNothing) {
  const std::vector<Rpc> rpcs = AllRpcs();
  const Rpc& rpc = Find(rpcs, std::get<0>(GetParam()));
  if (std::get<1>(GetParam()) == Outcome::kOk) {
    const grpc::Status status = Run(test_.channel, rpc.method(), rpc.good);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(Eventually(
        [this] { return context().ledger.in_use(Resource::kStreams) == 0 && context().jobs.pending() == 0; }));
    return;
  }
  for (const Messages& messages : rpc.invalid) {
    const grpc::Status status = Run(test_.channel, rpc.method(), messages);
    EXPECT_THAT(status.error_code(), testing::AnyOf(grpc::INVALID_ARGUMENT, grpc::OUT_OF_RANGE))
        << status.error_message();
  }
  const grpc::Status garbage = Run(test_.channel, rpc.method(), {"\x0a\xff\xff\xff\xff\x0f garbage"});
  EXPECT_THAT(garbage.error_code(), testing::AnyOf(grpc::INVALID_ARGUMENT, grpc::INTERNAL, grpc::UNIMPLEMENTED))
      << garbage.error_message();
  if (IsResumable(rpc)) ExpireUploads();
  ExpectAsBefore();
}

INSTANTIATE_TEST_SUITE_P(Rpcs, WholeCallTest,
                         testing::Combine(testing::ValuesIn(Labels(AllRpcs())),
                                          testing::Values(Outcome::kOk, Outcome::kInvalid)),
                         CellName);

// Calls whose client stops half way, each in every place where it can.
class HalfCallTest : public StateCleanupTest {};

TEST_P(HalfCallTest, LeavesNothing) {
  const auto& [label, outcome] = GetParam();
  const std::vector<Rpc> rpcs = AllRpcs();
  const Rpc& rpc = Find(rpcs, label);
  for (const Stop& stop : rpc.stops) {
    SCOPED_TRACE(absl::StrCat("after ", stop.messages, " messages", stop.writes_done ? ", the last" : ""));
    TcpRelay relay(test_.server->grpc_address());
    const auto channel = NewChannel(outcome == Outcome::kVanish ? relay.address() : test_.server->grpc_address());
    Roundtrip(channel);
    auto blocker = stop.device_busy ? std::make_unique<JobBlocker>(context().jobs) : nullptr;
    auto copies = stop.device_busy ? std::make_unique<JobBlocker>(context().copies) : nullptr;
    std::optional<std::chrono::milliseconds> timeout;
    if (outcome == Outcome::kDeadline) timeout = std::chrono::milliseconds(100);
    RawCall call(channel, rpc.method(), timeout);
    // Each upload has a name of its own, so that none goes on where a late one has ended.
    Send(call, UnderItsOwnName(rpc, absl::StrCat("new-", stop.messages)), stop.messages, stop.writes_done);
    Roundtrip(channel);
    if (stop.device_busy && outcome != Outcome::kDeadline) {
      EXPECT_TRUE(Eventually([this] { return context().jobs.pending() + context().copies.pending() == 3; }));
    }

    const grpc::Status status = End(call, outcome, relay);

    EXPECT_EQ(status.error_code(), CodeOf(outcome)) << status.error_message();
    // The server knows it before a job has its turn.
    EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
    blocker.reset();
    copies.reset();
    if (IsResumable(rpc)) ExpireUploads();
    ExpectAsBefore();
  }
}

// Calls whose client does not read the answer.
class UnreadAnswerTest : public StateCleanupTest {
 protected:
  UnreadAnswerTest() {
    auto bulk = test_.Stub<v1::BulkService>();
    EXPECT_TRUE(Upload(*bulk, VolumeOn(LargeGrid(), "large"), nullptr, 1 << 20).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(Full(700, 700, 1), "1", "large"), nullptr, 1 << 20).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(Full(900, 1, 1), "2", "column"), nullptr, 1 << 20).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(Full(1, 900, 1), "3", "row"), nullptr, 1 << 20).ok());
    before_ = test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  }
};

TEST_P(UnreadAnswerTest, LeavesNothing) {
  const auto& [label, outcome] = GetParam();
  const std::vector<Rpc> rpcs = RpcsWithLargeAnswers();
  const Rpc& rpc = Find(rpcs, label);
  TcpRelay relay(test_.server->grpc_address());
  const auto channel = NewChannel(outcome == Outcome::kVanish ? relay.address() : test_.server->grpc_address());
  Roundtrip(channel);
  if (outcome == Outcome::kStall) ExpireUploads();  // as the clock goes on
  std::optional<std::chrono::milliseconds> timeout;
  if (outcome == Outcome::kDeadline) timeout = std::chrono::milliseconds(700);
  RawCall call(channel, rpc.method(), timeout);
  Send(call, rpc.good, rpc.good.size(), /*writes_done=*/true);
  // The first message of a session says that it has opened, the second that its frame is done.
  if (label == kNavigate) call.Read();
  const bool answered = call.Read().has_value();
  if (outcome == Outcome::kDeadline) {
    EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  } else {
    EXPECT_TRUE(answered);
    // The job is over, the answer waits.
    EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 0; }));
    EXPECT_EQ(context().ledger.in_use(Resource::kStreams), 1);
  }
  if (outcome == Outcome::kStall) {
    EXPECT_TRUE(EndsWhenStalled());
    EXPECT_THAT(context().metrics.registry.Scrape(),
                testing::HasSubstr("streams_stalled_total{waits_for=\"write\"} 1\n"));
  }

  const grpc::Status status = End(call, outcome, relay);

  EXPECT_EQ(status.error_code(), CodeOf(outcome)) << status.error_message();
  ExpectAsBefore();
}

const auto kBrokenOff = testing::Values(Outcome::kDeadline, Outcome::kCancel, Outcome::kVanish);

INSTANTIATE_TEST_SUITE_P(Rpcs, HalfCallTest, testing::Combine(testing::ValuesIn(Labels(AllRpcs())), kBrokenOff),
                         CellName);
INSTANTIATE_TEST_SUITE_P(Rpcs, UnreadAnswerTest,
                         testing::Combine(testing::ValuesIn(Labels(RpcsWithLargeAnswers())),
                                          testing::Values(Outcome::kDeadline, Outcome::kCancel, Outcome::kVanish,
                                                          Outcome::kStall)),
                         CellName);

TEST(StateCleanup, KnowsEveryRpc) {
  std::set<std::string> expected, tested;
  for (const RpcMethod& method : AllMethods()) {
    if (absl::StartsWith(method.service, "intrawarp.")) expected.insert("/" + method.full_name());
  }
  for (const Rpc& rpc : AllRpcs()) tested.insert(rpc.method());
  EXPECT_EQ(tested, expected);
}

}  // namespace
}  // namespace intrawarp::server
