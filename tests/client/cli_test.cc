// SPDX-License-Identifier: Apache-2.0
// The command line as a process beside a server: the server's commands, help, exit statuses and error lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/geometry/vec.h"
#include "io/format/nifti.h"
#include "tests/client/cli_fixture.h"
#include "tests/client/process.h"
#include "tests/support/server_process.h"

namespace intrawarp::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST_F(CliTest, HealthAndServerInfo) {
  EXPECT_EQ(Succeed({"health"}), "SERVING");
  const std::string info = Succeed({"server", "info"});
  EXPECT_THAT(info, HasSubstr("version "));
  EXPECT_THAT(info, HasSubstr("device cpu"));
  EXPECT_THAT(info, HasSubstr("methods: rigid affine"));
}

TEST_F(CliTest, TheLogLevelChangesWhileTheServerRuns) {
  const std::string start = "server info\nrpc info\nregistration info\nsparse info";
  EXPECT_EQ(Succeed({"server", "log_level"}), start);
  EXPECT_THAT(Succeed({"server", "log_level", "debug", "--room=rpc", "--for=10m"}),
              MatchesRegex("server info\nrpc debug, for (599|600) s\nregistration info\nsparse info"));
  EXPECT_EQ(Succeed({"server", "log_level", "info"}), start);
  Wrong({"server", "log_level", "loud"}, "LEVEL: must be debug");
  Wrong({"server", "log_level", "--for=10m"}, "LEVEL: is missing");
  Wrong({"server", "log_level", "debug", "--for=10"}, "--for");
  Wrong({"server", "log_level", "debug", "--for=169h"}, "--for");
  Wrong({"server", "log_level", "debug", "--room=cellar"}, "--room");
}

