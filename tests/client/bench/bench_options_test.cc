// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "client/cli/registration_flags.h"
#include "engine/base/flags.h"

namespace intrawarp::cli::bench {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<BenchOptions> Parse(const std::vector<std::string>& arguments) {
  const auto flags = ParseFlags({.flags = BenchFlagSpecs()}, arguments);
  return flags.ok() ? ParseBenchFlags(*flags) : flags.status();
}

std::string ErrorOf(const std::vector<std::string>& arguments) {
  const auto options = Parse(arguments);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << arguments.front();
  return std::string(options.status().message());
}

TEST(BenchOptions, TheDefaultIsOneSessionInAClosedLoop) {
  const auto options = Parse({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->load.kind, LoadKind::kNavigate);
  EXPECT_EQ(options->load.clients, 1);
  EXPECT_EQ(options->load.rate_hz, 0);
  EXPECT_EQ(options->load.limit_ms, 0);
  EXPECT_FALSE(options->load.wants_field());
  EXPECT_FALSE(options->floods.any());
  ASSERT_EQ(options->tasks.size(), 1u);
  EXPECT_EQ(options->tasks[0].size, 96);
  ASSERT_EQ(options->tasks[0].options.stages_size(), 1);
  EXPECT_TRUE(options->tasks[0].options.stages(0).has_affine());
}

TEST(BenchOptions, TheLimitIsAPeriodUnlessADeadlineOrALimitIsGiven) {
  EXPECT_EQ(Parse({"--rate=20"})->load.limit_ms, 50);
  EXPECT_EQ(Parse({"--rate=20", "--deadline_ms=80"})->load.limit_ms, 80);
  EXPECT_EQ(Parse({"--rate=20", "--deadline_ms=80", "--limit_ms=70"})->load.limit_ms, 70);
}

TEST(BenchOptions, OptionsOfRegistrationsReachTheTask) {
  const auto options =
      Parse({"--method=affine,log-demons", "--iterations=7", "--symmetric", "--field_encoding=velocity"});
  ASSERT_TRUE(options.ok()) << options.status();
  const v1::RegistrationOptions& task = options->tasks[0].options;
  EXPECT_EQ(task.stages(1).log_demons().iterations(), 7);
  EXPECT_TRUE(task.stages(1).log_demons().symmetric());
  EXPECT_EQ(options->load.field.encoding(), v1::FIELD_ENCODING_VELOCITY);
}

std::string ArgumentOf(const FlagSpec& spec) {
  if (spec.type == FlagType::kSwitch) return "--" + spec.name;
  return "--" + spec.name + "=" + (spec.choices.empty() ? "2" : spec.choices.back());
}

// Whether the flag makes another registration of some method.
bool ChangesATask(const FlagSpec& spec) {
  for (const char* method : {"rigid", "affine", "search", "ffd", "log-demons"}) {
    std::vector<std::string> arguments = {std::string("--method=") + method};
    if (spec.name == "best_effort") arguments.push_back("--budget_ms=100");
    const auto plain = Parse(arguments);
    arguments.push_back(ArgumentOf(spec));
    const auto changed = Parse(arguments);
    if (!plain.ok() || !changed.ok()) continue;
    if (plain->tasks[0].options.SerializeAsString() != changed->tasks[0].options.SerializeAsString()) return true;
  }
  return false;
}

TEST(BenchOptions, EveryFlagOfRegistrationsChangesTheTask) {
  std::set<std::string> known;
  for (const FlagSpec& spec : BenchFlagSpecs()) known.insert(spec.name);
  for (const FlagSpec& spec : RegistrationFlagSpecs()) {
    if (known.count(spec.name) == 0 || spec.name == "method") continue;
    EXPECT_TRUE(ChangesATask(spec)) << spec.name;
  }
}

TEST(BenchOptions, FlagsThatNameInputsAreUnknown) {
  for (const char* flag : {"--fixed_mask", "--moving_mask", "--fixed_weight", "--moving_weight", "--initial",
                           "--landmarks", "--unmoved_points"}) {
    EXPECT_THAT(ErrorOf({std::string(flag) + "=a.csv"}), HasSubstr("unknown option")) << flag;
  }
}

TEST(BenchOptions, CapacityHasATaskForEachSizeAndMethod) {
  const auto options =
      Parse({"--find_capacity", "--rate=10", "--sizes=96,32", "--methods=affine,affine+ffd", "--max_sessions=4"});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->tasks.size(), 4u);
  EXPECT_EQ(options->tasks[1].size, 96);
  EXPECT_EQ(options->tasks[1].method, "affine,ffd");
  EXPECT_EQ(options->tasks[1].options.stages_size(), 2);
  EXPECT_EQ(options->tasks[2].size, 32);
  EXPECT_EQ(options->capacity.max_sessions, 4);
}

TEST(BenchOptions, WrongValuesNameTheirFlag) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--sessions=0"}, "--sessions: "},
      {{"--sessions=65"}, "--sessions: "},
      {{"--seconds=3601"}, "--seconds: "},
      {{"--size=15"}, "--size: "},
      {{"--method=snake"}, "--method: "},
      {{"--field_encoding=velocity"}, "--field_encoding: "},
      {{"--method=log-demons", "--field_encoding=control_points"}, "--field_encoding: "},
      {{"--spacing_vox=4"}, "--spacing_vox: "},
      {{"--registrations=1", "--registration_method=snake"}, "--registration_method: "},
      {{"--find_capacity"}, "--find_capacity: "},
      {{"--find_capacity", "--rate=1", "--sizes=96,9"}, "--sizes: "},
      {{"--find_capacity", "--rate=1", "--sizes="}, "--sizes: "},
      {{"--find_capacity", "--rate=1", "--methods=affine+snake"}, "--methods: "},
      {{"--find_capacity", "--rate=1", "--load=register"}, "--find_capacity: "},
      {{"--load=none"}, "--load: "},
      {{"--sessions=64", "--rate=1000", "--seconds=3600"}, "--seconds: "},
      {{"--sessions=64", "--size=512"}, "--sessions: "},
  };
  for (const auto& [arguments, flag] : cases) EXPECT_THAT(ErrorOf(arguments), HasSubstr(flag)) << arguments.back();
}

