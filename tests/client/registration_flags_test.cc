// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_flags.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/cli/registration_cost.h"
#include "client/cli/report_json.h"

namespace intrawarp::cli {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<RegistrationFlags> Parse(const std::vector<std::string>& arguments) {
  const auto flags = ParseFlags({.flags = RegistrationFlagSpecs()}, arguments);
  EXPECT_TRUE(flags.ok()) << flags.status();
  return ParseRegistrationFlags(*flags);
}

v1::Metric MetricOf(const v1::Stage& stage) {
  const auto* method = v1::Stage::descriptor()->FindFieldByNumber(stage.method_case());
  const google::protobuf::Message& options = stage.GetReflection()->GetMessage(stage, method);
  const auto* metric = options.GetDescriptor()->FindFieldByName("metric");
  if (metric == nullptr) return v1::METRIC_UNSPECIFIED;
  return static_cast<v1::Metric>(options.GetReflection()->GetEnumValue(options, metric));
}

TEST(RegistrationFlagsTest, TheHelpSaysWhatAutoMayRun) {
  const std::vector<FlagSpec> flags = RegistrationFlagSpecs();
  ASSERT_EQ(flags.front().name, "method");
  EXPECT_THAT(flags.front().help, HasSubstr("auto (default): affine or search, then ffd"));
}

// CPU seconds that auto took on phantoms (docs/use/report.md): with inverted intensities, where its first deformation
// is the answer, and with a search.
TEST(RegistrationCostTest, TheModelHoldsForWhatWasMeasured) {
  struct Measured {
    Int3 size;
    double least, most;
  };
  for (const Measured& measured :
       {Measured{{64, 64, 48}, 2.1, 11}, Measured{{96, 96, 72}, 4.3, 20.7}, Measured{{160, 160, 120}, 15.2, 69.9}}) {
    const CpuSeconds model = AutoCpuSeconds(Geometry{.size = measured.size});
    EXPECT_NEAR(model.least, measured.least, 0.2 * measured.least) << measured.size.x;
    EXPECT_NEAR(model.most, measured.most, 0.2 * measured.most) << measured.size.x;
  }
}

TEST(RegistrationCostTest, TheLineIsForServersWithoutAGpu) {
  v1::ServerInfo server;
  server.add_devices()->set_name("cpu");
  EXPECT_THAT(CostLine(server, Geometry{.size = {64, 64, 48}}), HasSubstr(", 64x64x48: some 2 to 10 s of CPU time"));
  EXPECT_THAT(CostLine(server, Geometry{.size = {96, 96, 1}}), HasSubstr(", 96x96x1: some 1 s of CPU time"));
  server.mutable_devices(0)->set_name("cuda:0");
  EXPECT_EQ(CostLine(server, Geometry{.size = {64, 64, 48}}), "");
}

// "affine/SSD ffd/UNSPECIFIED " for the stages.
std::string Stages(const std::vector<std::string>& arguments) {
  const auto parsed = Parse(arguments);
  if (!parsed.ok()) return parsed.status().ToString();
  std::string text;
  for (const v1::Stage& stage : parsed->options.stages()) {
    text += MethodOf(stage) + "/" + v1::Metric_Name(MetricOf(stage)).substr(7) + " ";
  }
  return text;
}

TEST(RegistrationFlagsTest, MetricOfTheStages) {
  EXPECT_EQ(Stages({"--method=affine"}), "affine/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=rigid", "--metric=ngf"}), "rigid/NGF ");
  EXPECT_EQ(Stages({"--method=rigid,affine"}), "rigid/SSD affine/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=rigid,affine", "--metric=ssd"}), "rigid/SSD affine/SSD ");
  EXPECT_EQ(Stages({"--method=rigid,affine", "--metric=ngf"}), "rigid/NGF affine/NGF ");
  EXPECT_EQ(Stages({"--method=affine,ffd"}), "affine/NGF ffd/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=affine,ffd", "--metric=ssd"}), "affine/SSD ffd/SSD ");
  EXPECT_EQ(Stages({"--method=affine,log-demons", "--metric=lncc"}), "affine/NGF log-demons/LNCC ");
  EXPECT_EQ(Stages({"--method=affine,log-demons"}), "affine/SSD log-demons/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=rigid,log-demons", "--match_intensities"}), "rigid/NGF log-demons/UNSPECIFIED ");
  EXPECT_EQ(Stages({"--method=affine,search,ffd", "--metric=lncc"}), "affine/NGF search/UNSPECIFIED ffd/LNCC ");
  EXPECT_EQ(Stages({"--method=search,ffd", "--metric=mind"}), "search/UNSPECIFIED ffd/MIND ");
}

