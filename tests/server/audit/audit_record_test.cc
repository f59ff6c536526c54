// SPDX-License-Identifier: Apache-2.0
#include "server/audit/audit_record.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace intrawarp::audit {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::system_clock;

// The members of a record; the test fails when it is not a line of JSON.
Json Parsed(const AuditRecord& record, int64_t seq = 1, const std::string& previous = "") {
  const std::string text = ToJson(record, seq, previous);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << text;
  return json;
}

TEST(AuditRecord, EachMemberGoesWhereItBelongs) {
  AuditRecord record;
  record.time = system_clock::time_point(milliseconds(1'700'000'000'007));
  record.action = "frame";
  record.who = "ann";
  record.peer = "ipv4:10.0.0.1:5";
  record.digests = {{"fixed", std::string("\x00\xff", 2)}, {"moving", ""}};
  record.names = {{"session", "0123"}};
  record.checksum = "deadbeef";
  record.options = R"({"stages":[]})";
  record.quality = R"({"verdict":"VERDICT_OK"})";
  record.device = "cuda:1";
  record.frame = 0;
  record.outcome = "OK";
  record.reason = "NONE";
  record.milliseconds = 1.25;
  record.notes = {{"trace", "t1"}, {"empty", ""}};
  const Json json = Parsed(record, 9, "hash");
  EXPECT_EQ(json.begin().key(), "seq") << "by which the line is parsed";
  EXPECT_EQ(json["seq"], 9);
  EXPECT_EQ(json["time"], "2023-11-14T22:13:20.007Z");
  EXPECT_EQ(json["action"], "frame");
  EXPECT_EQ(json["who"], "ann");
  EXPECT_EQ(json["peer"], "ipv4:10.0.0.1:5");
  EXPECT_EQ(json["sha256"], Json({{"fixed", "00ff"}}));
  EXPECT_EQ(json["names"]["session"], "0123");
  EXPECT_EQ(json["crc32c"], "deadbeef");
  EXPECT_EQ(json["options"]["stages"].size(), 0);
  EXPECT_EQ(json["quality"]["verdict"], "VERDICT_OK");
  EXPECT_EQ(json["device"], "cuda:1");
  EXPECT_EQ(json["frame"], 0) << "a number that is given, not none";
  EXPECT_EQ(json["outcome"], "OK");
  EXPECT_EQ(json["reason"], "NONE");
  EXPECT_EQ(json["ms"], 1.25);
  EXPECT_EQ(json["trace"], "t1");
  EXPECT_FALSE(json.contains("empty"));
  EXPECT_EQ(json["previous"], "hash");
}

TEST(AuditRecord, WhatIsNotKnownIsLeftOut) {
  AuditRecord record;
  record.action = "start";
  EXPECT_EQ(ToJson(record, 1, ""), R"({"seq":1,"time":"1970-01-01T00:00:00.000Z","action":"start"})");
}

TEST(AuditRecord, OptionsAreObjectsOrNothing) {
  for (const char* const text : {"", "{}", "null", "[1]", "7", "\"text\"", "{\"a\":", "{\"a\":1}}", "no JSON"}) {
    AuditRecord record;
    record.options = record.quality = text;
    const Json json = Parsed(record);
    EXPECT_FALSE(json.contains("options") || json.contains("quality")) << text;
  }
}

TEST(AuditRecord, ALineHoldsAnyText) {
  AuditRecord record;
  record.action = "a\"b\\c\nd\te";
  record.who = "caf\xc3\xa9";
  record.peer = "bad \xff\xc3( end";
  record.notes = {{"note", std::string("nul\0nul", 7)}};
  const Json json = Parsed(record);
  EXPECT_EQ(json["action"], record.action);
  EXPECT_EQ(json["who"], record.who);
  EXPECT_EQ(json["peer"], "bad \xef\xbf\xbd\xef\xbf\xbd( end");
  EXPECT_EQ(json["note"].get<std::string>().size(), 7);
}

}  // namespace
}  // namespace intrawarp::audit
