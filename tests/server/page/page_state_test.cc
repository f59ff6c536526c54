// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_state.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "server/base/version.h"
#include "server/page/viewer_hub.h"
#include "tests/server/page/page_parts.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PageStateTest : public testing::Test {
 protected:
  Json Line(const Identity& caller = Identity{"ann", Role::kFrame}) {
    const std::string text = state_.NextLine(caller);
    EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line, with its end";
    return Json::parse(text);
  }
  // A stream carries the session from now on.
  int64_t Carry(NavigateSession& session) {
    const auto carrier = session.Open(/*warm=*/true, [](const absl::Status&) {});
    EXPECT_TRUE(carrier.ok()) << carrier.status();
    return carrier.value_or(0);
  }
  void Answer(NavigateSession& session, int64_t carrier, int64_t number, FrameFate fate,
              std::optional<milliseconds> deadline = std::nullopt) {
    NavigateFrame frame(parts_.context(), parts_.now());
    frame.number = number;
    frame.deadline = deadline;
    frame.status = fate == FrameFate::kOk || fate == FrameFate::kLate ? absl::OkStatus() : absl::AbortedError("");
    frame.latency.Add(Phase::kOptimise, milliseconds(20));
    frame.latency.set_total(milliseconds(20));
    frame.record.Repeated();  // the metrics of frames are not looked at here
    session.FrameBegan(carrier);
    session.FrameAnswered(carrier, frame, fate);
  }

  PageParts parts_;
  ViewerHub hub_{parts_.seams(), [] {}};
  PageState state_{parts_.context(), hub_};
};

TEST_F(PageStateTest, TellsOfTheServerAndItsDevices) {
  const Json line = Line();
  EXPECT_EQ(line["now"], SecondsOf(parts_.now()));
  EXPECT_EQ(line["version"], ThisBuild().version);
  EXPECT_EQ(line["caller"], "ann");
  ASSERT_EQ(line["devices"].size(), 1);
  const Json& device = line["devices"][0];
  EXPECT_EQ(device["name"], "cpu");
  EXPECT_EQ(device["state"], "well");
  EXPECT_EQ(device["memory_total"], PageParts::kMemory);
  EXPECT_EQ(device["waiting"], 0);
  EXPECT_FALSE(device.contains("memory_free")) << "which tells of others' work";
  EXPECT_EQ(Line(Identity{"root", Role::kAdmin})["devices"][0]["memory_free"], PageParts::kMemory / 2);
  EXPECT_EQ(line["sessions"].size(), 0);
}

TEST_F(PageStateTest, MemoryInUseIsTheCallersOwnAndAnAdminsIsAll) {
  Claim own{{.resident_bytes = 100, .pinned_bytes = 10}}, others{{.resident_bytes = 1000}};
  own.owner = "ann";
  others.owner = "bob";
  const auto first = parts_.ledger().Admit(own), second = parts_.ledger().Admit(others);
  ASSERT_TRUE(first.ok() && second.ok());
  const Json memory = Line()["memory"];
  ASSERT_EQ(memory.size(), 3);
  EXPECT_EQ(memory[0], Json({{"name", "resident"}, {"in_use", 100}, {"capacity", PageParts::kMemory}}));
  EXPECT_EQ(memory[1]["name"], "workspace");
  EXPECT_EQ(memory[1]["in_use"], 0);
  EXPECT_EQ(memory[2]["name"], "pinned");
  EXPECT_EQ(memory[2]["in_use"], 10);
  EXPECT_EQ(Line(Identity{"root", Role::kAdmin})["memory"][0]["in_use"], 1100);
}

TEST_F(PageStateTest, DescribesASession) {
  const auto session = parts_.Open("or3");
  const Json opening = Line()["sessions"][0];
  EXPECT_EQ(opening["id"], "or3");
  EXPECT_EQ(opening["owner"], "ann");
  EXPECT_EQ(opening["state"], "OPENING");
  EXPECT_EQ(opening["device"], "cpu");
  EXPECT_EQ(opening["method"], "auto");
  EXPECT_EQ(opening["resident"], "volumes/ct");
  EXPECT_EQ(opening["resident_is_fixed"], true);
  EXPECT_TRUE(opening["rate_hz"].is_null());
  EXPECT_TRUE(opening["p50_ms"].is_null() && opening["p99_ms"].is_null());
  EXPECT_TRUE(opening["tip"].is_null());
  EXPECT_EQ(opening["frames"].size(), 0);
  (void)Carry(*session);
  EXPECT_EQ(Line()["sessions"][0]["state"], "ACTIVE");
  EXPECT_EQ(Line(Identity{"bob", Role::kFrame})["sessions"].size(), 0);
  EXPECT_EQ(Line(Identity{"root", Role::kAdmin})["sessions"].size(), 1);
}

