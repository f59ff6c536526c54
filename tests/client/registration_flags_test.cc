// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace intrawarp::cli {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<RegistrationFlags> Parse(const std::vector<std::string>& arguments) {
  const auto flags = ParseFlags({.flags = RegistrationFlagSpecs(/*method_required=*/false)}, arguments);
  EXPECT_TRUE(flags.ok()) << flags.status();
  return ParseRegistrationFlags(*flags);
}

// "affine/ssd ffd/" for the stages.
std::string Stages(const std::vector<std::string>& arguments) {
  const auto parsed = Parse(arguments);
  if (!parsed.ok()) return parsed.status().ToString();
  std::string text;
  for (const v1::Stage& stage : parsed->options.stages()) {
    text += v1::Method_Name(stage.method()).substr(7) + "/" + v1::Metric_Name(stage.metric()).substr(7) + " ";
  }
  return text;
}

TEST(RegistrationFlagsTest, MetricOfTheStages) {
  EXPECT_EQ(Stages({}), "AFFINE/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=rigid", "--metric=ngf"}), "RIGID/NGF ");
  EXPECT_EQ(Stages({"--method=rigid,affine"}), "RIGID/SSD AFFINE/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=rigid,affine", "--metric=ssd"}), "RIGID/SSD AFFINE/SSD ");
  EXPECT_EQ(Stages({"--method=rigid,affine", "--metric=ngf"}), "RIGID/NGF AFFINE/NGF ");
  EXPECT_EQ(Stages({"--method=affine,ffd"}), "AFFINE/NGF FFD/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=affine,ffd", "--metric=ssd"}), "AFFINE/SSD FFD/SSD ");
  EXPECT_EQ(Stages({"--method=affine,log-demons", "--metric=lncc"}), "AFFINE/NGF LOG_DEMONS/LNCC ");
  EXPECT_EQ(Stages({"--method=affine,log-demons"}), "AFFINE/SSD LOG_DEMONS/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=rigid,log-demons", "--match_intensities"}), "RIGID/NGF LOG_DEMONS/UNSPECIFIED ");
}

TEST(RegistrationFlagsTest, OptionsGovernTheLastStage) {
  const auto parsed = Parse({"--method=rigid,affine", "--levels=3", "--iterations=20"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.stages(0).levels(), 0);
  EXPECT_EQ(parsed->options.stages(0).iterations(), 0);
  EXPECT_EQ(parsed->options.stages(1).levels(), 3);
  EXPECT_EQ(parsed->options.stages(1).iterations(), 20);
  EXPECT_EQ(parsed->method, "rigid,affine");
}

TEST(RegistrationFlagsTest, OptionsOfLogDemons) {
  const auto parsed = Parse({"--method=affine,log-demons", "--fluid_sigma=2.5", "--diffusion_sigma=0", "--max_step=1.5",
                             "--velocity_update=bch", "--symmetric", "--match_intensities"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const v1::Stage& stage = parsed->options.stages(1);
  EXPECT_EQ(stage.fluid_sigma(), 2.5);
  EXPECT_TRUE(stage.has_diffusion_sigma());
  EXPECT_EQ(stage.diffusion_sigma(), 0);
  EXPECT_EQ(stage.max_step(), 1.5);
  EXPECT_EQ(stage.velocity_update(), v1::VELOCITY_UPDATE_BCH);
  EXPECT_TRUE(stage.symmetric());
  EXPECT_TRUE(stage.match_intensities());
  const v1::Stage plain = Parse({"--method=log-demons"})->options.stages(0);
  EXPECT_FALSE(plain.has_fluid_sigma() || plain.has_diffusion_sigma() || plain.has_max_step());
  EXPECT_EQ(plain.velocity_update(), v1::VELOCITY_UPDATE_UNSPECIFIED);
  EXPECT_FALSE(plain.symmetric() || plain.match_intensities());
  EXPECT_EQ(Parse({"--method=log-demons", "--velocity_update=add"})->options.stages(0).velocity_update(),
            v1::VELOCITY_UPDATE_ADD);
}

TEST(RegistrationFlagsTest, BudgetIsADuration) {
  const auto parsed = Parse({"--budget_ms=1234", "--best_effort"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.budget().seconds(), 1);
  EXPECT_EQ(parsed->options.budget().nanos(), 234000000);
  EXPECT_TRUE(parsed->options.best_effort());
  EXPECT_FALSE(Parse({})->options.has_budget());
}

TEST(RegistrationFlagsTest, MasksAndStartAreKeptForLater) {
  const auto parsed = Parse({"--fixed_mask=volumes/a", "--moving_mask=b.nii", "--initial=m.txt"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->fixed_mask, "volumes/a");
  EXPECT_EQ(parsed->moving_mask, "b.nii");
  EXPECT_EQ(parsed->initial, "m.txt");
  EXPECT_TRUE(parsed->options.fixed_mask().empty());
}

TEST(RegistrationFlagsTest, AnOptionThatNoStageUsesIsAnError) {
  EXPECT_THAT(std::string(Parse({"--spacing_vox=5"}).status().message()), HasSubstr("--spacing_vox"));
  EXPECT_THAT(std::string(Parse({"--method=ffd,affine", "--bending_weight=1"}).status().message()),
              HasSubstr("--bending_weight"));
  EXPECT_THAT(std::string(Parse({"--best_effort"}).status().message()), HasSubstr("--best_effort"));
  for (const char* flag : {"--fluid_sigma=1", "--diffusion_sigma=1", "--max_step=1", "--velocity_update=add",
                           "--symmetric", "--match_intensities"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find('='));
    for (const char* method : {"--method=affine", "--method=ffd"}) {
      EXPECT_THAT(std::string(Parse({method, flag}).status().message()), HasSubstr(name)) << flag;
    }
  }
  EXPECT_THAT(std::string(Parse({"--method=log-demons", "--spacing_vox=5"}).status().message()),
              HasSubstr("--spacing_vox"));
  EXPECT_TRUE(Parse({"--method=affine,ffd", "--spacing_vox=5", "--bending_weight=0.01"}).ok());
}

TEST(RegistrationFlagsTest, UnknownMethodsAreErrors) {
  for (const char* method : {"--method=bspline", "--method=affine,", "--method=,affine", "--method=affine;ffd"}) {
    EXPECT_THAT(std::string(Parse({method}).status().message()), HasSubstr("--method: ")) << method;
  }
}

}  // namespace
}  // namespace intrawarp::cli
