// SPDX-License-Identifier: Apache-2.0
// The command line with --server naming three servers, all as processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/client/process.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

namespace intrawarp::client {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CliSeveralServersTest : public testing::Test {
 protected:
  struct Server {
    std::unique_ptr<ServerProcess> process;
    std::string address;
  };

  void SetUp() override {
    for (Server& server : servers_) {
      server.process = std::make_unique<ServerProcess>(INTRAWARPD);
      server.address = server.process->grpc();
      ASSERT_FALSE(server.address.empty());
    }
  }
  void TearDown() override {
    for (Server& server : servers_) {
      if (server.process != nullptr) server.process->Stop();
    }
  }

  std::string AllServers() const {
    return "--server=" +
           absl::StrJoin(servers_, ",", [](std::string* out, const Server& server) { *out += server.address; });
  }
  std::vector<std::string> Arguments(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {INTRAWARP_CLI, AllServers()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  ProcessResult Run(const std::vector<std::string>& arguments) const { return RunProcess(Arguments(arguments)); }
  std::string Succeed(const std::vector<std::string>& arguments) const {
    const ProcessResult result = Run(arguments);
    EXPECT_EQ(result.exit_status, 0) << arguments[0] << ": " << result.err;
    return result.out.substr(0, result.out.find_last_not_of('\n') + 1);
  }

  void Kill(const std::string& address) {
    for (Server& server : servers_) {
      if (server.address == address) server.process.reset();
    }
  }

  // The server under whose heading `list` ("volume") shows the name.
  std::string WhereIs(const std::string& name, const std::string& kind) const {
    std::istringstream lines(Run({kind, "list"}).out);
    std::string server, found;
    for (std::string line; std::getline(lines, line);) {
      if (absl::StartsWith(line, "server ")) server = line.substr(7);
      if (!absl::StartsWith(line, name + "\t")) continue;
      EXPECT_EQ(found, "") << name << " is twice";
      found = server;
    }
    return found;
  }

  std::string MakePair(int seed) const {
    const std::string pair = folder_ / absl::StrCat("pair", seed);
    const ProcessResult made = RunProcess({INTRAWARP_CLI, "phantom", "--out=" + pair, "--size=32x32x24",
                                           "--spacing=10x10x10", absl::StrCat("--seed=", seed)});
    EXPECT_EQ(made.exit_status, 0) << made.err;
    return pair;
  }

  TemporaryFolder folder_;
  std::array<Server, 3> servers_;
};

TEST_F(CliSeveralServersTest, VolumesAreSpreadAndFound) {
  std::map<std::string, std::string> places;
  for (int seed = 1; seed <= 8; ++seed) {
    const std::string name = Succeed({"volume", "put", MakePair(seed) + "/fixed.nii.gz"});
    ASSERT_THAT(name, StartsWith("volumes/"));
    places[name] = WhereIs(name, "volume");
    EXPECT_NE(places[name], "");
    // The digest leads to the same one again.
    EXPECT_EQ(Succeed({"volume", "put", folder_ / absl::StrCat("pair", seed, "/fixed.nii.gz")}), name);
  }
  EXPECT_EQ(places.size(), 8u);
  std::set<std::string> used;
  for (const auto& [name, address] : places) used.insert(address);
  EXPECT_GT(used.size(), 1u);

  const std::string name = places.begin()->first;
  Succeed({"volume", "get", name, "--out=" + (folder_ / "back.nii.gz")});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "back.nii.gz"));
  Succeed({"volume", "delete", name});
  EXPECT_EQ(WhereIs(name, "volume"), "");
  const ProcessResult gone = Run({"volume", "get", name, "--out=" + (folder_ / "back.nii.gz")});
  EXPECT_EQ(gone.exit_status, 1);
  EXPECT_THAT(gone.err, HasSubstr("NOT_FOUND: " + name + " is on none of the 3 servers that answer; 0 do not"));
}

TEST_F(CliSeveralServersTest, EveryCommandSaysWhatItDoesWithSeveralServers) {
  const std::string health = Succeed({"health"});
  const std::string info = Succeed({"server", "info"});
  for (const Server& server : servers_) {
    EXPECT_THAT(health, HasSubstr("server " + server.address + "\nSERVING"));
    EXPECT_THAT(info, HasSubstr("server " + server.address + "\nversion "));
  }
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"selftest"}, {"server", "report", "--out=" + (folder_ / "report.json")}}) {
    const ProcessResult refused = Run(command);
    EXPECT_EQ(refused.exit_status, 2);
    EXPECT_THAT(refused.err, HasSubstr("--server: names several servers"));
  }
  const std::string dead = servers_[1].address;
  Kill(dead);
  const ProcessResult sick = Run({"health"});
  EXPECT_EQ(sick.exit_status, 1);
  EXPECT_THAT(sick.out, HasSubstr("server " + servers_[2].address + "\nSERVING"));
  EXPECT_EQ(sick.err,
            "intrawarp: UNAVAILABLE: 1 of 3 servers failed, the first: " + dead + ": the server is not serving\n");
  EXPECT_EQ(RunProcess({INTRAWARP_CLI, "--server=a:1,", "health"}).exit_status, 1);
}