TEST_F(PageStateTest, ALineHasTheFramesSinceTheOneBefore) {
  const auto session = parts_.Open("or3");
  const int64_t carrier = Carry(*session);
  Answer(*session, carrier, 1, FrameFate::kOk, milliseconds(80));
  parts_.Advance(milliseconds(10));
  Answer(*session, carrier, 2, FrameFate::kLate);
  Json json = Line()["sessions"][0];
  ASSERT_EQ(json["frames"].size(), 2);
  const Json& first = json["frames"][0];
  EXPECT_EQ(first["number"], 1);
  EXPECT_EQ(first["total_ms"], 20);
  EXPECT_EQ(first["limit_ms"], 80);
  EXPECT_EQ(first["fate"], "ok");
  EXPECT_EQ(first["verdict"], "ok");
  EXPECT_EQ(first["phases_ms"]["optimise"], 20);
  EXPECT_EQ(first["phases_ms"]["send"], 0);
  const Json& second = json["frames"][1];
  EXPECT_EQ(second["answered"], SecondsOf(parts_.now()));
  EXPECT_TRUE(second["limit_ms"].is_null());
  EXPECT_EQ(second["fate"], "late");
  EXPECT_EQ(second["verdict"], "review") << "a late answer is never ok";
  EXPECT_EQ(json["counts"]["ok"], 1);
  EXPECT_EQ(json["counts"]["late"], 1);
  EXPECT_EQ(json["p50_ms"], 20);

  EXPECT_EQ(Line()["sessions"][0]["frames"].size(), 0);
  Answer(*session, carrier, 3, FrameFate::kMissed);
  Answer(*session, carrier, 4, FrameFate::kSuperseded);
  Answer(*session, carrier, 5, FrameFate::kRefused);
  Answer(*session, carrier, 6, FrameFate::kFailed);
  session->FrameBegan(carrier);
  session->FramesDropped(1);
  json = Line()["sessions"][0];
  ASSERT_EQ(json["frames"].size(), 4);
  const char* const fates[] = {"missed", "superseded", "refused", "failed"};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(json["frames"][i]["fate"], fates[i]);
  EXPECT_EQ(json["counts"], Json::parse(R"({"ok":1,"late":1,"missed":1,"superseded":1,"refused":1,"failed":1,
                                            "dropped":1})"));
  // Another viewer's lines begin with all that the session remembers.
  PageState other(parts_.context(), hub_);
  EXPECT_EQ(Json::parse(other.NextLine({"ann", Role::kFrame}))["sessions"][0]["frames"].size(), 6);
}

TEST_F(PageStateTest, ASessionOfANameThatAnEarlierOneHadBeginsAnew) {
  auto session = parts_.Open("or3");
  Answer(*session, Carry(*session), 1, FrameFate::kOk);
  EXPECT_EQ(Line()["sessions"][0]["frames"].size(), 1);
  session->Close(absl::OkStatus());
  session = parts_.Open("or3");
  Answer(*session, Carry(*session), 1, FrameFate::kOk);
  EXPECT_EQ(Line()["sessions"][0]["frames"].size(), 1);
}

TEST_F(PageStateTest, TellsWhereTheTipIsAndHowOldThatIs) {
  const auto session = parts_.Open("or3");
  hub_.SetTip(session, {1, -2, 3.5});
  parts_.Advance(seconds(2));
  const Json tip = Line()["sessions"][0]["tip"];
  EXPECT_EQ(tip["point"], Json::parse("[1.0,-2.0,3.5]"));
  EXPECT_EQ(tip["age_s"], 2);
}

TEST_F(PageStateTest, ADeviceThatIsLostSaysSo) {
  OwnedContext owned = *OwnedContext::Create(parts_.device(), 16);
  parts_.device().FailAt(1, absl::UnavailableError("fell off the bus"), DeviceCall::kSynchronize);
  EXPECT_FALSE(parts_.device().Synchronize(owned.context().stream()).ok());
  EXPECT_EQ(parts_.Check().state, WatchdogState::kLost);
  EXPECT_EQ(Line()["devices"][0]["state"], "lost");
}

}  // namespace
}  // namespace intrawarp::server
