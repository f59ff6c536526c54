// SPDX-License-Identifier: Apache-2.0
#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/flags.h"
#include "server/monitor/log.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

TEST(CommandLine, DefaultsWithoutArguments) {
  const auto line = ParseCommandLine({});
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->options.device, "auto");
  EXPECT_FALSE(line->options.reflection);
  EXPECT_EQ(line->options.limits.resident_capacity_bytes, 0);
}

TEST(Devices, AListNamesSeveral) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(*ParseDevices("auto"), Names({"auto"}));
  EXPECT_EQ(*ParseDevices("cuda"), Names({"cuda"}));
  EXPECT_EQ(*ParseDevices("cuda:3"), Names({"cuda:3"}));
  EXPECT_EQ(*ParseDevices("cuda:0,1"), Names({"cuda:0", "cuda:1"}));
  EXPECT_EQ(*ParseDevices("cuda:7,0,12"), Names({"cuda:7", "cuda:0", "cuda:12"}));
}

TEST(Devices, AListThatIsNoneIsRefused) {
  EXPECT_THAT(ParseDevices("").status().message(), HasSubstr("empty"));
  EXPECT_THAT(ParseDevices("cuda:0,0").status().message(), HasSubstr("names cuda:0 twice"));
  EXPECT_THAT(ParseDevices("cuda:1,01").status().message(), HasSubstr("names cuda:1 twice"));
  for (const char* value :
       {"cuda:,1", "cuda:0,", "cuda:0,,1", "cuda:0,-1", "cuda:0,one", "cuda:0,cuda:1", "cuda:0,99999999999"}) {
    EXPECT_THAT(ParseDevices(value).status().message(), HasSubstr("must be cuda: and numbers")) << value;
    const auto line = ParseCommandLine({std::string("--device=") + value});
    EXPECT_THAT(line.status().message(), HasSubstr("--device: must be")) << value;
  }
}

TEST(CommandLine, SetsWhatItIsTold) {
  const auto line =
      ParseCommandLine({"--listen=0.0.0.0:1",      "--http=[::1]:0",         "--device=cuda:1",
                        "--resident_bytes=3GiB",   "--pinned_bytes=1048577", "--max_volume_bytes=5MiB",
                        "--max_matrix_bytes=6MiB", "--max_chunk_bytes=2MiB", "--max_transforms=7",
                        "--max_uploads=2",         "--max_streams=3",        "--max_queued_jobs=4",
                        "--upload_ttl=90s",        "--drain_timeout=1500ms", "--reflection",
                        "--max_connections=5",     "--max_calls=6",          "--stream_idle_timeout=7s",
                        "--watchdog_timeout=8s",   "--watchdog_exit=9s",     "--max_sessions=10",
                        "--workspace_bytes=11MiB", "--result_ttl=12h",       "--log_level=warning",
                        "--max_operations=13",     "--operation_ttl=14h",    "--max_connection_message_rate=15"});
  ASSERT_TRUE(line.ok()) << line.status();
  const ServerOptions& options = line->options;
  EXPECT_EQ(options.listen, "0.0.0.0:1");
  EXPECT_EQ(options.log_level, Severity::kWarning);
  EXPECT_EQ(options.http, "[::1]:0");
  EXPECT_EQ(options.device, "cuda:1");
  EXPECT_EQ(options.limits.resident_capacity_bytes, int64_t{3} << 30);
  EXPECT_EQ(options.limits.pinned_capacity_bytes, 1048577);
  EXPECT_EQ(options.limits.max_volume_bytes, 5 << 20);
  EXPECT_EQ(options.limits.max_matrix_bytes, 6 << 20);
  EXPECT_EQ(options.limits.max_chunk_bytes, 2 << 20);
  EXPECT_EQ(options.limits.max_transforms, 7);
  EXPECT_EQ(options.limits.max_uploads, 2);
  EXPECT_EQ(options.limits.max_streams, 3);
  EXPECT_EQ(options.limits.max_queued_jobs, 4);
  EXPECT_EQ(options.limits.upload_ttl, std::chrono::seconds(90));
  EXPECT_EQ(options.drain_timeout, std::chrono::milliseconds(1500));
  EXPECT_TRUE(options.reflection);
  EXPECT_EQ(options.limits.max_sessions, 10);
  EXPECT_EQ(options.limits.workspace_capacity_bytes, 11 << 20);
  EXPECT_EQ(options.limits.result_ttl, std::chrono::hours(12));
  EXPECT_EQ(options.limits.max_operations, 13);
  EXPECT_EQ(options.limits.operation_ttl, std::chrono::hours(14));
  EXPECT_EQ(options.message_limits.connection_rate, 15);
  EXPECT_EQ(options.limits.max_connections, 5);
  EXPECT_EQ(options.limits.max_calls, 6);
  EXPECT_EQ(options.limits.stream_idle_timeout, std::chrono::seconds(7));
  EXPECT_EQ(options.watchdog.timeout, std::chrono::seconds(8));
  EXPECT_EQ(options.watchdog.exit_after, std::chrono::seconds(9));
}

