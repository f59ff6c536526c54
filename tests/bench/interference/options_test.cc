// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace intrawarp::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

absl::StatusOr<BenchOptions> Parse(const std::string& scenario, std::vector<std::string> arguments) {
  arguments.push_back("--scenario=" + scenario);
  return ParseOptions(arguments);
}

std::string ErrorOf(const std::string& scenario, const std::vector<std::string>& arguments) {
  const auto options = Parse(scenario, arguments);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << scenario << arguments.front();
  return std::string(options.status().message());
}

TEST(InterferenceOptions, TheDefaultsAreThoseOfTheScenario) {
  EXPECT_THAT(Parse("capacity", {})->sizes, ElementsAre(128));
  EXPECT_THAT(Parse("overhead", {})->sizes, ElementsAre(128, 256));
  EXPECT_THAT(Parse("capacity", {})->methods, ElementsAre("affine", "log-demons"));
  EXPECT_THAT(Parse("overload", {})->methods, ElementsAre("affine"));
  EXPECT_THAT(Parse("frames", {})->rates, ElementsAre(10));
}

TEST(InterferenceOptions, CapacityTakesListsOfSizesMethodsAndRates) {
  const auto options = Parse("capacity", {"--sizes=64,96", "--methods=ffd", "--rates=5,2.5"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->sizes, ElementsAre(64, 96));
  EXPECT_THAT(options->methods, ElementsAre("ffd"));
  EXPECT_THAT(options->rates, ElementsAre(5, 2.5));
  EXPECT_THAT(Parse("frames", {"--rates=max,3"})->rates, ElementsAre(0, 3));
}

// A flag is refused by its name in each scenario that does not use it, and taken in the others.
TEST(InterferenceOptions, EachScenarioRefusesWhatItDoesNotUse) {
  const std::set<std::string> all = {"frames", "capacity", "overload", "overhead", "soak"};
  const std::map<std::string, std::set<std::string>> users = {{"--size=64", {"frames", "overload", "soak"}},
                                                              {"--sizes=64", {"capacity", "overhead"}},
                                                              {"--methods=ffd", {"frames", "capacity", "overload"}},
                                                              {"--encodings=int16", {"overhead"}},
                                                              {"--rates=5", {"frames", "capacity"}},
                                                              {"--floods=fem", {"frames"}},
                                                              {"--fem=fem27x3_8", {"frames", "soak"}},
                                                              {"--rmat=lap2d_100", {"frames"}},
                                                              {"--products=sent", {"frames"}},
                                                              {"--upload_mb=16", {"frames"}},
                                                              {"--warmup=1", {"frames", "overload", "soak"}},
                                                              {"--max_sessions=4", {"capacity"}},
                                                              {"--percents=50", {"overload"}},
                                                              {"--call_deadline_ms=9", {"overload"}},
                                                              {"--soak_clients=2", {"soak"}},
                                                              {"--plant_leak=64", {"soak"}},
                                                              {"--seed=7", {"frames", "capacity", "overload", "soak"}},
                                                              {"--device=cpu", all},
                                                              {"--server=--max_sessions=9", all},
                                                              {"--seconds=1", all},
                                                              {"--json=a.jsonl", all}};
  std::set<std::string> tried = {"scenario"};
  for (const auto& [argument, by] : users) {
    const std::string flag = argument.substr(0, argument.find('='));
    tried.insert(flag.substr(2));
    for (const std::string& scenario : all) {
      const auto options = Parse(scenario, {argument});
      EXPECT_EQ(options.ok(), by.count(scenario) > 0) << scenario << " " << argument << ": " << options.status();
      if (!options.ok()) {
        EXPECT_THAT(std::string(options.status().message()), StartsWith(flag + ": only "));
      }
    }
  }
  for (const FlagSpec& spec : Syntax().flags) EXPECT_EQ(tried.count(spec.name), 1u) << spec.name;
}

TEST(InterferenceOptions, FramesRefuseWhatNoneOfTheirFloodsUses) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--floods=uploads", "--fem=fem27x3_8"}, "--fem: only "},
      {{"--floods=fem", "--rmat=lap2d_100"}, "--rmat: only "},
      {{"--floods=registrations", "--products=sent"}, "--products: only "},
      {{"--floods=fem+rmat", "--upload_mb=16"}, "--upload_mb: only "},
      {{"--floods=fem", "--seed=3"}, "--seed: only "},
      {{"--floods=,", "--warmup=1"}, "--warmup: only "},
  };
  for (const auto& [arguments, error] : cases) EXPECT_THAT(ErrorOf("frames", arguments), StartsWith(error));
  EXPECT_TRUE(Parse("frames", {"--floods=fem+uploads", "--fem=fem27x3_8", "--upload_mb=16"}).ok());
}

TEST(InterferenceOptions, WrongValuesNameTheirFlag) {
  const struct {
    std::string scenario, argument, error;
  } cases[] = {
      {"capacity", "--sizes=128.5", "--sizes: 128.5 "},  {"capacity", "--sizes=max", "--sizes: max "},
      {"overhead", "--sizes=8", "--sizes: 8 "},          {"capacity", "--sizes=,", "--sizes: is empty"},
      {"capacity", "--rates=max", "--rates: with max"},  {"frames", "--rates=0", "--rates: 0 "},
      {"overload", "--percents=max", "--percents: max"}, {"overload", "--methods=rigid,affine", "--methods: overload"},
      {"frames", "--methods=,", "--methods: is empty"},  {"frames", "--floods=fem+snow", "--floods: there is no snow"},
  };
  for (const auto& [scenario, argument, error] : cases) EXPECT_THAT(ErrorOf(scenario, {argument}), StartsWith(error));
}

}  // namespace
}  // namespace intrawarp::bench
