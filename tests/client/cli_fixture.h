// SPDX-License-Identifier: Apache-2.0
// The command line and a server, both as processes; one server and one pair of images serve all tests of a suite.
#ifndef INTRAWARP_TESTS_CLIENT_CLI_FIXTURE_H_
#define INTRAWARP_TESTS_CLIENT_CLI_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/geometry/vec.h"
#include "io/format/matrix_text.h"
#include "tests/client/process.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

namespace intrawarp::client {

inline constexpr double kVoxelMm = 8;

// Every test has the same: one server, and one pair with a known affine map.
struct World {
  TemporaryFolder folder;
  std::unique_ptr<ServerProcess> server;
  std::string grpc;
  std::string pair;
  AffineMap truth;
};

inline World* world = nullptr;

// The value, or a failure of the test and an empty one.
template <typename T>
T Value(absl::StatusOr<T> result) {
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : T();
}

inline nlohmann::json ReadJson(const std::string& path) {
  nlohmann::json json = nlohmann::json::parse(FileContents(path), nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << path;
  return json;
}

class CliTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    world = new World;
    world->server = std::make_unique<ServerProcess>(INTRAWARPD);
    ASSERT_THAT(world->server->ready(),
                testing::MatchesRegex("ready grpc=127\\.0\\.0\\.1:[0-9]+ http=127\\.0\\.0\\.1:[0-9]+ device=cpu"));
    world->grpc = world->server->grpc();
    world->pair = world->folder / "pair";
    world->truth = AffineMap::Identity();
    world->truth.m[0][1] = 0.1;
    world->truth.m[1][0] = -0.1;
    world->truth.m[0][3] = 9;
    world->truth.m[1][3] = -7;
    world->truth.m[2][3] = 5;
    ASSERT_TRUE(io::WriteMatrix(world->folder / "truth.txt", world->truth).ok());
    const ProcessResult made =
        RunProcess({INTRAWARP_CLI, "phantom", "--out=" + world->pair, "--size=40x40x24", "--spacing=8x8x10", "--seed=3",
                    "--amplitude_mm=0", "--affine=" + (world->folder / "truth.txt")});
    ASSERT_EQ(made.exit_status, 0) << made.err;
  }

  static void TearDownTestSuite() {
    world->server->Stop();
    delete world;
    world = nullptr;
  }

  // Whatever a test did, no volume, upload, stream or job is left, and transforms go when they are deleted.
  void TearDown() override {
    for (const char* kind : {"transform", "volume"}) {
      const std::string list = Run({kind, "list"}).out;
      EXPECT_TRUE(list.empty() || kind == std::string("transform")) << list;
      std::istringstream lines(list);
      for (std::string line; std::getline(lines, line);) {
        EXPECT_EQ(Run({kind, "delete", line.substr(0, line.find('\t'))}).exit_status, 0) << line;
      }
    }
    // A call has ended for its client a moment before it has for the server.
    std::string info;
    (void)Eventually([&] {
      info = Run({"server", "info"}).out;
      return info.find("uploads 0, streams 0, jobs 0") != std::string::npos;
    });
    EXPECT_THAT(info, testing::HasSubstr("resident: 0 of"));
    EXPECT_THAT(info, testing::HasSubstr("volumes 0, transforms 0, matrices 0"));
    EXPECT_THAT(info, testing::HasSubstr("uploads 0, streams 0, jobs 0"));
  }

  static ProcessResult Run(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {INTRAWARP_CLI, "--server=" + world->grpc};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return RunProcess(all);
  }

  // Runs what has to succeed; its stdout without the last line end.
  static std::string Succeed(const std::vector<std::string>& arguments) {
    const ProcessResult result = Run(arguments);
    EXPECT_EQ(result.exit_status, 0) << absl::StrCat(arguments[0], ": ", result.err);
    EXPECT_EQ(WithoutNotes(result.err), "");
    return result.out.substr(0, result.out.find_last_not_of('\n') + 1);
  }

  // Runs what has to fail with one line that begins with the code and names the cause.
  static void Fail(const std::vector<std::string>& arguments, const std::string& code, const std::string& cause) {
    const ProcessResult result = Run(arguments);
    EXPECT_EQ(result.exit_status, 1) << absl::StrCat(arguments[0], ": ", result.out);
    const std::string err = WithoutNotes(result.err);
    EXPECT_THAT(err, testing::StartsWith("intrawarp: " + code + ": "));
    EXPECT_THAT(err, testing::HasSubstr(cause));
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  }

  static void Wrong(const std::vector<std::string>& arguments, const std::string& cause) {
    const ProcessResult result = Run(arguments);
    EXPECT_EQ(result.exit_status, 2) << cause;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, testing::HasSubstr(cause));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  static std::string Pair(const std::string& name) { return world->pair + "/" + name; }
  static std::string Out(const std::string& name) { return world->folder / name; }
  static std::vector<std::string> Register(std::vector<std::string> more) {
    more.insert(more.begin(), {"register", "--fixed=" + Pair("fixed.nii.gz"), "--moving=" + Pair("moving.nii.gz")});
    return more;
  }

  // The largest distance in mm between two lists of points.
  static double Distance(const std::vector<Vec3d>& a, const std::vector<Vec3d>& b) {
    EXPECT_EQ(a.size(), b.size());
    double largest = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      largest = std::max(largest, std::sqrt(Dot(a[i] - b[i], a[i] - b[i])));
    }
    return largest;
  }
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_TESTS_CLIENT_CLI_FIXTURE_H_
