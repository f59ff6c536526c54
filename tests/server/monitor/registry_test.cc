// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Fate { kGood, kBad };
constexpr const char* kFates[] = {"good", "bad"};
constexpr double kEnds[] = {0.5, 1};

TEST(Registry, ShowsWhatWasCounted) {
  Registry registry;
  const Counter counter = registry.NewCounter("jobs_total", "Jobs.");
  const Gauge gauge = registry.NewGauge("depth", "Jobs that wait.");
  const Histogram histogram = registry.NewHistogram("seconds", "Time.", kEnds);
  EXPECT_THAT(registry.Scrape(), HasSubstr("# HELP jobs_total Jobs.\n# TYPE jobs_total counter\njobs_total 0\n"));
  counter.Add();
  counter.Add(2);
  counter.Add(-2);  // left out
  gauge.Set(5);
  gauge.Add(-2);
  histogram.Observe(0.75);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("\njobs_total 3\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE depth gauge\ndepth 3\n"));
  EXPECT_THAT(text, HasSubstr("\nseconds_sum 0.75\nseconds_bucket{le=\"0.5\"} 0\nseconds_bucket{le=\"1\"} 1\n"));
}

TEST(Registry, TotalsThatAreKeptElsewhereOnlyRise) {
  Registry registry;
  const Counter counter = registry.NewCounter("lost_total", "Lost.");
  counter.RaiseTo(7);
  counter.RaiseTo(4);
  EXPECT_THAT(registry.Scrape(), HasSubstr("\nlost_total 7\n"));
}

TEST(Registry, LabelsAreInTheOrderOfTheirDeclarationAndAnEmptyOneIsLeftOut) {
  Registry registry;
  const GaugeFamily family = registry.Gauges("used_bytes", "Bytes.", {"kind", "device"});
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("used_bytes")));  // it has no series yet
  family.With({"resident", "cpu"}).Set(1);
  family.With({"pinned", ""}).Set(2);
  family.With({"pinned", ""}).Add(1);  // the same series
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("\nused_bytes{device=\"cpu\",kind=\"resident\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nused_bytes{kind=\"pinned\"} 3\n"));
}

TEST(Registry, ACounterForEveryValueOfAnEnumIsThereFromTheStart) {
  Registry registry;
  const EnumCounters<Fate> fates(registry.Counters("fates_total", "Fates.", {"class", "fate"}), kFates, {"frame"});
  fates[Fate::kBad].Add();
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("\nfates_total{class=\"frame\",fate=\"good\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nfates_total{class=\"frame\",fate=\"bad\"} 1\n"));
}

TEST(Registry, HooksSetTheirSeriesForEachScrapeUntilTheyGo) {
  Registry registry;
  const Gauge gauge = registry.NewGauge("depth", "Jobs that wait.");
  int scrapes = 0;
  {
    const Registry::Hook hook = registry.OnScrape([&] { gauge.Set(++scrapes); });
    EXPECT_THAT(registry.Scrape(), HasSubstr("\ndepth 1\n"));
    EXPECT_THAT(registry.Scrape(), HasSubstr("\ndepth 2\n"));
  }
  EXPECT_THAT(registry.Scrape(), HasSubstr("\ndepth 2\n"));
  Registry::Hook hook = registry.OnScrape([&] { ++scrapes; });
  Registry::Hook moved = std::move(hook);
  registry.Scrape();
  EXPECT_EQ(scrapes, 3);
  moved = {};
  registry.Scrape();
  EXPECT_EQ(scrapes, 3);
}

TEST(Registry, TellsWhatWasDeclared) {
  Registry registry;
  registry.Counters("fates_total", "Fates.", {"class"}).With({"frame"});
  registry.Histograms("seconds", "Time.", {}).With({}, kEnds);
  registry.Gauges("depth", "Jobs that wait.", {"device"});
  int scrapes = 0;
  const Registry::Hook hook = registry.OnScrape([&] { ++scrapes; });
  const std::vector<FamilyInfo> families = registry.Families();
  EXPECT_EQ(scrapes, 0);
  ASSERT_EQ(families.size(), 3u);
  EXPECT_EQ(families[0].name, "fates_total");
  EXPECT_EQ(families[0].help, "Fates.");
  EXPECT_EQ(families[0].type, FamilyType::kCounter);
  EXPECT_THAT(families[0].labels, ElementsAre("class"));
  ASSERT_EQ(families[0].series.size(), 1u);
  EXPECT_THAT(families[0].series[0].values, ElementsAre("frame"));
  EXPECT_EQ(families[1].type, FamilyType::kHistogram);
  ASSERT_EQ(families[1].series.size(), 1u);
  EXPECT_THAT(families[1].series[0].buckets, ElementsAre(0.5, 1));
  EXPECT_EQ(families[2].type, FamilyType::kGauge);
  EXPECT_TRUE(families[2].series.empty());
}

TEST(Registry, ANameIsDeclaredOnce) {
  Registry registry;
  registry.NewCounter("jobs_total", "Jobs.");
  EXPECT_ANY_THROW(registry.NewCounter("jobs_total", "Jobs."));
  EXPECT_ANY_THROW(registry.NewGauge("jobs_total", "Jobs."));
}

TEST(Registry, ManyCountAtOnce) {
  Registry registry;
  const Counter counter = registry.NewCounter("jobs_total", "Jobs.");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&counter] {
      for (int n = 0; n < 1000; ++n) counter.Add();
    });
  }
  for (int n = 0; n < 10; ++n) registry.Scrape();
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(registry.Scrape(), HasSubstr("\njobs_total 4000\n"));
}

}  // namespace
}  // namespace intrawarp::server
