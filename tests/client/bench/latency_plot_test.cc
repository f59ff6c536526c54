// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/latency_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace intrawarp::cli::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Count(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// Elements are opened and closed in order, and attributes are quoted.
bool IsWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (Count(tag, "'") % 2 != 0 || tag.find('<') != std::string::npos) return false;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty();
}

std::vector<ClientLog> RandomLogs(int calls, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<ClientLog> logs(2);
  for (int i = 0; i < calls; ++i) {
    CallRecord call;
    call.due = 10.0 * i / calls;
    call.sent = call.due;
    call.fate = i % 50 == 49 ? Fate::kSuperseded : Fate::kOk;
    call.answered = call.due + std::exponential_distribution<double>(20)(random);
    call.phases.back() = static_cast<float>(call.LatencyMs() / 2);
    logs[static_cast<size_t>(i) % 2].calls.push_back(call);
  }
  return logs;
}

TEST(LatencyPlot, IsWellFormedAndBounded) {
  for (const int calls : {0, 1, 2, 100, 100000}) {
    const std::string svg = LatencyPlot("a load", RandomLogs(calls, 4), 10, 100);
    EXPECT_TRUE(IsWellFormed(svg)) << calls;
    EXPECT_LT(svg.size(), 600000u) << calls;
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

TEST(LatencyPlot, ShowsCallsLimitAndBothCurves) {
  const std::string svg = LatencyPlot("a load", RandomLogs(200, 4), 10, 100);
  EXPECT_EQ(Count(svg, "<polyline"), 2);
  EXPECT_EQ(Count(svg, "class='bad'"), 4);
  EXPECT_EQ(Count(svg, "stroke-dasharray"), 2);
  // A dot for each column of pixels that has a good call: at most one for each.
  EXPECT_GT(Count(svg, "<circle"), 150);
  EXPECT_LE(Count(svg, "<circle"), 196);
  EXPECT_EQ(Count(LatencyPlot("a load", RandomLogs(200, 4), 10, 0), "stroke-dasharray"), 0);
}

TEST(LatencyPlot, TitlesAreEscaped) {
  const std::string svg = LatencyPlot("<b> & \"x\"\n", {}, 1, 0);
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt; &amp; &quot;x&quot; "));
  EXPECT_TRUE(IsWellFormed(svg));
}

}  // namespace
}  // namespace intrawarp::cli::bench
