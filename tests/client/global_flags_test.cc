// SPDX-License-Identifier: Apache-2.0
#include "client/cli/global_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace intrawarp::cli {
namespace {

using ::testing::HasSubstr;

class GlobalFlagsTest : public testing::Test {
 protected:
  void WriteConfig(const std::string& text) {
    const std::string path = testing::TempDir() + "/intrawarp_config";
    std::ofstream(path) << text;
    variables_["INTRAWARP_CONFIG"] = path;
  }
  static ParsedFlags Parse(const std::vector<std::string>& arguments) {
    const auto flags = ParseFlags(WithGlobalFlags({}), arguments);
    EXPECT_TRUE(flags.ok()) << flags.status();
    return *flags;
  }
  absl::StatusOr<GlobalFlags> Resolve(const std::vector<std::string>& before = {},
                                      const std::vector<std::string>& after = {}) const {
    return GlobalFlags::Resolve(Parse(before), Parse(after), [this](const char* name) {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    });
  }
  std::string Server(const std::vector<std::string>& before = {}, const std::vector<std::string>& after = {}) const {
    const auto flags = Resolve(before, after);
    EXPECT_TRUE(flags.ok()) << flags.status();
    return flags.ok() ? flags->String("server") : "";
  }

  std::map<std::string, std::string> variables_;
};

TEST_F(GlobalFlagsTest, TheNearestPlaceCounts) {
  EXPECT_EQ(Server(), kDefaultServer);
  WriteConfig("# ours\n\nserver = file:1\ntls_ca=/ca.pem\n");
  EXPECT_EQ(Server(), "file:1");
  variables_["INTRAWARP_SERVER"] = "environment:1";
  EXPECT_EQ(Server(), "environment:1");
  EXPECT_EQ(Server({"--server=before:1"}), "before:1");
  EXPECT_EQ(Server({}, {"--server=after:1"}), "after:1");
  EXPECT_EQ(Resolve()->String("tls_ca"), "/ca.pem");
  variables_["INTRAWARP_TLS_CA"] = "";
  EXPECT_EQ(Resolve()->String("tls_ca"), "") << "an empty variable means none";
}

TEST_F(GlobalFlagsTest, EveryOptionHasAVariable) {
  for (const FlagSpec& spec : GlobalSyntax().flags) {
    variables_.clear();
    const std::string value = spec.name == "server"        ? "a:1"
                              : spec.name == "traceparent" ? "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                                                           : "x";
    variables_[VariableOf(spec.name)] = value;
    const auto flags = Resolve();
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_EQ(flags->String(spec.name), value);
  }
}

TEST_F(GlobalFlagsTest, AFileThatIsWrongIsNamed) {
  for (const auto& [text, cause] :
       std::map<std::string, std::string>{{"server\n", "line 1: must be NAME = VALUE"},
                                          {"\nsevrer = a:1\n", "line 2: sevrer: unknown option; did you mean server?"},
                                          {"server = a:1\nserver = b:1\n", "line 2: given more than once"}}) {
    WriteConfig(text);
    EXPECT_THAT(std::string(Resolve().status().message()), HasSubstr(cause));
  }
  variables_["INTRAWARP_CONFIG"] = "/no/such/file";
  EXPECT_THAT(std::string(Resolve().status().message()), HasSubstr("/no/such/file"));
  variables_["INTRAWARP_CONFIG"] = "";
  EXPECT_EQ(Server(), kDefaultServer);
  variables_ = {{"HOME", "/no/such/home"}};
  EXPECT_EQ(Server(), kDefaultServer) << "the default file need not exist";
}

TEST_F(GlobalFlagsTest, WrongServersAndDoubledOptionsAreRefused) {
  for (const char* server :
       {"localhost", "localhost:", ":1", "::1:0", "1:2:3", "http://localhost:1", "a:0", "a:99999"}) {
    EXPECT_THAT(std::string(Resolve({std::string("--server=") + server}).status().message()), HasSubstr("--server"))
        << server;
  }
  for (const char* server : {"localhost:1", "[::1]:50051", "unix:/run/socket", "dns:///name:1", "a:1,b:2"}) {
    EXPECT_EQ(Server({std::string("--server=") + server}), server);
  }
  EXPECT_THAT(std::string(Resolve({"--server=a:1"}, {"--server=b:1"}).status().message()),
              HasSubstr("--server: given more than once"));
  variables_["INTRAWARP_TRACEPARENT"] = "nonsense";
  EXPECT_THAT(std::string(Resolve().status().message()), HasSubstr("--traceparent"));
}

// dicom send has a --tls_ca of its own.
TEST_F(GlobalFlagsTest, ACommandsOwnOptionsStay) {
  const CommandSyntax own = {.flags = {{.name = "tls_ca", .placeholder = "OWN", .help = ""}}};
  const CommandSyntax all = WithGlobalFlags(own);
  EXPECT_EQ(all.flags.size(), GlobalSyntax().flags.size());
  EXPECT_EQ(all.flags[0].placeholder, "OWN");
}

}  // namespace
}  // namespace intrawarp::cli
