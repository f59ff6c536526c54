// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "server/monitor/log_levels.h"

namespace intrawarp::server {
namespace {

using std::chrono::minutes;

const LogLevels::Time kBegin{minutes(1000)};

TEST(LogLevels, AreInfoUntilSomebodySaysOtherwise) {
  LogLevels levels;
  for (int room = 0; room < kLogRooms; ++room) EXPECT_EQ(levels.level(static_cast<LogRoom>(room)), Severity::kInfo);
  levels.Start(Severity::kError);
  for (int room = 0; room < kLogRooms; ++room) EXPECT_EQ(levels.level(static_cast<LogRoom>(room)), Severity::kError);
}

TEST(LogLevels, BelongToTheirRoom) {
  LogLevels levels;
  levels.Set(LogRoom::kRpc, Severity::kDebug, std::nullopt);
  EXPECT_EQ(levels.level(LogRoom::kRpc), Severity::kDebug);
  EXPECT_EQ(levels.level(LogRoom::kServer), Severity::kInfo);
  EXPECT_EQ(levels.level(LogRoom::kRegistration), Severity::kInfo);
  EXPECT_FALSE(levels.Check(kBegin + std::chrono::hours(10000))) << "without an end";
  EXPECT_EQ(levels.level(LogRoom::kRpc), Severity::kDebug);
}

TEST(LogLevels, RevertToThatOfTheStart) {
  LogLevels levels;
  levels.Start(Severity::kWarning);
  levels.Set(LogRoom::kRpc, Severity::kDebug, kBegin + minutes(10));
  levels.Set(LogRoom::kSparse, Severity::kInfo, kBegin + minutes(20));
  EXPECT_EQ(levels.until(LogRoom::kRpc), kBegin + minutes(10));
  EXPECT_FALSE(levels.Check(kBegin + minutes(10) - std::chrono::nanoseconds(1)));
  EXPECT_EQ(levels.level(LogRoom::kRpc), Severity::kDebug);
  EXPECT_TRUE(levels.Check(kBegin + minutes(10)));
  EXPECT_EQ(levels.level(LogRoom::kRpc), Severity::kWarning);
  EXPECT_EQ(levels.until(LogRoom::kRpc), std::nullopt);
  EXPECT_EQ(levels.level(LogRoom::kSparse), Severity::kInfo);
  EXPECT_FALSE(levels.Check(kBegin + minutes(11)));
  // What is set meanwhile counts, not what was.
  levels.Set(LogRoom::kSparse, Severity::kDebug, std::nullopt);
  EXPECT_FALSE(levels.Check(kBegin + minutes(30)));
  EXPECT_EQ(levels.level(LogRoom::kSparse), Severity::kDebug);
}

TEST(LogNames, AreReadAsTheyAreWritten) {
  for (int i = 0; i < kSeverities; ++i) EXPECT_EQ(ParseSeverity(NameOf(static_cast<Severity>(i))), Severity(i));
  for (int i = 0; i < kLogRooms; ++i) EXPECT_EQ(ParseLogRoom(NameOf(static_cast<LogRoom>(i))), LogRoom(i));
  for (const char* word : {"", "Info", "INFO", "warn", "debug ", "5"}) {
    EXPECT_EQ(ParseSeverity(word), std::nullopt) << word;
    EXPECT_EQ(ParseLogRoom(word), std::nullopt) << word;
  }
}

TEST(LogLines, AreWrittenFromTheirLevelOn) {
  TheLogLevels().Start(Severity::kWarning);
  testing::internal::CaptureStderr();
  Log(Severity::kInfo, "quiet");
  Log(Severity::kWarning, "loud", {{"a", "b"}});
  Log(LogRoom::kRpc, Severity::kDebug, "quiet", {});
  TheLogLevels().Set(LogRoom::kRpc, Severity::kDebug, std::nullopt);
  Log(LogRoom::kRpc, Severity::kDebug, "talkative", {});
  Log(Severity::kDebug, "quiet");
  TheLogLevels().Start(Severity::kInfo);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("quiet"), std::string::npos) << text;
  EXPECT_NE(text.find("level=warning event=loud a=b\n"), std::string::npos) << text;
  EXPECT_NE(text.find("level=debug event=talkative\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace intrawarp::server