TEST_F(CliSeveralServersTest, FilesAreRegisteredOnTheNextServerWhenOneIsGone) {
  const std::string pair = MakePair(3);
  const std::vector<std::string> arguments = {"register", "--fixed=" + pair + "/fixed.nii.gz",
                                              "--moving=" + pair + "/moving.nii.gz", "--method=rigid",
                                              "--warped=" + (folder_ / "warped.nii.gz")};
  const std::string first = Succeed(arguments);
  const std::string owner = WhereIs(first, "transform");
  EXPECT_NE(owner, "");
  Succeed(
      {"points", "--transform=" + first, "--in=" + pair + "/landmarks_fixed.csv", "--out=" + (folder_ / "mapped.csv")});
  EXPECT_EQ(WhereIs(Succeed(arguments), "transform"), owner);
  const std::string kept = Succeed({"volume", "put", pair + "/fixed.nii.gz", "--id=kept"});
  EXPECT_EQ(WhereIs(kept, "volume"), owner);

  Kill(owner);
  const std::string second = Succeed(arguments);
  const std::string next = WhereIs(second, "transform");
  EXPECT_NE(next, "");
  EXPECT_NE(next, owner);
  // Only the server knew it.
  const ProcessResult lost = Run({"register", "--fixed=" + kept, "--moving=" + pair + "/moving.nii.gz"});
  EXPECT_EQ(lost.exit_status, 1);
  EXPECT_THAT(lost.err, HasSubstr("NOT_FOUND: volumes/kept is on none of the 2 servers that answer; 1 do not"));
}

TEST_F(CliSeveralServersTest, NavigationGoesOnWhenItsServerIsKilled) {
  const std::string pair = MakePair(5);
  const std::string fixed = pair + "/fixed.nii.gz";
  const std::string owner = WhereIs(
      Succeed({"register", "--fixed=" + fixed, "--moving=" + pair + "/moving.nii.gz", "--method=rigid"}), "transform");
  ASSERT_NE(owner, "");
  constexpr int kFrames = 24;
  std::filesystem::create_directory(folder_ / "frames");
  std::filesystem::create_directory(folder_ / "fields");
  for (int i = 0; i < kFrames; ++i) {
    // The fixed image itself: only a result with verdict ok starts the next server.
    std::filesystem::copy_file(fixed, folder_ / absl::StrCat("frames/", 100 + i, ".nii.gz"));
  }
  Process navigation(Arguments({"navigate", "--fixed=" + fixed, "--frames=" + (folder_ / "frames"), "--method=rigid",
                                "--rate=4", "--field_dir=" + (folder_ / "fields")}));
  // The field of a frame is written once its answer is with the client, from which the next server starts.
  const auto has_answer = [&] { return std::filesystem::exists(folder_ / "fields/100.nii.gz"); };
  ASSERT_TRUE(Eventually(has_answer));
  Kill(owner);
  const ProcessResult result = navigation.Wait();
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_THAT(result.err, StartsWith("intrawarp: the session goes on from the last good affine map on 127.0.0.1:"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), kFrames);
  EXPECT_EQ(result.out.find("failed"), std::string::npos) << result.out;
  EXPECT_EQ(Run({"volume", "list"}).out.find("volumes/"), std::string::npos);
}

}  // namespace
}  // namespace intrawarp::client