TEST_F(CliTest, ATraceIsSentOrRefused) {
  const auto health = [](const std::string& trace) {
    return RunProcess({INTRAWARP_CLI, "--server=" + world->grpc, "--traceparent=" + trace, "health"});
  };
  EXPECT_EQ(health("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").exit_status, 0);
  const ProcessResult refused = health("00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01");
  EXPECT_EQ(refused.exit_status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--traceparent"));
}

TEST_F(CliTest, TheServersReportHasItsNumbersAndNoNames) {
  Succeed({"volume", "put", Pair("fixed.nii.gz"), "--id=somebody"});
  const std::string out = Out("server.json");
  EXPECT_EQ(Succeed({"server", "report", "--out=" + out}), "");
  const nlohmann::json report = ReadJson(out);
  EXPECT_EQ(report["serving"], true);
  EXPECT_EQ(report["server"]["devices"][0]["name"], "cpu");
  EXPECT_EQ(report["server"]["usage"]["volumes"], "1");
  EXPECT_EQ(report["server"]["limits"]["max_uploads"], "64");
  EXPECT_THAT(FileContents(out), Not(HasSubstr("somebody")));
  Succeed({"volume", "delete", "volumes/somebody"});
  Wrong({"server", "report"}, "--out: is missing");
}

TEST_F(CliTest, TheSelfTestTriesEveryMethod) {
  const std::string report = world->folder / "selftest.json";
  const ProcessResult run = Run({"selftest", "--report=" + report});
  EXPECT_EQ(run.exit_status, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("passed: "));
  const nlohmann::json json = ReadJson(report);
  EXPECT_EQ(json["passed"], true);
  std::vector<std::string> methods;
  for (const nlohmann::json& test : json["cases"]) {
    methods.push_back(test["method"]);
    EXPECT_EQ(test["device"], "cpu");
    EXPECT_GT(test["field_mean_mm"], 0);
    EXPECT_LE(test["field_mean_mm"], test["limit_mm"]);
  }
  EXPECT_THAT(methods, ElementsAre("rigid", "affine", "ffd", "log-demons", "search", "auto"));
  // The command leaves the server as it was.
  EXPECT_THAT(Run({"volume", "list"}).out, Not(HasSubstr("volumes/")));
  EXPECT_THAT(Run({"transform", "list"}).out, Not(HasSubstr("transforms/")));
}

TEST(CliSelfTest, FailsForAServerThatRegistersNothing) {
  const ServerProcess server(INTRAWARPD, {"--max_volume_bytes=1000"});
  const ProcessResult run = RunProcess({INTRAWARP_CLI, "--server=" + server.grpc(), "selftest"});
  EXPECT_EQ(run.exit_status, 1);
  EXPECT_THAT(run.err, HasSubstr("the self-test failed: rigid, affine, ffd, log-demons, search, auto"));
}

TEST_F(CliTest, AWrongCommandLineIsExitStatusTwo) {
  Wrong({}, "no command");
  Wrong({"volume"}, "volume");
  Wrong({"volume", "frob"}, "volume frob");
  Wrong({"volume", "put"}, "PATH");
  Wrong({"volume", "put", "a.nii", "b.nii"}, "b.nii");
  Wrong({"volume", "get", "volumes/a"}, "--out");
  Wrong({"volume", "get", "volumes/a", "--out=a.png"}, "--out");
  Wrong(Register({"--metric=ssd"}), "--metric");
  Wrong(Register({"--method=affine", "--method=affine"}), "--method");
  Wrong(Register({"--method=elastic"}), "--method");
  Wrong(Register({"--method=affine", "--metric=foo"}), "--metric");
  Wrong(Register({"--method=affine", "--levels=0"}), "--levels");
  Wrong(Register({"--method=affine", "--levels=two"}), "--levels");
  Wrong(Register({"--method=affine", "--spacing_vox=5"}), "--spacing_vox");
  Wrong(Register({"--method=affine", "--best_effort"}), "--best_effort");
  Wrong(Register({"--method=affine", "--field=a.png"}), "--field");
  Wrong(Register({"--method=affine", "--montage=a.jpg"}), "--montage");
  Wrong(Register({"--method=affine", "--error_map=a.csv"}), "--error_map");
  Wrong(Register({"--method=affine", "--error_at=a.csv"}), "--error_at");
  Wrong({"warp", "--transform=t", "--moving=m", "--like=l", "--out=o.nii", "--interpolation=sinc"}, "--interpolation");
  Wrong({"phantom", "--out=x", "--size=1x2"}, "--size");
  Wrong(Register({"--method=affine", "--stride=2"}), "--stride: unknown option; did you mean --field_stride?");
  Wrong(Register({"--method=affine", "--montage_at=1,2,3"}), "--montage_at: only --montage");
  Wrong(Register({"--method=affine", "--montage=" + Out("m.png"), "--montage_at=1,2"}), "--montage_at: must be X,Y,Z");
  Wrong(Register({"--detach", "--require_ok"}), "--require_ok");
  Wrong(Register({"--assume_orientation=up"}), "--assume_orientation");
  Wrong({"regsiter"}, "regsiter: unknown command; did you mean register?");
  Wrong({"volume", "list", "--server=" + world->grpc}, "--server: given more than once");
  const ProcessResult no_port = RunProcess({INTRAWARP_CLI, "--server=localhost", "volume", "list"});
  EXPECT_EQ(no_port.exit_status, 2);
  EXPECT_THAT(no_port.err, HasSubstr("HOST:PORT"));
}

TEST_F(CliTest, AServerIsNamedInAnyPlace) {
  const ProcessResult after = RunProcess({INTRAWARP_CLI, "health", "--server=" + world->grpc});
  EXPECT_EQ(after.exit_status, 0) << after.err;
  EXPECT_EQ(after.out, "SERVING\n");
  std::ofstream(Out("config")) << "# a comment\nserver = " << world->grpc << "\n";
  const ProcessResult config =
      RunProcess({"/usr/bin/env", "INTRAWARP_CONFIG=" + Out("config"), INTRAWARP_CLI, "health"});
  EXPECT_EQ(config.out, "SERVING\n") << config.err;
  const ProcessResult variable = RunProcess(
      {"/usr/bin/env", "INTRAWARP_CONFIG=" + Out("config"), "INTRAWARP_SERVER=127.0.0.1:1", INTRAWARP_CLI, "health"});
  EXPECT_EQ(variable.exit_status, 1);
  EXPECT_THAT(variable.err, HasSubstr("no server listens there (127.0.0.1:1)"));
  std::ofstream(Out("config")) << "sevrer = x\n";
  const ProcessResult wrong =
      RunProcess({"/usr/bin/env", "INTRAWARP_CONFIG=" + Out("config"), INTRAWARP_CLI, "health"});
  EXPECT_EQ(wrong.exit_status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("line 1: sevrer: unknown option; did you mean server?"));
  // A command without a server needs no file.
  EXPECT_EQ(RunProcess({"/usr/bin/env", "INTRAWARP_CONFIG=/none", INTRAWARP_CLI, "phantom", "--help"}).exit_status, 0);
}

TEST_F(CliTest, EveryOutputIsTriedAndEachFailureTold) {
  const ProcessResult result = Run(Register({"--method=affine", "--field=/dev/full", "--report=/dev/full",
                                             "--warped=" + Out("tried.nii.gz"), "--montage=" + Out("tried.png")}));
  // The suffix of /dev/full is refused before the work begins.
  EXPECT_EQ(result.exit_status, 2);
  const std::string full = Out("full.nii");
  std::filesystem::create_symlink("/dev/full", full);
  const ProcessResult tried = Run(Register({"--method=affine", "--field=" + full, "--report=/dev/full",
                                            "--warped=" + Out("tried.nii.gz"), "--montage=" + Out("tried.png")}));
  EXPECT_EQ(tried.exit_status, 1);
  EXPECT_THAT(tried.out, testing::StartsWith("transforms/"));
  const std::string err = WithoutNotes(tried.err);
  EXPECT_THAT(err, HasSubstr("intrawarp: RESOURCE_EXHAUSTED: --report: "));
  EXPECT_THAT(err, HasSubstr("intrawarp: RESOURCE_EXHAUSTED: --field: "));
  EXPECT_THAT(err, HasSubstr(tried.out.substr(0, tried.out.size() - 1) + " was made"));
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 2) << err;
  EXPECT_TRUE(Value(io::ReadNifti(Out("tried.nii.gz"))).geometry.voxels() > 0);
  EXPECT_EQ(FileContents(Out("tried.png")).substr(1, 3), "PNG");
}