TEST(RegistrationFlagsTest, ASearchHasItsDistances) {
  const auto parsed = Parse({"--method=search", "--node_mm=8", "--range_mm=40.5"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.stages(0).search().node_mm(), 8);
  EXPECT_EQ(parsed->options.stages(0).search().range_mm(), 40.5);
  EXPECT_THAT(Parse({"--method=search,ffd", "--node_mm=8"}).status().message(),
              HasSubstr("--node_mm: only search as the last stage uses it"));
  EXPECT_THAT(Parse({"--method=search", "--metric=nmi"}).status().message(), HasSubstr("--metric: only"));
}

// Without stages the server chooses; the metric and the rest of a stage are its choice then.
TEST(RegistrationFlagsTest, AutoIsTheDefault) {
  for (const auto& arguments : {std::vector<std::string>{}, {"--method=auto"}, {"--budget_ms=5", "--initial=m.txt"}}) {
    const auto parsed = Parse(arguments);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->method, "auto");
    EXPECT_EQ(parsed->options.stages_size(), 0);
    EXPECT_TRUE(EndsIn(v1::Stage::kFfd, parsed->options));
    EXPECT_FALSE(EndsIn(v1::Stage::kLogDemons, parsed->options));
  }
  EXPECT_TRUE(EndsIn(v1::Stage::kAffine, Parse({"--method=affine"})->options));
  EXPECT_EQ(Parse({"--metric=ssd"}).status().message(),
            "--metric: only a named --method (rigid or affine or ffd or log-demons) uses it");
  EXPECT_THAT(std::string(Parse({"--method=auto", "--levels=2"}).status().message()), HasSubstr("--levels"));
}

TEST(RegistrationFlagsTest, DeformationsAreKeptOnDemand) {
  EXPECT_FALSE(Parse({"--method=affine,ffd"})->options.keep_deformation());
  for (const char* method : {"--method=affine,ffd", "--method=auto"}) {
    EXPECT_TRUE(Parse({method, "--keep_deformation"})->options.keep_deformation());
  }
}

TEST(RegistrationFlagsTest, MissingTissueIsLookedForOnDemand) {
  EXPECT_FALSE(Parse({"--method=affine,ffd"})->options.find_missing_tissue());
  for (const char* method : {"--method=affine,log-demons", "--method=auto"}) {
    EXPECT_TRUE(Parse({method, "--find_missing_tissue"})->options.find_missing_tissue());
  }
}

TEST(RegistrationFlagsTest, LandmarksAreFilesOfEveryMethod) {
  for (const char* method : {"--method=affine,log-demons", "--method=auto", "--method=search"}) {
    const auto parsed = Parse({method, "--landmarks=pairs.csv", "--unmoved_points=still.csv"});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->landmarks, "pairs.csv");
    EXPECT_EQ(parsed->unmoved_points, "still.csv");
  }
}

