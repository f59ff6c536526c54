// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/monitor_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace intrawarp::server {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class MonitorMetricsTest : public testing::Test {
 protected:
  Registry registry_;
  const MonitorMetrics metrics_{
      registry_, {"1.2.3", "abc", "none", "1.51"}, std::chrono::system_clock::time_point(std::chrono::seconds(1000))};
};

TEST_F(MonitorMetricsTest, TellsWhatRuns) {
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text,
              HasSubstr("intrawarp_build_info{cuda=\"none\",grpc=\"1.51\",revision=\"abc\",version=\"1.2.3\"} 1"));
  EXPECT_THAT(text, HasSubstr("\nprocess_start_time_seconds 1000\n"));
}

TEST_F(MonitorMetricsTest, TellsOfTheProcess) {
  const std::string text = registry_.Scrape();
  for (const char* name : {"process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds",
                           "process_max_fds", "process_threads", "process_cpu_seconds_total"}) {
    EXPECT_THAT(text, ContainsRegex(absl::StrCat("\n", name, " [0-9]"))) << name;
  }
  EXPECT_THAT(text, Not(HasSubstr("process_resident_memory_bytes 0\n")));
  EXPECT_THAT(text, Not(HasSubstr("process_open_fds 0\n")));
}

TEST_F(MonitorMetricsTest, CountsStreamsThatStalled) {
  metrics_.CountStall(Stall::kWrite);
  metrics_.SetLongestStall(std::chrono::seconds(7));
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_streams_stalled_total{waits_for=\"read\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_streams_stalled_total{waits_for=\"write\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_longest_stall_seconds 7\n"));
}

}  // namespace
}  // namespace intrawarp::server