TEST_F(CliTest, ListsAndShowsAreJson) {
  Succeed({"volume", "put", Pair("mask.nii.gz"), "--id=j"});
  const auto list = nlohmann::json::parse(Succeed({"volume", "list", "--json"}));
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["name"], "volumes/j");
  EXPECT_EQ(list[0]["pixel_type"], "uint8");
  EXPECT_EQ(nlohmann::json::parse(Succeed({"volume", "show", "volumes/j", "--json"})), list[0]);
  Succeed({"volume", "delete", "volumes/j"});
  const auto info = nlohmann::json::parse(Succeed({"server", "info", "--json"}));
  EXPECT_EQ(info["devices"][0]["name"], "cpu");
  for (const char* kind : {"matrix", "operation", "transform"}) {
    EXPECT_EQ(Succeed({kind, "list", "--json"}), "[]") << kind;
  }
  EXPECT_EQ(Succeed({"pacs", "remotes", "--json"}), "[]");
}

TEST_F(CliTest, HelpIsForEachCommand) {
  EXPECT_THAT(Succeed({"--help"}), HasSubstr("transform delete"));
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{{"volume", "put"},
                                                                                       {"register"},
                                                                                       {"navigate"},
                                                                                       {"transform", "get"},
                                                                                       {"warp"},
                                                                                       {"points"},
                                                                                       {"phantom"},
                                                                                       {"matrix", "put"},
                                                                                       {"multiply"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    EXPECT_THAT(Succeed(arguments), HasSubstr(command.back())) << command.back();
  }
  EXPECT_THAT(RunProcess({INTRAWARP_CLI, "register", "--help"}).out, HasSubstr("--fixed=X"));
  for (const std::vector<std::string>& same : std::vector<std::vector<std::string>>{
           {"register", "-h"}, {"help", "register"}, {"register", "--fixed=x", "-h"}}) {
    std::vector<std::string> arguments = same;
    arguments.insert(arguments.begin(), INTRAWARP_CLI);
    EXPECT_EQ(RunProcess(arguments).out, RunProcess({INTRAWARP_CLI, "register", "--help"}).out);
  }
  for (const char* general : {"-h", "help"}) {
    EXPECT_EQ(RunProcess({INTRAWARP_CLI, general}).out, RunProcess({INTRAWARP_CLI, "--help"}).out);
  }
  EXPECT_THAT(RunProcess({INTRAWARP_CLI, "--version"}).out, MatchesRegex("intrawarp [0-9.]+ [^\n]+\n"));
}

TEST(CliWithoutServerTest, IsUnavailable) {
  const ProcessResult result = RunProcess({INTRAWARP_CLI, "--server=127.0.0.1:1", "volume", "list"});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.err,
            "intrawarp: UNAVAILABLE: cannot connect: connection refused: no server listens there "
            "(127.0.0.1:1)\n");
}

TEST(CliPhantomTest, EqualOptionsGiveEqualFiles) {
  TemporaryFolder a, b, c;
  const auto make = [](const TemporaryFolder& folder, const std::string& seed) {
    return RunProcess({INTRAWARP_CLI, "phantom", "--out=" + folder.path(), "--size=24x24x16", "--spacing=12,12,15",
                       "--seed=" + seed, "--amplitude_mm=20"})
        .exit_status;
  };
  ASSERT_EQ(make(a, "1"), 0);
  ASSERT_EQ(make(b, "1"), 0);
  ASSERT_EQ(make(c, "2"), 0);
  for (const char* name : {"fixed.nii.gz", "moving.nii.gz", "mask.nii.gz", "field.nii.gz", "landmarks_fixed.csv",
                           "landmarks_moving.csv"}) {
    EXPECT_FALSE(FileContents(a / name).empty()) << name;
    EXPECT_EQ(FileContents(a / name), FileContents(b / name)) << name;
  }
  EXPECT_NE(FileContents(a / "fixed.nii.gz"), FileContents(c / "fixed.nii.gz"));
  // A smaller one shows the same body.
  TemporaryFolder small;
  for (const char* size : {"64x64x48", "48x48x1", "16x16x16"}) {
    const ProcessResult made =
        RunProcess({INTRAWARP_CLI, "phantom", "--out=" + small.path(), std::string("--size=") + size});
    EXPECT_EQ(made.exit_status, 0) << size << made.err;
    const Geometry g = Value(io::ReadNifti(small / "fixed.nii.gz")).geometry;
    EXPECT_NEAR(g.size.x * g.spacing.x, 320, 1e-3) << size;
    if (g.size.z > 1) {
      EXPECT_NEAR(g.size.z * g.spacing.z, 240, 1e-3) << size;
    }
  }
  EXPECT_EQ(Value(io::ReadNifti(a / "fixed.nii.gz")).geometry.size, (Int3{24, 24, 16}));
}

}  // namespace
}  // namespace intrawarp::client