TEST(RegistrationFlagsTest, OptionsGovernTheLastStage) {
  const auto parsed = Parse({"--method=rigid,affine", "--levels=3", "--iterations=20"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->options.stages(0).rigid().has_levels());
  EXPECT_FALSE(parsed->options.stages(0).rigid().has_iterations());
  EXPECT_EQ(parsed->options.stages(1).affine().levels(), 3);
  EXPECT_EQ(parsed->options.stages(1).affine().iterations(), 20);
  EXPECT_EQ(parsed->method, "rigid,affine");
}

TEST(RegistrationFlagsTest, OptionsOfLogDemons) {
  const auto parsed = Parse({"--method=affine,log-demons", "--fluid_sigma=2.5", "--diffusion_sigma=0", "--max_step=1.5",
                             "--velocity_update=bch", "--symmetric", "--match_intensities", "--velocity_grid=half"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const v1::LogDemonsStage& stage = parsed->options.stages(1).log_demons();
  EXPECT_EQ(stage.fluid_sigma(), 2.5);
  EXPECT_TRUE(stage.has_diffusion_sigma());
  EXPECT_EQ(stage.diffusion_sigma(), 0);
  EXPECT_EQ(stage.max_step(), 1.5);
  EXPECT_EQ(stage.velocity_update(), v1::VELOCITY_UPDATE_BCH);
  EXPECT_TRUE(stage.symmetric());
  EXPECT_TRUE(stage.match_intensities());
  EXPECT_EQ(stage.velocity_grid(), v1::VELOCITY_GRID_HALF);
  const v1::LogDemonsStage plain = Parse({"--method=log-demons"})->options.stages(0).log_demons();
  EXPECT_FALSE(plain.has_fluid_sigma() || plain.has_diffusion_sigma() || plain.has_max_step());
  EXPECT_EQ(plain.velocity_update(), v1::VELOCITY_UPDATE_UNSPECIFIED);
  EXPECT_EQ(plain.velocity_grid(), v1::VELOCITY_GRID_UNSPECIFIED);
  EXPECT_FALSE(plain.symmetric() || plain.has_match_intensities());
  const v1::LogDemonsStage as_is =
      Parse({"--method=log-demons", "--no_match_intensities"})->options.stages(0).log_demons();
  EXPECT_TRUE(as_is.has_match_intensities());
  EXPECT_FALSE(as_is.match_intensities());
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--method=log-demons", "--match_intensities"}, {"--method=ffd"}, {"--method=auto"}}) {
    std::vector<std::string> arguments = wrong;
    arguments.push_back("--no_match_intensities");
    EXPECT_THAT(std::string(Parse(arguments).status().message()), HasSubstr("--no_match_intensities"));
  }
  EXPECT_EQ(Parse({"--method=log-demons", "--velocity_update=add"})->options.stages(0).log_demons().velocity_update(),
            v1::VELOCITY_UPDATE_ADD);
}

TEST(RegistrationFlagsTest, OptionsOfFfd) {
  const auto parsed =
      Parse({"--method=ffd", "--metric=lncc", "--spacing_vox=4", "--bending_weight=0", "--optimizer=cg"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const v1::FfdStage& stage = parsed->options.stages(0).ffd();
  EXPECT_EQ(stage.metric(), v1::METRIC_LNCC);
  EXPECT_EQ(stage.spacing_vox(), 4);
  EXPECT_TRUE(stage.has_bending_weight());
  EXPECT_FALSE(stage.has_elasticity_weight());
  EXPECT_EQ(stage.optimizer(), v1::OPTIMIZER_CONJUGATE_GRADIENT);
  EXPECT_EQ(Parse({"--method=ffd", "--optimizer=lbfgs"})->options.stages(0).ffd().optimizer(), v1::OPTIMIZER_LBFGS);
}

// So a new option of a stage is a flag as soon as the table of flags has it.
TEST(RegistrationFlagsTest, EveryOptionOfAStageIsAFlag) {
  std::vector<std::string> flags;
  for (const FlagSpec& spec : RegistrationFlagSpecs()) flags.push_back(spec.name);
  const google::protobuf::OneofDescriptor& methods = *v1::Stage::descriptor()->FindOneofByName("method");
  for (int i = 0; i < methods.field_count(); ++i) {
    const google::protobuf::Descriptor& options = *methods.field(i)->message_type();
    for (int k = 0; k < options.field_count(); ++k) {
      EXPECT_THAT(flags, testing::Contains(options.field(k)->name())) << options.full_name();
    }
  }
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
  const auto parsed = Parse({"--fixed_mask=volumes/a", "--moving_mask=b.nii", "--fixed_weight=volumes/c",
                             "--moving_weight=d.nii", "--initial=m.txt"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->fixed_mask, "volumes/a");
  EXPECT_EQ(parsed->moving_mask, "b.nii");
  EXPECT_EQ(parsed->fixed_weight, "volumes/c");
  EXPECT_EQ(parsed->moving_weight, "d.nii");
  EXPECT_EQ(parsed->initial, "m.txt");
  EXPECT_TRUE(parsed->options.fixed_mask().empty());
  EXPECT_TRUE(parsed->options.fixed_weight().empty());
}

TEST(RegistrationFlagsTest, AnOptionThatNoStageUsesIsAnError) {
  EXPECT_EQ(Parse({"--method=affine", "--spacing_vox=5"}).status().message(),
            "--spacing_vox: only ffd as the last stage uses it");
  EXPECT_EQ(Parse({"--spacing_vox=5"}).status().message(), "--spacing_vox: only a named --method (ffd) uses it");
  EXPECT_THAT(std::string(Parse({"--method=ffd,affine", "--bending_weight=1"}).status().message()),
              HasSubstr("--bending_weight"));
  EXPECT_THAT(std::string(Parse({"--best_effort"}).status().message()), HasSubstr("--best_effort"));
  for (const char* flag : {"--fluid_sigma=1", "--diffusion_sigma=1", "--max_step=1", "--velocity_update=add",
                           "--symmetric", "--match_intensities", "--velocity_grid=full"}) {
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
  for (const char* method :
       {"--method=bspline", "--method=affine,", "--method=,affine", "--method=affine;ffd", "--method=auto,ffd"}) {
    EXPECT_THAT(std::string(Parse({method}).status().message()), HasSubstr("--method: ")) << method;
  }
}

}  // namespace
}  // namespace intrawarp::cli
