// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace intrawarp::cli::bench {
namespace {

using ::testing::HasSubstr;

BenchOptions TwoSessions() {
  BenchOptions options;
  options.load.clients = 2;
  options.load.encoding = "int16";
  options.load.rate_hz = 10;
  options.load.limit_ms = 100;
  options.seconds = 2;
  options.tasks.push_back({.size = 32, .method = "affine", .options = {}});
  return options;
}

LoadResult SomeResult() {
  LoadResult result;
  ClientLog client;
  CallRecord good;
  good.due = 0.5;
  good.sent = 0.5;
  good.answered = 0.75;
  good.fate = Fate::kOk;
  good.phases.back() = 200;
  client.calls = {good, CallRecord()};
  client.session.emplace().set_name("sessions/s");
  client.session->mutable_statistics()->set_frames_ok(2);
  result.clients = {client, ClientLog()};
  result.summary = Summarise(result.clients, 100, 2);
  FloodResult flood;
  flood.name = "uploads";
  flood.clients = 3;
  flood.done = 12;
  flood.refused["RESOURCE_EXHAUSTED TOO_MANY_UPLOADS"] = 2;
  result.floods.push_back(flood);
  return result;
}

TEST(BenchReport, TheHeaderSaysWhatWasAsked) {
  v1::ServerInfo server;
  server.set_version("1.2");
  server.add_devices()->set_name("cpu");
  const Json json = HeaderToJson(server, TwoSessions());
  EXPECT_EQ(json["schema"], "intrawarp-bench/1");
  EXPECT_EQ(json["server"]["version"], "1.2");
  EXPECT_EQ(json["server"]["devices"][0]["name"], "cpu");
  EXPECT_EQ(json["options"]["load"], "navigate");
  EXPECT_EQ(json["options"]["clients"], 2);
  EXPECT_EQ(json["options"]["rate_hz"], 10);
  EXPECT_EQ(json["options"]["tasks"][0]["size"], 32);
  EXPECT_TRUE(json["options"]["deadline_ms"].is_null());
  EXPECT_THAT(HeaderText(server, TwoSessions()), HasSubstr("2 clients, 32^3 voxels, affine, field int16, open loop"));
  BenchOptions capacity = TwoSessions();
  capacity.find_capacity = true;
  EXPECT_THAT(HeaderText(server, capacity), HasSubstr("open loop at 10 Hz each, 2 s for each number of them"));
}

TEST(BenchReport, TheLoadHasEveryFigureAndEveryCall) {
  // As a file, so that every value survives.
  const Json json = Json::parse(JsonText(LoadToJson(SomeResult(), 100, /*calls=*/true)));
  const Json& load = json["load"];
  EXPECT_EQ(load["calls"]["due"], 2);
  EXPECT_EQ(load["calls"]["ok"], 1);
  EXPECT_EQ(load["calls"]["not_sent"], 1);
  EXPECT_EQ(load["late"], 1);
  EXPECT_EQ(load["in_time"], 0);
  EXPECT_EQ(load["latency_ms"]["max"], 250);
  EXPECT_TRUE(load["latency_ms"]["p99"].is_null());
  EXPECT_EQ(load["server_ms"]["total"]["max"], 200);
  EXPECT_EQ(load["server_ms"].size(), static_cast<size_t>(kPhases));
  EXPECT_EQ(load["sessions"][0]["frames"]["ok"], 2);
  EXPECT_TRUE(load["sessions"][1].is_null());
  EXPECT_EQ(load["each"]["fate"], (Json{"ok", "not_sent"}));
  EXPECT_EQ(load["each"]["answered_s"][0], 0.75);
  EXPECT_TRUE(load["each"]["answered_s"][1].is_null());
  for (const char* column : {"client", "due_s", "sent_s", "answered_s", "server_ms", "fate"}) {
    EXPECT_EQ(load["each"][column].size(), 2u) << column;
  }
  EXPECT_EQ(json["floods"][0]["name"], "uploads");
  EXPECT_EQ(json["floods"][0]["refused"]["RESOURCE_EXHAUSTED TOO_MANY_UPLOADS"], 2);
  EXPECT_FALSE(LoadToJson(SomeResult(), 100, /*calls=*/false)["load"].contains("each"));
}

TEST(BenchReport, FloodsAloneHaveNoLoad) {
  LoadResult result = SomeResult();
  result.clients.clear();
  EXPECT_TRUE(LoadToJson(result, 0, true)["load"].is_null());
  EXPECT_THAT(LoadText(result, TwoSessions()), testing::StartsWith("flood uploads: 3 clients, 12 done"));
}

TEST(BenchReport, TheTableHasClientServerAndFates) {
  const std::string text = LoadText(SomeResult(), TwoSessions());
  EXPECT_THAT(text, HasSubstr("client, from due            250.0"));
  EXPECT_THAT(text, HasSubstr("server, total               200.0"));
  EXPECT_THAT(text,
              HasSubstr("calls: 2 due, 1 ok, 0 superseded, 0 missed, 0 refused, 0 failed, 0 unanswered, 1 not sent"));
  EXPECT_THAT(text, HasSubstr("late: 1 of those ok after 100 ms; 0 in time"));
  EXPECT_THAT(text, HasSubstr("sessions, by the server: 1 ended; frames 2 ok"));
  EXPECT_THAT(text, HasSubstr("refused 2 RESOURCE_EXHAUSTED TOO_MANY_UPLOADS"));
}

TEST(BenchReport, ACapacityHasItsSteps) {
  Capacity capacity;
  capacity.task = {.size = 32, .method = "affine", .options = {}};
  capacity.steps = {{.sessions = 1, .summary = SomeResult().summary, .passed = true},
                    {.sessions = 2, .summary = {}, .passed = false}};
  const Json json = CapacityToJson(capacity);
  EXPECT_EQ(json["sessions"], 1);
  EXPECT_EQ(json["open"], false);
  ASSERT_EQ(json["steps"].size(), 2u);
  EXPECT_EQ(json["steps"][0]["calls"]["due"], 2);
  EXPECT_EQ(json["steps"][1]["passed"], false);
}

}  // namespace
}  // namespace intrawarp::cli::bench