TEST(CommandLine, KeepsDurationsOfLessThanASecond) {
  const auto line = ParseCommandLine({"--upload_ttl=500ms"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.limits.upload_ttl, std::chrono::milliseconds(500));
}

TEST(CommandLine, NamesTheFlagAtFault) {
  const std::vector<std::string> bad = {"listen",
                                        "-listen=a:1",
                                        "--bogus",
                                        "--bogus=1",
                                        "--listen",
                                        "--listen=",
                                        "--listen=host",
                                        "--listen=:50",
                                        "--listen=h:99999",
                                        "--listen=h:x",
                                        "--listen=::1:0",
                                        "--listen=::1",
                                        "--listen=[::1:0",
                                        "--listen=[localhost]:1",
                                        "--http=fe80::1:9464",
                                        "--dicom_listen=::1:104",
                                        "--http=h:-1",
                                        "--device=",
                                        "--resident_bytes=0",
                                        "--resident_bytes=-1",
                                        "--resident_bytes=x",
                                        "--resident_bytes=9999999999TiB",
                                        "--max_chunk_bytes=1048575",
                                        "--max_chunk_bytes=17MiB",
                                        "--max_uploads=0",
                                        "--max_uploads=99999999999",
                                        "--upload_ttl=5",
                                        "--upload_ttl=-5s",
                                        "--drain_timeout=inf",
                                        "--max_session_idle=0s",
                                        "--dicom_timeout=0s",
                                        "--dicom_timeout=100us",
                                        "--dicom_idle_timeout=0ms",
                                        "--dicom_quiet=0s",
                                        "--reflection=yes",
                                        "--log_level=",
                                        "--log_level=Info",
                                        "--log_level=verbose"};
  for (const std::string& argument : bad) {
    const auto line = ParseCommandLine({argument});
    ASSERT_EQ(line.status().code(), absl::StatusCode::kInvalidArgument) << argument;
    EXPECT_THAT(std::string(line.status().message()), HasSubstr(argument.substr(0, argument.find('='))));
  }
}

TEST(CommandLine, HelpNamesEveryFlag) {
  for (const char* flag :
       {"--listen=", "--http=", "--device=", "--resident_bytes=", "--reflection", "--drain_timeout="}) {
    EXPECT_THAT(CommandLineHelp(), HasSubstr(flag));
  }
  EXPECT_TRUE(ParseCommandLine({"--help"})->help);
  EXPECT_TRUE(ParseCommandLine({"--version"})->version);
}

TEST(Log, QuotesWhatNeedsIt) {
  const auto time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1500));
  EXPECT_EQ(FormatLogLine(time, Severity::kWarning, "e",
                          {{"a", "plain/1:2"}, {"b", "two words"}, {"c", "line\nbreak=\"x\""}, {"d", ""}}),
            "time=1970-01-01T00:00:01.500Z level=warning event=e a=plain/1:2 b=\"two words\" "
            "c=\"line\\nbreak=\\\"x\\\"\" d=\"\"");
}

}  // namespace
}  // namespace intrawarp::server
