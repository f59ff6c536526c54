// SPDX-License-Identifier: Apache-2.0
#include "engine/base/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace intrawarp {
namespace {

using ::testing::HasSubstr;

CommandSyntax Syntax() {
  return {.flags = {{.name = "out", .placeholder = "PATH", .help = "where", .required = true},
                    {.name = "metric", .placeholder = "M", .help = "which", .choices = {"ssd", "ngf"}},
                    {.name = "levels", .type = FlagType::kInteger, .placeholder = "N", .help = "", .minimum = 1},
                    {.name = "fill", .type = FlagType::kNumber, .placeholder = "V", .help = "", .maximum = 10},
                    {.name = "inverse", .type = FlagType::kSwitch, .placeholder = "", .help = ""}},
          .positionals = {"PATH"}};
}

absl::StatusOr<ParsedFlags> Parse(const std::vector<std::string>& arguments) { return ParseFlags(Syntax(), arguments); }

TEST(FlagsTest, TakesEveryKindInAnyOrder) {
  const auto flags = Parse({"--levels=3", "a.nii", "--inverse", "--out=b=c.nii", "--fill=-2.5e1", "--metric=ngf"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->Positional(0), "a.nii");
  EXPECT_EQ(flags->String("out"), "b=c.nii");
  EXPECT_EQ(flags->Integer("levels"), 3);
  EXPECT_EQ(flags->Number("fill"), -25);
  EXPECT_EQ(flags->String("metric"), "ngf");
  EXPECT_TRUE(flags->Has("inverse"));
}

TEST(FlagsTest, AbsentFlagsHaveDefaults) {
  const auto flags = Parse({"a.nii", "--out=b"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_FALSE(flags->Has("inverse"));
  EXPECT_EQ(flags->Integer("levels", 7), 7);
  EXPECT_EQ(flags->Number("fill", 1.5), 1.5);
  EXPECT_EQ(flags->String("metric", "ssd"), "ssd");
}

struct WrongCase {
  std::vector<std::string> arguments;
  std::string named;
  std::string cause;
};

TEST(FlagsTest, NamesWhatIsWrong) {
  const std::vector<WrongCase> cases = {
      {{"a", "--out=b", "--nothing=1"}, "--nothing", "unknown option"},
      {{"a", "--out=b", "-out=1"}, "-out", "unknown option"},
      {{"a", "--out=b", "-"}, "-", "unknown option"},
      {{"a", "--out=b", "--"}, "--", "unknown option"},
      {{"a", "--out=b", "--out=b"}, "--out", "more than once"},
      {{"a", "--out=b", "--inverse", "--inverse"}, "--inverse", "more than once"},
      {{"a"}, "--out", "missing"},
      {{"--out=b"}, "PATH", "missing"},
      {{"", "--out=b"}, "PATH", "empty"},
      {{"a", "c", "--out=b"}, "c", "unexpected argument"},
      {{"a", "--out"}, "--out", "needs a value"},
      {{"a", "--out="}, "--out", "needs a value"},
      {{"a", "--out", "b"}, "--out", "needs a value"},
      {{"a", "--out=b", "--inverse=true"}, "--inverse", "takes no value"},
      {{"a", "--out=b", "--levels=x"}, "--levels", "not an integer"},
      {{"a", "--out=b", "--levels=1.5"}, "--levels", "not an integer"},
      {{"a", "--out=b", "--levels=99999999999999999999"}, "--levels", "not an integer"},
      {{"a", "--out=b", "--levels=0"}, "--levels", "at least 1"},
      {{"a", "--out=b", "--fill=nan"}, "--fill", "finite"},
      {{"a", "--out=b", "--fill=inf"}, "--fill", "finite"},
      {{"a", "--out=b", "--fill=1x"}, "--fill", "finite"},
      {{"a", "--out=b", "--fill=10.5"}, "--fill", "at most 10"},
      {{"a", "--out=b", "--metric=SSD"}, "--metric", "ssd, ngf"},
  };
  for (const WrongCase& wrong : cases) {
    const absl::Status status = Parse(wrong.arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.named;
    EXPECT_EQ(std::string(status.message()).rfind(wrong.named + ": ", 0), 0u) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.cause));
  }
}

TEST(FlagsTest, AnArgumentInBracketsMayBeAbsent) {
  const CommandSyntax syntax = {.flags = {}, .positionals = {"PATH", "[LEVEL]"}};
  EXPECT_EQ(ParseFlags(syntax, {"a"})->positional_count(), 1u);
  EXPECT_EQ(ParseFlags(syntax, {"a", "b"})->Positional(1), "b");
  EXPECT_THAT(ParseFlags(syntax, {}).status().message(), HasSubstr("PATH: is missing"));
  EXPECT_THAT(ParseFlags(syntax, {"a", "b", "c"}).status().message(), HasSubstr("unexpected"));
}

TEST(FlagsTest, HelpHasALineForEachFlag) {
  const std::string help = FlagHelp(Syntax());
  EXPECT_THAT(help, HasSubstr("--out=PATH"));
  EXPECT_THAT(help, HasSubstr("(required)"));
  EXPECT_THAT(help, HasSubstr("--inverse "));
  EXPECT_EQ(std::count(help.begin(), help.end(), '\n'), 5);
}

TEST(FlagsTest, AnUnknownOptionNamesTheNearest) {
  const CommandSyntax syntax = {.flags = {{.name = "field_stride", .placeholder = "N", .help = ""},
                                          {.name = "metric", .placeholder = "M", .help = ""},
                                          {.name = "server", .placeholder = "S", .help = ""}}};
  const auto message = [&](const std::string& option) {
    return std::string(ParseFlags(syntax, std::vector<std::string>{option}).status().message());
  };
  EXPECT_EQ(message("--stride=2"), "--stride: unknown option; did you mean --field_stride?");
  EXPECT_EQ(message("--metrik=ssd"), "--metrik: unknown option; did you mean --metric?");
  EXPECT_EQ(message("--sever=a"), "--sever: unknown option; did you mean --server?");
  EXPECT_EQ(message("--threads=2"), "--threads: unknown option");
  EXPECT_EQ(message("-q"), "-q: unknown option");
  EXPECT_EQ(message("--" + std::string(1000, 'x')), "--" + std::string(1000, 'x') + ": unknown option");
}

}  // namespace
}  // namespace intrawarp