TEST(BenchOptions, FlagsThatNothingUsesAreErrors) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--sizes=96"}, "--sizes: only --find_capacity"},
      {{"--late_percent=1"}, "--late_percent: only --find_capacity"},
      {{"--find_capacity", "--rate=1", "--size=96"}, "--size: only"},
      {{"--find_capacity", "--rate=1", "--sessions=2"}, "--sessions: only"},
      {{"--find_capacity", "--rate=1", "--plot=a.svg"}, "--plot: only"},
      {{"--load=register", "--latest"}, "--latest: only --load=navigate"},
      {{"--latest"}, "--latest: only a load with --rate"},
      {{"--load=register", "--shared_memory"}, "--shared_memory: only --load=navigate"},
      {{"--load=register", "--deadline_ms=5"}, "--deadline_ms: only --load=navigate"},
      {{"--load=none", "--uploads=1", "--rate=5"}, "--rate: only"},
      {{"--load=none", "--uploads=1", "--method=affine"}, "--method: only"},
      {{"--load=none", "--uploads=1", "--iterations=5"}, "--iterations: only"},
      {{"--load=none", "--uploads=1", "--size=96"}, "--size: only"},
      {{"--matrix_rows=100"}, "--matrix_rows: only"},
      {{"--upload_mb=5"}, "--upload_mb: only --uploads"},
      {{"--registration_method=affine"}, "--registration_method: only --registrations"},
      {{"--warmup=2"}, "--warmup: only a flood"},
  };
  for (const auto& [arguments, flag] : cases) EXPECT_THAT(ErrorOf(arguments), HasSubstr(flag)) << arguments.back();
  EXPECT_TRUE(Parse({"--load=none", "--registrations=1", "--size=32"}).ok());
}

TEST(BenchOptions, OnlyThisMachineIsLoadedWithoutAWord) {
  for (const char* here : {"localhost:1", "127.0.0.1:50051", "127.9.9.9:1", "[::1]:1", "unix:/run/intrawarp"}) {
    EXPECT_TRUE(IsOnThisMachine(here)) << here;
  }
  for (const char* elsewhere : {"10.0.0.1:1", "example.org:1", "localhost.example.org:1", "0.0.0.0:1", "[::]:1",
                                "dns:///example.org:1", "127.0.0.1.example.org:1"}) {
    EXPECT_FALSE(IsOnThisMachine(elsewhere)) << elsewhere;
  }
  const auto plain = ParseFlags({.flags = BenchFlagSpecs()}, {});
  const auto any = ParseFlags({.flags = BenchFlagSpecs()}, std::vector<std::string>{"--any_address"});
  EXPECT_THAT(std::string(CheckTarget(*plain, "10.0.0.1:1").message()), HasSubstr("--any_address: "));
  EXPECT_TRUE(CheckTarget(*plain, "localhost:1").ok());
  EXPECT_TRUE(CheckTarget(*any, "10.0.0.1:1").ok());
}

}  // namespace
}  // namespace intrawarp::cli::bench
