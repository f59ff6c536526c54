// SPDX-License-Identifier: Apache-2.0
// Holds what the rooms declare to tests/server/monitor/series.txt, which says how to renew it. No server runs: the
// devices and methods are made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/pacs/pacs_metrics.h"
#include "server/server_metrics.h"
#include "server/session/session_metrics.h"
#include "tests/server/promtool.h"

namespace intrawarp::server {
namespace {

constexpr char kList[] = INTRAWARP_SOURCE_DIR "/tests/server/monitor/series.txt";

// The metrics of all rooms, as on a server with all that can be switched on.
struct AllMetrics {
  explicit AllMetrics(const std::vector<std::string>& devices)
      : server({"VERSION", "REVISION", "CUDA", "GRPC"}, devices,
               {{"SERVICE", "UNARY", "unary"}, {"SERVICE", "STREAM", "bidi_stream"}},
               std::chrono::system_clock::time_point()),
        session(server.registry),
        pacs(server.registry) {}

  ServerMetrics server;
  const SessionMetrics session;
  const PacsMetrics pacs;
};

using Values = std::set<std::string>;

// The values that a family's series have for a label; an empty one is left out.
Values ValuesOf(const std::vector<const FamilyInfo::Series*>& series, size_t label) {
  Values values;
  for (const FamilyInfo::Series* each : series) {
    if (!each->values[label].empty()) values.insert(each->values[label]);
  }
  return values;
}

// A line for each set of buckets, with the labels that tell its series from the others.
std::string DescribeBuckets(const FamilyInfo& family, const std::vector<const FamilyInfo::Series*>& all) {
  std::map<std::vector<double>, std::vector<const FamilyInfo::Series*>> by_buckets;
  for (const FamilyInfo::Series* each : all) by_buckets[each->buckets].push_back(each);
  std::string text;
  for (const auto& [buckets, series] : by_buckets) {
    absl::StrAppend(&text, "  buckets");
    for (size_t label = 0; label < family.labels.size(); ++label) {
      const Values values = ValuesOf(series, label);
      if (values != ValuesOf(all, label))
        absl::StrAppend(&text, " ", family.labels[label], "=", absl::StrJoin(values, "|"));
    }
    absl::StrAppend(&text, ": ", absl::StrJoin(buckets, " "), "\n");
  }
  return text;
}

std::string Describe(const FamilyInfo& family) {
  constexpr const char* kTypes[] = {"counter", "gauge", "histogram"};
  std::vector<const FamilyInfo::Series*> series;
  for (const FamilyInfo::Series& each : family.series) series.push_back(&each);
  std::string text =
      absl::StrCat(family.name, " ", kTypes[static_cast<size_t>(family.type)], "\n  ", family.help, "\n");
  for (size_t label = 0; label < family.labels.size(); ++label) {
    const Values values = ValuesOf(series, label);
    absl::StrAppend(&text, "  label ", family.labels[label], ":", values.empty() ? "" : " ", absl::StrJoin(values, " "),
                    "\n");
  }
  if (family.type == FamilyType::kHistogram) text += DescribeBuckets(family, series);
  return text;
}

std::string Describe(const Registry& registry) {
  std::vector<std::string> families;
  for (const FamilyInfo& family : registry.Families()) families.push_back(Describe(family));
  std::sort(families.begin(), families.end());
  return absl::StrJoin(families, "");
}

std::string Read(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The comment at its head, and the rest.
std::pair<std::string, std::string> ReadList() {
  std::pair<std::string, std::string> parts;
  for (const absl::string_view line : absl::StrSplit(Read(kList), '\n', absl::SkipEmpty())) {
    absl::StrAppend(line.front() == '#' ? &parts.first : &parts.second, line, "\n");
  }
  return parts;
}

TEST(Series, AreThoseOfTheList) {
  const AllMetrics metrics({"DEVICE0", "DEVICE1"});
  const std::string declared = Describe(metrics.server.registry);
  const auto [head, listed] = ReadList();
  EXPECT_EQ(declared, listed) << kList << " says how to renew it";
  if (std::getenv("INTRAWARP_RENEW_SERIES") != nullptr) std::ofstream(kList) << head << declared;
}

// The label device tells the devices of a server apart. On a server with one, only what is about the device itself has
// it.
TEST(Series, OfTheOnlyDeviceHaveNoLabelForIt) {
  const AllMetrics metrics({"DEVICE0"});
  Values with_device;
  for (const FamilyInfo& family : metrics.server.registry.Families()) {
    for (const FamilyInfo::Series& series : family.series) {
      for (size_t label = 0; label < family.labels.size(); ++label) {
        if (series.values[label] == "DEVICE0") with_device.insert(family.name);
      }
    }
  }
  EXPECT_THAT(with_device, testing::UnorderedElementsAre("intrawarp_device_healthy", "intrawarp_device_errors_total",
                                                         "intrawarp_watchdog_state", "intrawarp_job_busy_seconds_total",
                                                         "intrawarp_job_held_seconds_total"));
}

TEST(Series, PromtoolFindsNothingWrong) {
  const AllMetrics metrics({"DEVICE0", "DEVICE1"});
  const PromtoolResult result = PromtoolCheck(metrics.server.registry.Scrape());
  if (!result.available) GTEST_SKIP() << "promtool is not installed";
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output, "");
}

}  // namespace
}  // namespace intrawarp::server
