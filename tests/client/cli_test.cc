// SPDX-License-Identifier: Apache-2.0
// The command line against the server, both as processes: every command, its outputs, exit statuses and error lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/geometry/vec.h"
#include "io/grid_files.h"
#include "io/itk_transform.h"
#include "io/matrix_market.h"
#include "io/matrix_text.h"
#include "io/nifti.h"
#include "io/points.h"
#include "tests/client/process.h"

namespace intrawarp::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr double kVoxelMm = 8;

// Every test has the same: one server, and one pair with a known affine map.
struct World {
  TemporaryFolder folder;
  std::unique_ptr<Process> server;
  std::string grpc;
  std::string pair;
  AffineMap truth;
};
World* world = nullptr;

// The value, or a failure of the test and an empty one.
template <typename T>
T Value(absl::StatusOr<T> result) {
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : T();
}

nlohmann::json ReadJson(const std::string& path) {
  nlohmann::json json = nlohmann::json::parse(FileContents(path), nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << path;
  return json;
}

std::string Word(const std::string& line, const std::string& key) {
  const size_t begin = line.find(key) + key.size();
  return line.substr(begin, line.find_first_of(" \n", begin) - begin);
}

class CliTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    world = new World;
    world->server = std::make_unique<Process>(
        std::vector<std::string>{INTRAWARPD, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu"});
    const std::string ready = world->server->WaitForLine("ready ");
    ASSERT_THAT(ready, MatchesRegex("ready grpc=127\\.0\\.0\\.1:[0-9]+ http=127\\.0\\.0\\.1:[0-9]+ device=cpu"));
    world->grpc = Word(ready, "grpc=");
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
    world->server->Signal(SIGTERM);
    EXPECT_EQ(world->server->Wait().exit_status, 0);
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
    for (int i = 0; i < 200; ++i) {
      info = Run({"server", "info"}).out;
      if (info.find("uploads 0, streams 0, jobs 0") != std::string::npos) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_THAT(info, HasSubstr("resident: 0 of"));
    EXPECT_THAT(info, HasSubstr("volumes 0, transforms 0, matrices 0"));
    EXPECT_THAT(info, HasSubstr("uploads 0, streams 0, jobs 0"));
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
    EXPECT_THAT(err, HasSubstr(cause));
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  }

  static void Wrong(const std::vector<std::string>& arguments, const std::string& cause) {
    const ProcessResult result = Run(arguments);
    EXPECT_EQ(result.exit_status, 2) << cause;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(cause));
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
  Process server({INTRAWARPD, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu", "--max_volume_bytes=1000"});
  const std::string address = Word(server.WaitForLine("ready "), "grpc=");
  const ProcessResult run = RunProcess({INTRAWARP_CLI, "--server=" + address, "selftest"});
  EXPECT_EQ(run.exit_status, 1);
  EXPECT_THAT(run.err, HasSubstr("the self-test failed: rigid, affine, ffd, log-demons, search, auto"));
}

TEST_F(CliTest, VolumesComeBackAsTheyWere) {
  const std::string fixed = Pair("fixed.nii.gz");
  EXPECT_EQ(Succeed({"volume", "put", fixed, "--id=ct"}), "volumes/ct");
  EXPECT_EQ(Succeed({"volume", "put", fixed, "--id=ct"}), "volumes/ct");
  const std::string other = Succeed({"volume", "put", Pair("moving.nii.gz")});
  EXPECT_THAT(other, MatchesRegex("volumes/[A-Za-z0-9._-]+"));
  EXPECT_EQ(Succeed({"volume", "put", Pair("moving.nii.gz")}), other);
  const std::string list = Succeed({"volume", "list"});
  EXPECT_THAT(list, HasSubstr("volumes/ct\t40x40x24\t8x8x10 mm\tint16\t"));
  EXPECT_THAT(list, HasSubstr(other + "\t"));

  Succeed({"volume", "get", "volumes/ct", "--out=" + Out("back.nii.gz")});
  const auto sent = io::ReadNifti(fixed), back = io::ReadNifti(Out("back.nii.gz"));
  ASSERT_TRUE(sent.ok() && back.ok());
  EXPECT_TRUE(SameGrid(sent->geometry, back->geometry, 1e-4));
  EXPECT_EQ(io::ToFloat(*sent), io::ToFloat(*back));

  EXPECT_EQ(Succeed({"volume", "delete", "volumes/ct"}), "");
  EXPECT_EQ(Succeed({"volume", "delete", other}), "");
  EXPECT_EQ(Succeed({"volume", "list"}), "");
}

TEST_F(CliTest, WrongVolumesHaveTheirCause) {
  Succeed({"volume", "put", Pair("fixed.nii.gz"), "--id=taken"});
  Fail({"volume", "put", Pair("moving.nii.gz"), "--id=taken"}, "ALREADY_EXISTS", "taken");
  Succeed({"volume", "delete", "volumes/taken"});
  Fail({"volume", "put", Pair("fixed.nii.gz"), "--id=../etc"}, "INVALID_ARGUMENT", "id");
  Fail({"volume", "put", Pair("nothing.nii.gz")}, "NOT_FOUND", "nothing.nii.gz");
  Fail({"volume", "get", "volumes/nothing", "--out=" + Out("x.nii")}, "NOT_FOUND", "volumes/nothing");
  EXPECT_FALSE(std::filesystem::exists(Out("x.nii")));
  Fail({"volume", "delete", "volumes/nothing"}, "NOT_FOUND", "volumes/nothing");
  std::ofstream(Out("rubbish.nii")) << "no image";
  EXPECT_EQ(Run({"volume", "put", Out("rubbish.nii")}).exit_status, 1);
  std::vector<float> voxels(8, 1.0f);
  voxels[3] = NAN;
  Geometry geometry;
  geometry.size = {2, 2, 2};
  ASSERT_TRUE(io::WriteNifti(Out("nan.nii"), geometry, PixelType::kFloat32, voxels.data()).ok());
  Fail({"volume", "put", Out("nan.nii")}, "INVALID_ARGUMENT", "finite");
}

TEST_F(CliTest, RegisterFindsTheKnownMap) {
  const std::string name =
      Succeed(Register({"--method=affine", "--field=" + Out("field.nii.gz"), "--warped=" + Out("warped.nii.gz"),
                        "--report=" + Out("report.json"), "--montage=" + Out("montage.png")}));
  ASSERT_THAT(name, MatchesRegex("transforms/[A-Za-z0-9._-]+"));
  EXPECT_EQ(Succeed({"volume", "list"}), "");

  const auto fixed_points = io::ReadPoints(Pair("landmarks_fixed.csv"));
  const auto moving_points = io::ReadPoints(Pair("landmarks_moving.csv"));
  ASSERT_TRUE(fixed_points.ok() && moving_points.ok());
  ASSERT_GT(Distance(*fixed_points, *moving_points), kVoxelMm);
  Succeed({"points", "--transform=" + name, "--in=" + Pair("landmarks_fixed.csv"), "--out=" + Out("mapped.csv")});
  const auto mapped = io::ReadPoints(Out("mapped.csv"));
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_LT(Distance(*mapped, *moving_points), 0.1 * kVoxelMm);
  Succeed({"points", "--transform=" + name, "--in=" + Out("mapped.csv"), "--out=" + Out("back.csv"), "--inverse"});
  EXPECT_LT(Distance(Value(io::ReadPoints(Out("back.csv"))), *fixed_points), 1e-6);

  EXPECT_THAT(Succeed({"transform", "list"}), testing::StartsWith(name + "\taffine\t"));
  Succeed({"transform", "get", name, "--out=" + Out("matrix.txt")});
  const auto matrix = io::ReadMatrix(Out("matrix.txt"));
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  for (size_t i = 0; i < fixed_points->size(); ++i) {
    const Vec3d error = (*matrix)((*fixed_points)[i]) - (*mapped)[i];
    EXPECT_LT(std::sqrt(Dot(error, error)), 1e-9);
  }

  const auto field = io::ReadField(Out("field.nii.gz"));
  const auto fixed = io::ReadNifti(Pair("fixed.nii.gz"));
  ASSERT_TRUE(field.ok() && fixed.ok());
  ASSERT_TRUE(SameGrid(field->geometry, fixed->geometry, 1e-4));
  const Vec3d corner = IndexToPhysical(fixed->geometry)({39, 39, 23});
  const Vec3d moved = (*matrix)(corner)-corner;
  const float* last = field->displacement.data() + field->displacement.size() - 3;
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(last[i], moved[i], 1e-3);
  Succeed({"transform", "get", name, "--out=" + Out("field_again.nii")});
  EXPECT_EQ(Value(io::ReadField(Out("field_again.nii"))).displacement, field->displacement);

  Succeed({"warp", "--transform=" + name, "--moving=" + Pair("moving.nii.gz"), "--like=" + Pair("fixed.nii.gz"),
           "--out=" + Out("warped_again.nii.gz")});
  const auto warped = io::ReadNifti(Out("warped.nii.gz")), again = io::ReadNifti(Out("warped_again.nii.gz"));
  ASSERT_TRUE(warped.ok() && again.ok());
  EXPECT_EQ(io::ToFloat(*warped), io::ToFloat(*again));
  EXPECT_EQ(FileContents(Out("montage.png")).substr(1, 3), "PNG");
}

TEST_F(CliTest, RegisterWritesThePredictedError) {
  Succeed(Register({"--method=affine", "--error_map=" + Out("bound.nii.gz"),
                    "--error_at=" + Pair("landmarks_fixed.csv"), "--error_out=" + Out("errors.csv")}));
  const auto map = io::ReadNifti(Out("bound.nii.gz"));
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->geometry.size, (Int3{8, 8, 6}));
  const std::vector<float> bounds = io::ToFloat(*map);
  EXPECT_TRUE(std::any_of(bounds.begin(), bounds.end(), [](float bound) { return bound > 0; }));
  const std::vector<std::string> lines = absl::StrSplit(FileContents(Out("errors.csv")), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 1 + Value(io::ReadPoints(Pair("landmarks_fixed.csv"))).size());
  EXPECT_EQ(lines[0], "x,y,z,expected_mm,bound_mm,distance_mm");
  for (size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(std::count(lines[i].begin(), lines[i].end(), ','), 5);
  EXPECT_THAT(lines[1], Not(HasSubstr("nan")));
}

TEST_F(CliTest, RegisterWritesWhereTissueIsMissing) {
  Succeed(Register({"--method=affine", "--missing_tissue=" + Out("missing.nii.gz"), "--report=" + Out("report.json")}));
  const auto map = io::ReadNifti(Out("missing.nii.gz"));
  ASSERT_TRUE(map.ok()) << map.status();
  const std::vector<float> nodes = io::ToFloat(*map);
  const double missing = std::accumulate(nodes.begin(), nodes.end(), 0.0);
  EXPECT_TRUE(std::all_of(nodes.begin(), nodes.end(), [](float node) { return node == 0 || node == 1; }));
  const auto report = ReadJson(Out("report.json"));
  EXPECT_EQ(report["missing_tissue"]["volume_mm3"] == 0, missing == 0);
  EXPECT_EQ(report["options"]["find_missing_tissue"], true);
}

TEST_F(CliTest, RegisterTakesLandmarksAndPointsThatMustNotMove) {
  std::ofstream(Out("pairs.csv")) << "fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z,sigma_mm\n"
                                     "0,0,0,5,0,0,0.5\n10,5,0,15,5,0,0.5\n";
  std::ofstream(Out("still.csv")) << "x,y,z\n-10,0,5\n";
  Succeed(Register({"--method=affine", "--landmarks=" + Out("pairs.csv"), "--unmoved_points=" + Out("still.csv"),
                    "--report=" + Out("report.json")}));
  const auto report = ReadJson(Out("report.json"));
  ASSERT_EQ(report["landmarks"]["distance_mm"].size(), 3u);
  EXPECT_GE(report["landmarks"]["max_mm"], report["landmarks"]["mean_mm"]);
  const auto& landmarks = report["options"]["landmarks"];
  ASSERT_EQ(landmarks.size(), 3u);
  EXPECT_EQ(landmarks[2]["fixed"], landmarks[2]["moving"]);
  EXPECT_EQ(landmarks[2]["sigma_mm"], 0.5);

  std::ofstream(Out("wrong.csv")) << "x,y,z\n1,2,3\n";
  const ProcessResult result = Run(Register({"--landmarks=" + Out("wrong.csv")}));
  EXPECT_NE(result.exit_status, 0);
  EXPECT_THAT(result.err, HasSubstr("wrong.csv: line 1: the header must be fixed_x"));
}

TEST_F(CliTest, TheReportHasTheNamesOfTheContract) {
  Succeed(Register(
      {"--method=rigid,affine", "--metric=ngf", "--levels=2", "--iterations=5", "--report=" + Out("report.json")}));
  const auto report = ReadJson(Out("report.json"));
  EXPECT_EQ(report["method"], "rigid,affine");
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_TRUE(report["stop_reason"].is_string());
  ASSERT_EQ(report["stages"].size(), 2u);
  EXPECT_EQ(report["stages"][0]["name"], "rigid");
  EXPECT_EQ(report["stages"][0]["metric"], "ngf");
  EXPECT_EQ(report["stages"][1]["name"], "affine");
  const auto& levels = report["stages"][1]["levels"];
  ASSERT_EQ(levels.size(), 2u);
  EXPECT_THAT(levels[1]["size"].get<std::vector<int>>(), ElementsAre(40, 40, 24));
  EXPECT_LE(levels[1]["iterations"], 5);
  EXPECT_LE(levels[1]["value_after"].get<double>(), levels[1]["value_before"].get<double>());
  ASSERT_EQ(report["matrix"].size(), 4u);
  EXPECT_THAT(report["matrix"][3].get<std::vector<double>>(), ElementsAre(0, 0, 0, 1));
  for (const char* when : {"before", "after"}) {
    for (const char* name : {"mse", "sse", "mae", "ncc", "nmi", "ssim"}) {
      EXPECT_TRUE(report["similarity"][when][name].is_number()) << when << " " << name;
    }
  }
  EXPECT_GT(report["similarity"]["after"]["ncc"], report["similarity"]["before"]["ncc"]);
  EXPECT_GT(report["overlap"], 0.5);
  EXPECT_GT(report["jacobian"]["min"], 0.5);
  EXPECT_EQ(report["jacobian"]["nonpositive_fraction"], 0);
  EXPECT_LT(report["inverse_consistency_mm"]["max"], 1e-3);
  EXPECT_THAT(report["verdict"].get<std::string>(), testing::AnyOf("ok", "review"));
  EXPECT_TRUE(report["reasons"].is_array());
  for (const char* phase : {"receive", "admit", "queue", "upload", "prepare", "optimise", "assess", "encode",
                            "download", "send", "total"}) {
    EXPECT_GE(report["latency_ms"][phase], 0) << phase;
  }
  EXPECT_GT(report["latency_ms"]["optimise"], 0);
}

TEST_F(CliTest, RegisterChoosesWithoutAMethod) {
  Succeed(Register({"--report=" + Out("chosen.json"), "--grid=" + Out("chosen.tfm")}));
  const auto report = ReadJson(Out("chosen.json"));
  EXPECT_EQ(report["method"], "auto");
  ASSERT_EQ(report["stages"].size(), 2u);
  EXPECT_EQ(report["stages"][0]["name"], "affine");
  EXPECT_EQ(report["stages"][1]["name"], "ffd");
  const auto& choice = report["choice"];
  EXPECT_THAT(choice["text"].get<std::string>(), testing::AnyOf(HasSubstr("affine stage"), HasSubstr("affine part")));
  EXPECT_TRUE(choice["reason"].is_string());
  EXPECT_EQ(choice["affine"].size(), 2u);
  EXPECT_TRUE(choice["affine"][0]["chosen"].is_boolean());
  EXPECT_GT(choice["deformations"].size(), 0u);
  EXPECT_TRUE(choice["deformations"][0]["bending_weight"].is_number());
  Succeed(Register({"--method=affine", "--report=" + Out("named.json")}));
  EXPECT_TRUE(ReadJson(Out("named.json"))["choice"].is_null());
}

TEST_F(CliTest, RegisterTakesResidentVolumesMasksAndAStart) {
  const std::string fixed = Succeed({"volume", "put", Pair("fixed.nii.gz"), "--id=f"});
  const std::string moving = Succeed({"volume", "put", Pair("moving.nii.gz"), "--id=m"});
  const std::vector<std::string> command = {"register",
                                            "--fixed=" + fixed,
                                            "--moving=" + moving,
                                            "--method=affine",
                                            "--fixed_mask=" + Pair("mask.nii.gz"),
                                            "--report=" + Out("report.json")};
  std::vector<std::string> from_matrix = command;
  from_matrix.push_back("--initial=" + (world->folder / "truth.txt"));
  const std::string first = Succeed(from_matrix);
  const auto report = ReadJson(Out("report.json"));
  EXPECT_NEAR(report["matrix"][0][3].get<double>(), 9, 0.1 * kVoxelMm);
  std::vector<std::string> from_transform = command;
  from_transform.push_back("--initial=" + first);
  const std::string second = Succeed(from_transform);
  EXPECT_NE(first, second);
  Succeed({"volume", "delete", fixed});
  Succeed({"volume", "delete", moving});
}

TEST_F(CliTest, ABudgetEndsTheRegistration) {
  TemporaryFolder folder;
  ASSERT_EQ(
      RunProcess({INTRAWARP_CLI, "phantom", "--out=" + folder.path(), "--size=96x96x64", "--spacing=4"}).exit_status,
      0);
  const std::vector<std::string> command = {"register", "--fixed=" + (folder / "fixed.nii.gz"),
                                            "--moving=" + (folder / "moving.nii.gz"), "--method=affine",
                                            "--budget_ms=1"};
  Fail(command, "DEADLINE_EXCEEDED", "budget");
  std::vector<std::string> best_effort = command;
  best_effort.insert(best_effort.end(), {"--best_effort", "--report=" + Out("report.json")});
  Succeed(best_effort);
  EXPECT_EQ(ReadJson(Out("report.json"))["stop_reason"], "budget");
}

TEST_F(CliTest, RegistrationsThatCannotBeHaveTheirCause) {
  Fail(Register({"--method=affine,log-demons,ffd"}), "INVALID_ARGUMENT", "options.stages[2].method");
  Fail(Register({"--method=affine,ffd", "--spacing_vox=1e9"}), "INVALID_ARGUMENT", "options.stages[1].ffd.spacing_vox");
  Fail(Register({"--method=affine", "--initial=transforms/nothing"}), "NOT_FOUND", "transforms/nothing");
  Fail(Register({"--method=affine", "--initial=" + Pair("landmarks_fixed.csv")}), "INVALID_ARGUMENT",
       "landmarks_fixed.csv");
  Fail({"register", "--fixed=volumes/nothing", "--moving=" + Pair("moving.nii.gz"), "--method=affine"}, "NOT_FOUND",
       "volumes/nothing");
  Fail(Register({"--method=affine", "--report=" + Out("no/such/folder/report.json")}), "NOT_FOUND", "no/such/folder");
  EXPECT_EQ(Succeed({"transform", "list"}), "");

  Geometry geometry;
  geometry.size = {16, 16, 16};
  const std::vector<float> constant(16 * 16 * 16, 3.0f);
  ASSERT_TRUE(io::WriteNifti(Out("constant.nii"), geometry, PixelType::kFloat32, constant.data()).ok());
  Fail({"register", "--fixed=" + Pair("fixed.nii.gz"), "--moving=" + Out("constant.nii"), "--method=affine"},
       "FAILED_PRECONDITION", "constant");
  const std::vector<uint8_t> nothing(40 * 40 * 24, 0);
  const io::HostVolume fixed = Value(io::ReadNifti(Pair("fixed.nii.gz")));
  ASSERT_TRUE(io::WriteNifti(Out("nothing.nii"), fixed.geometry, PixelType::kUint8, nothing.data()).ok());
  Fail(Register({"--method=affine", "--fixed_mask=" + Out("nothing.nii")}), "FAILED_PRECONDITION", "mask");
  Fail(Register({"--method=affine", "--fixed_mask=" + Out("constant.nii")}), "INVALID_ARGUMENT", "mask");
}

TEST_F(CliTest, WarpAndPointsTakeFilesAsTransforms) {
  const auto warp = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"warp", "--moving=" + Pair("moving.nii.gz"), "--like=" + Pair("fixed.nii.gz"),
                                        "--out=" + Out("warped.nii.gz")};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  };
  const std::string truth = world->folder / "truth.txt";
  Succeed(warp({"--transform=" + truth}));
  const std::vector<float> by_matrix = io::ToFloat(Value(io::ReadNifti(Out("warped.nii.gz"))));
  Succeed(warp({"--transform=" + Pair("field.nii.gz")}));
  const std::vector<float> by_field = io::ToFloat(Value(io::ReadNifti(Out("warped.nii.gz"))));
  ASSERT_EQ(by_matrix.size(), by_field.size());
  double difference = 0;
  for (size_t i = 0; i < by_matrix.size(); ++i) difference += std::abs(by_matrix[i] - by_field[i]);
  EXPECT_LT(difference / static_cast<double>(by_matrix.size()), 1);

  Succeed(warp({"--transform=" + truth, "--interpolation=nearest", "--fill=-2000", "--inverse"}));
  const std::vector<float> nearest = io::ToFloat(Value(io::ReadNifti(Out("warped.nii.gz"))));
  EXPECT_EQ(*std::min_element(nearest.begin(), nearest.end()), -2000);
  for (float value : nearest) ASSERT_EQ(value, std::round(value));
  // Cubic interpolation reproduces the samples.
  ASSERT_TRUE(io::WriteMatrix(Out("identity.txt"), AffineMap::Identity()).ok());
  Succeed({"warp", "--transform=" + Out("identity.txt"), "--moving=" + Pair("moving.nii.gz"),
           "--like=" + Pair("moving.nii.gz"), "--out=" + Out("same.nii"), "--interpolation=cubic"});
  const std::vector<float> moving = io::ToFloat(Value(io::ReadNifti(Pair("moving.nii.gz"))));
  const std::vector<float> same = io::ToFloat(Value(io::ReadNifti(Out("same.nii"))));
  ASSERT_EQ(same.size(), moving.size());
  for (size_t i = 0; i < same.size(); ++i) ASSERT_NEAR(same[i], moving[i], 0.01) << i;
  Fail(warp({"--transform=transforms/nothing"}), "NOT_FOUND", "transforms/nothing");

  Succeed({"points", "--transform=" + Pair("field.nii.gz"), "--in=" + Pair("landmarks_fixed.csv"),
           "--out=" + Out("mapped.csv")});
  EXPECT_LT(Distance(Value(io::ReadPoints(Out("mapped.csv"))), Value(io::ReadPoints(Pair("landmarks_moving.csv")))),
            1e-2);
  EXPECT_EQ(Succeed({"transform", "list"}), "");
  EXPECT_EQ(Succeed({"volume", "list"}), "");
  Fail({"points", "--transform=" + truth, "--in=" + truth, "--out=" + Out("mapped.csv")}, "INVALID_ARGUMENT", "line 1");
}

// A registration with a control grid, into DIR/g.tfm; its name.
std::string RegisteredFfd(const std::vector<std::string>& command) {
  std::vector<std::string> all = {INTRAWARP_CLI, "--server=" + world->grpc};
  all.insert(all.end(), command.begin(), command.end());
  const ProcessResult result = RunProcess(all);
  EXPECT_EQ(result.exit_status, 0) << result.err;
  return result.out.substr(0, result.out.find('\n'));
}

TEST_F(CliTest, VolumesGoThroughEveryFormat) {
  const io::HostVolume fixed = Value(io::ReadNifti(Pair("fixed.nii.gz")));
  const std::vector<float> values = io::ToFloat(fixed);
  for (const char* suffix : {".nrrd", ".nhdr", ".mha", ".mhd"}) {
    ASSERT_TRUE(io::WriteVolumeFile(Out(std::string("in") + suffix), fixed).ok());
    const std::string id = std::string("format") + suffix;
    const std::string name = Succeed({"volume", "put", Out(std::string("in") + suffix), "--id=" + id});
    EXPECT_EQ(name, "volumes/" + id);
    Succeed({"volume", "get", name, "--out=" + Out(std::string("out") + suffix)});
    const io::HostVolume back = Value(io::ReadVolumeFile(Out(std::string("out") + suffix)));
    EXPECT_TRUE(SameGrid(back.geometry, fixed.geometry, 1e-4));
    EXPECT_EQ(io::ToFloat(back), values) << suffix;
    Succeed({"volume", "delete", name});
  }
  std::ofstream(Out("broken.nrrd")) << "NRRD0004\ntype: float\ndimension: 3\nsizes: 4 4 0\n\n";
  Fail({"volume", "put", Out("broken.nrrd")}, "INVALID_ARGUMENT", "broken.nrrd: sizes: ");
  Wrong({"volume", "get", "volumes/x", "--out=" + Out("x.png")}, "--out");
}

TEST_F(CliTest, TransformsGoThroughEveryFormat) {
  const std::string name =
      RegisteredFfd(Register({"--method=affine,ffd", "--metric=ssd", "--iterations=5", "--field=" + Out("u.nrrd"),
                              "--warped=" + Out("warped.mha"), "--grid=" + Out("g.h5")}));
  EXPECT_EQ(io::ToFloat(Value(io::ReadVolumeFile(Out("warped.mha")))).size(), size_t{40} * 40 * 24);
  Succeed({"transform", "get", name, "--out=" + Out("again.h5")});
  EXPECT_EQ(FileContents(Out("again.h5")), FileContents(Out("g.h5")));
  Succeed({"transform", "get", name, "--out=" + Out("u.mhd")});
  EXPECT_EQ(Value(io::ReadFieldFile(Out("u.mhd"))).displacement, Value(io::ReadFieldFile(Out("u.nrrd"))).displacement);
  // The same displacement with an affine map that undoes a translation beside it.
  const io::HostField field = Value(io::ReadFieldFile(Out("u.nrrd")));
  io::ItkTransform moved{io::ItkTransform::Kind::kDisplacement, AffineMap::Identity(), field.geometry,
                         field.displacement};
  for (size_t i = 0; i < moved.vectors.size(); i += 3) moved.vectors[i] += 10;
  moved.affine.m[0][3] = -10;
  ASSERT_TRUE(io::WriteItkTransform(Out("moved.tfm"), moved).ok());
  const auto map = [&](const std::string& transform) {
    Succeed({"points", "--transform=" + transform, "--in=" + Pair("landmarks_fixed.csv"), "--out=" + Out("p.csv")});
    return Value(io::ReadPoints(Out("p.csv")));
  };
  const std::vector<Vec3d> mapped = map(Out("u.nrrd"));
  for (const char* file : {"g.h5", "u.mhd", "moved.tfm"}) EXPECT_LT(Distance(map(Out(file)), mapped), 0.1) << file;

  // A stored affine map, as a matrix, as ITK's text under two names, and as HDF5.
  const std::string affine = RegisteredFfd(Register({"--method=affine", "--levels=1", "--iterations=2"}));
  for (const char* file : {"a.txt", "a.tfm", "a.h5"}) Succeed({"transform", "get", affine, "--out=" + Out(file)});
  std::filesystem::copy_file(Out("a.tfm"), Out("itk.txt"));
  const std::vector<Vec3d> there = map(affine);
  for (const char* file : {"a.txt", "a.tfm", "a.h5", "itk.txt"}) {
    EXPECT_LT(Distance(map(Out(file)), there), 1e-6) << file;
    RegisteredFfd(Register({"--method=affine", "--levels=1", "--iterations=1", "--initial=" + Out(file)}));
  }
  std::ofstream(Out("list.tfm")) << FileContents(Out("a.tfm")) << "Transform: AffineTransform_double_3_3\n";
  Fail({"points", "--transform=" + Out("list.tfm"), "--in=" + Pair("landmarks_fixed.csv"), "--out=" + Out("p.csv")},
       "UNIMPLEMENTED", "without a CompositeTransform");
  Wrong({"transform", "get", name, "--out=" + Out("v.nrrd"), "--field_encoding=velocity"}, "--out: a velocity");
  Wrong(Register({"--method=log-demons", "--field=" + Out("v.mha"), "--field_encoding=velocity"}),
        "--field: a velocity");
}

TEST_F(CliTest, AControlGridGoesThroughAFile) {
  const std::string name =
      RegisteredFfd(Register({"--method=affine,ffd", "--metric=ssd", "--iterations=10", "--keep_deformation",
                              "--grid=" + Out("g.tfm"), "--report=" + Out("report.json")}));
  const auto report = ReadJson(Out("report.json"));
  EXPECT_EQ(report["stages"][1]["name"], "ffd");
  EXPECT_EQ(report["method"], "affine,ffd");
  EXPECT_THAT(Succeed({"transform", "list"}), HasSubstr(name + "\tcontrol-grid\t"));
  Succeed({"transform", "get", name, "--out=" + Out("again.tfm")});
  EXPECT_EQ(FileContents(Out("again.tfm")), FileContents(Out("g.tfm")));
  const io::ItkTransform file = Value(io::ReadItkTransform(Out("g.tfm")));
  // 40 x 40 x 24 voxels, a control point every 5, and 3 more.
  EXPECT_EQ(file.grid.size, (Int3{11, 11, 8}));
  Fail({"transform", "get", name, "--out=" + Out("m.txt")}, "FAILED_PRECONDITION", "more than a matrix");

  for (const std::string interpolation : {"linear", "cubic"}) {
    for (const std::string inverse : {"", "--inverse"}) {
      std::vector<std::vector<float>> warped;
      for (const std::string& transform : {name, Out("g.tfm")}) {
        std::vector<std::string> command = {"warp",
                                            "--transform=" + transform,
                                            "--moving=" + Pair("moving.nii.gz"),
                                            "--like=" + Pair("fixed.nii.gz"),
                                            "--out=" + Out("warped.nii"),
                                            "--interpolation=" + interpolation};
        if (!inverse.empty()) command.push_back(inverse);
        Succeed(command);
        warped.push_back(io::ToFloat(Value(io::ReadNifti(Out("warped.nii")))));
      }
      ASSERT_EQ(warped[0].size(), warped[1].size());
      for (size_t i = 0; i < warped[0].size(); ++i) ASSERT_NEAR(warped[0][i], warped[1][i], 1e-4) << i;
    }
  }

  Succeed({"points", "--transform=" + name, "--in=" + Pair("landmarks_fixed.csv"), "--out=" + Out("there.csv")});
  Succeed(
      {"points", "--transform=" + Out("g.tfm"), "--in=" + Out("there.csv"), "--inverse", "--out=" + Out("back.csv")});
  const std::vector<Vec3d> fixed = Value(io::ReadPoints(Pair("landmarks_fixed.csv")));
  EXPECT_GT(Distance(Value(io::ReadPoints(Out("there.csv"))), fixed), 5);
  EXPECT_LT(Distance(Value(io::ReadPoints(Out("back.csv"))), fixed), 1e-2);

  // It is a place to start from, by name and as a file.
  for (const std::string& initial : {name, Out("g.tfm")}) {
    const std::string next = RegisteredFfd(Register({"--method=ffd", "--metric=ssd", "--levels=1", "--iterations=1",
                                                     "--initial=" + initial, "--report=" + Out("next.json")}));
    EXPECT_THAT(next, testing::StartsWith("transforms/"));
    const auto& before = report["stages"][1]["levels"].back()["value_after"];
    EXPECT_NEAR(ReadJson(Out("next.json"))["stages"][0]["levels"][0]["value_before"].get<double>(),
                before.get<double>(), 0.01 * before.get<double>());
  }
}

TEST_F(CliTest, FieldsComeInPartsAndInFewerBits) {
  const std::string name =
      RegisteredFfd(Register({"--method=affine,ffd", "--metric=ssd", "--iterations=5", "--field=" + Out("whole.nii")}));
  const io::HostField whole = Value(io::ReadField(Out("whole.nii")));
  ASSERT_EQ(whole.geometry.size, (Int3{40, 40, 24}));
  for (const auto& [encoding, bound] : {std::pair<std::string, double>("float16", 0.02), {"int16", 0.002}}) {
    Succeed({"transform", "get", name, "--out=" + Out("small.nii"), "--field_encoding=" + encoding});
    const io::HostField field = Value(io::ReadField(Out("small.nii")));
    EXPECT_EQ(field.geometry.size, whole.geometry.size);
    ASSERT_EQ(field.displacement.size(), whole.displacement.size());
    double worst = 0;
    for (size_t i = 0; i < field.displacement.size(); ++i) {
      worst = std::max(worst, double{std::abs(field.displacement[i] - whole.displacement[i])});
    }
    EXPECT_LT(worst, bound) << encoding;
    EXPECT_GT(worst, 0) << encoding;
  }
  const auto part = [&](const std::vector<std::string>& command, const std::string& file, Int3 start, Int3 size,
                        Int3 stride) {
    RegisteredFfd(command);
    const io::HostField field = Value(io::ReadField(file));
    ASSERT_EQ(field.geometry.size, size);
    const Vec3d first = IndexToPhysical(whole.geometry)({double(start.x), double(start.y), double(start.z)});
    size_t i = 0;
    for (int z = 0; z < size.z; ++z) {
      for (int y = 0; y < size.y; ++y) {
        for (int x = 0; x < size.x; ++x, i += 3) {
          const size_t voxel =
              40 * (40 * static_cast<size_t>(start.z + stride.z * z) + start.y + stride.y * y) + start.x + stride.x * x;
          for (size_t c = 0; c < 3; ++c) {
            ASSERT_NEAR(field.displacement[i + c], whole.displacement[3 * voxel + c], 1e-3);
          }
        }
      }
    }
    for (int a = 0; a < 3; ++a) {
      EXPECT_NEAR(field.geometry.origin[a], first[a], 1e-3);
      EXPECT_NEAR(field.geometry.spacing[a], stride[a] * whole.geometry.spacing[a], 1e-3);
    }
  };
  part({"transform", "get", name, "--out=" + Out("part.nii.gz"), "--field_region=4,5,6,20,30,10", "--field_stride=3"},
       Out("part.nii.gz"), {4, 5, 6}, {7, 10, 4}, {3, 3, 3});
  part({"transform", "get", name, "--out=" + Out("part.nii"), "--field_stride=1,2,24"}, Out("part.nii"), {0, 0, 0},
       {40, 20, 1}, {1, 2, 24});
  part(Register({"--method=affine,ffd", "--metric=ssd", "--iterations=5", "--field=" + Out("part.nii"),
                 "--field_region=0,0,23,40,40,1", "--field_encoding=float32"}),
       Out("part.nii"), {0, 0, 23}, {40, 40, 1}, {1, 1, 1});
  Fail({"transform", "get", name, "--out=" + Out("part.nii"), "--field_region=0,0,20,1,1,5"}, "INVALID_ARGUMENT",
       "field.region_size");
  Fail({"transform", "get", name, "--out=" + Out("part.nii"), "--field_stride=0"}, "INVALID_ARGUMENT", "field.stride");
}

TEST_F(CliTest, FfdErrorsHaveTheirCause) {
  Wrong(Register({"--method=affine", "--grid=" + Out("g.tfm")}), "--grid");
  Wrong(Register({"--method=affine,ffd", "--grid=" + Out("g.txt")}), "--grid");
  Wrong(Register({"--method=affine", "--optimizer=cg"}), "--optimizer");
  Wrong(Register({"--method=affine", "--jacobian_weight=1"}), "--jacobian_weight");
  Wrong(Register({"--method=affine", "--elasticity_weight=1"}), "--elasticity_weight");
  Wrong(Register({"--method=ffd", "--optimizer=adam"}), "--optimizer");
  for (const char* weight : {"--bending_weight=-1", "--elasticity_weight=nan", "--jacobian_weight=much"}) {
    Wrong(Register({"--method=ffd", weight}), std::string(weight).substr(0, std::string(weight).find('=')));
  }
  for (const char* spacing : {"0.5", "nan", "-1", "1e10", "five"}) {
    Wrong(Register({"--method=ffd", std::string("--spacing_vox=") + spacing}), "--spacing_vox");
  }
  Wrong(Register({"--method=ffd", "--field_stride=2"}), "--field_stride");
  const auto get = [](const std::string& out, const std::string& flag) {
    return std::vector<std::string>{"transform", "get", "transforms/a", "--out=" + Out(out), flag};
  };
  Wrong(get("m.txt", "--field_encoding=int16"), "--field_encoding");
  Wrong(get("g.tfm", "--field_stride=2"), "--field_stride");
  Wrong(get("f.nii", "--field_encoding=int8"), "--field_encoding");
  Wrong(get("f.nii", "--field_encoding=control_points"), "--field_encoding");
  Wrong(get("f.nii", "--field_stride=2,2"), "--field_stride");
  Wrong(get("f.nii", "--field_stride=two"), "--field_stride");
  Wrong(get("f.nii", "--field_region=1,2,3"), "--field_region");
  Wrong(get("f.nii", "--field_region=0,0,0,1,1,x"), "--field_region");

  std::ofstream(Out("broken.tfm")) << "#Insight Transform File V1.0\nTransform: Rigid3DTransform_double_3_3\n";
  for (const std::string file : {"broken.tfm", "none.tfm"}) {
    const std::string code = file == "none.tfm" ? "NOT_FOUND" : "UNIMPLEMENTED";
    Fail({"points", "--transform=" + Out(file), "--in=" + Pair("landmarks_fixed.csv"), "--out=" + Out("p.csv")}, code,
         file);
    Fail(Register({"--method=ffd", "--initial=" + Out(file)}), code, file);
  }
}

TEST_F(CliTest, AVelocityGoesThroughAFile) {
  const std::vector<std::string> options = {"--method=affine,log-demons", "--iterations=20", "--levels=2",
                                            "--keep_deformation"};
  std::vector<std::string> command = Register(options);
  command.insert(command.end(),
                 {"--velocity=" + Out("v.nii.gz"), "--field=" + Out("u.nii.gz"), "--report=" + Out("report.json"),
                  "--montage=" + Out("montage.png"), "--warped=" + Out("warped.nii.gz")});
  const std::string name = Succeed(command);
  const auto report = ReadJson(Out("report.json"));
  EXPECT_EQ(report["method"], "affine,log-demons");
  EXPECT_EQ(report["stages"][0]["metric"], "ssd");
  EXPECT_EQ(report["stages"][1]["name"], "log-demons");
  EXPECT_EQ(report["stages"][1]["metric"], "ssd");
  EXPECT_EQ(report["stages"][1]["levels"].size(), 2);
  EXPECT_GE(report["inverse_consistency_mm"]["max"].get<double>(),
            report["inverse_consistency_mm"]["mean"].get<double>());
  EXPECT_LT(report["inverse_consistency_mm"]["mean"].get<double>(), 0.05 * kVoxelMm);
  EXPECT_GT(report["jacobian"]["min"].get<double>(), 0);
  EXPECT_EQ(FileContents(Out("montage.png")).substr(1, 3), "PNG");
  EXPECT_THAT(Succeed({"transform", "list"}), HasSubstr(name + "\tvelocity\t"));

  // The two kinds of files are told apart, and the field of the one is the other.
  const io::HostVelocity velocity = Value(io::ReadVelocity(Out("v.nii.gz")));
  EXPECT_EQ(velocity.geometry.size, (Int3{40, 40, 24}));
  EXPECT_NEAR(velocity.affine.m[0][3], report["matrix"][0][3].get<double>(), 1e-9);
  EXPECT_FALSE(io::ReadField(Out("v.nii.gz")).ok());
  const io::HostField field = Value(io::ReadField(Out("u.nii.gz")));
  EXPECT_FALSE(io::ReadVelocity(Out("u.nii.gz")).ok());
  Succeed({"transform", "get", name, "--out=" + Out("again.nii.gz"), "--field_encoding=velocity"});
  EXPECT_EQ(FileContents(Out("again.nii.gz")), FileContents(Out("v.nii.gz")));
  Succeed(Register(
      {options[0], options[1], options[2], options[3], "--field=" + Out("again.nii.gz"), "--field_encoding=velocity"}));
  EXPECT_EQ(FileContents(Out("again.nii.gz")), FileContents(Out("v.nii.gz")));
  Succeed({"transform", "get", name, "--out=" + Out("part.nii"), "--field_encoding=velocity", "--field_stride=2"});
  EXPECT_EQ(Value(io::ReadVelocity(Out("part.nii"))).geometry.size, (Int3{20, 20, 12}));
  // ITK knows no velocity: its file holds the displacements.
  Succeed({"transform", "get", name, "--out=" + Out("g.tfm")});
  const io::ItkTransform displaced = Value(io::ReadItkTransform(Out("g.tfm")));
  EXPECT_EQ(displaced.kind, io::ItkTransform::Kind::kDisplacement);
  EXPECT_EQ(displaced.vectors, Value(io::ReadField(Out("u.nii.gz"))).displacement);
  Fail({"transform", "get", name, "--out=" + Out("m.txt")}, "FAILED_PRECONDITION", "more than a matrix");

  for (const std::string inverse : {"", "--inverse"}) {
    std::vector<std::vector<float>> warped;
    for (const std::string& transform : {name, Out("v.nii.gz")}) {
      std::vector<std::string> warp = {"warp", "--transform=" + transform, "--moving=" + Pair("moving.nii.gz"),
                                       "--like=" + Pair("fixed.nii.gz"), "--out=" + Out("w.nii")};
      if (!inverse.empty()) warp.push_back(inverse);
      Succeed(warp);
      warped.push_back(io::ToFloat(Value(io::ReadNifti(Out("w.nii")))));
    }
    ASSERT_EQ(warped[0].size(), warped[1].size());
    for (size_t i = 0; i < warped[0].size(); ++i) ASSERT_NEAR(warped[0][i], warped[1][i], 1e-2) << i;
    if (inverse.empty()) {
      EXPECT_EQ(io::ToFloat(Value(io::ReadNifti(Out("warped.nii.gz")))), warped[0]);
    }
  }

  Succeed({"points", "--transform=" + name, "--in=" + Pair("landmarks_fixed.csv"), "--out=" + Out("there.csv")});
  Succeed({"points", "--transform=" + Out("v.nii.gz"), "--in=" + Out("there.csv"), "--inverse",
           "--out=" + Out("back.csv")});
  const std::vector<Vec3d> fixed = Value(io::ReadPoints(Pair("landmarks_fixed.csv")));
  EXPECT_GT(Distance(Value(io::ReadPoints(Out("there.csv"))), fixed), 5);
  EXPECT_LT(Distance(Value(io::ReadPoints(Out("back.csv"))), fixed), 0.2 * kVoxelMm);

  // It is a place to start from, by name and as a file.
  for (const std::string& initial : {name, Out("v.nii.gz")}) {
    Succeed(Register({"--method=log-demons", "--levels=1", "--iterations=1", "--initial=" + initial,
                      "--report=" + Out("next.json")}));
    const auto& before = report["stages"][1]["levels"].back()["value_after"];
    EXPECT_NEAR(ReadJson(Out("next.json"))["stages"][0]["levels"][0]["value_before"].get<double>(),
                before.get<double>(), 0.01 * before.get<double>());
  }
  Fail(Register({"--method=log-demons", "--initial=" + Out("u.nii.gz")}), "UNIMPLEMENTED", "initial_transform");
}

TEST_F(CliTest, LogDemonsErrorsHaveTheirCause) {
  Wrong(Register({"--method=affine", "--velocity=" + Out("v.nii.gz")}), "--velocity");
  Wrong(Register({"--method=log-demons", "--velocity=" + Out("v.tfm")}), "--velocity");
  Wrong(Register({"--method=log-demons", "--grid=" + Out("g.tfm")}), "--grid");
  Wrong(Register({"--method=ffd", "--field=" + Out("f.nii"), "--field_encoding=velocity"}), "--field_encoding");
  Wrong({"navigate", "--fixed=volumes/f", "--frames=" + world->pair, "--field_dir=" + Out("fields"),
         "--field_encoding=velocity"},
        "--field_encoding");
  for (const char* flag : {"--fluid_sigma=65", "--fluid_sigma=-1", "--diffusion_sigma=nan", "--diffusion_sigma=much",
                           "--max_step=0", "--max_step=101", "--velocity_update=exp", "--symmetric=1"}) {
    Wrong(Register({"--method=log-demons", flag}), std::string(flag).substr(0, std::string(flag).find('=')));
  }
  Fail(Register({"--method=affine,log-demons", "--metric=nmi"}), "UNIMPLEMENTED",
       "options.stages[1].log_demons.metric");
  const std::string affine = RegisteredFfd(Register({"--method=affine", "--levels=1", "--iterations=1"}));
  Fail({"transform", "get", affine, "--out=" + Out("v.nii"), "--field_encoding=velocity"}, "FAILED_PRECONDITION",
       "VELOCITY");
}

TEST_F(CliTest, TransformErrorsHaveTheirCause) {
  Fail({"transform", "get", "transforms/nothing", "--out=" + Out("m.txt")}, "NOT_FOUND", "transforms/nothing");
  Fail({"transform", "get", "transforms/nothing", "--out=" + Out("m.nii")}, "NOT_FOUND", "transforms/nothing");
  Fail({"transform", "delete", "transforms/nothing"}, "NOT_FOUND", "transforms/nothing");
  Wrong({"transform", "get", "transforms/nothing", "--out=" + Out("m.xml")}, "--out");
}

TEST_F(CliTest, NavigateReportsEachFrameAndGoesOnAfterAFailure) {
  const std::string frames = Out("frames"), fields = Out("fields");
  std::filesystem::create_directories(frames);
  std::filesystem::copy_file(Pair("moving.nii.gz"), frames + "/001.nii.gz");
  Geometry geometry;
  geometry.size = {16, 16, 16};
  const std::vector<float> constant(16 * 16 * 16, 3.0f);
  ASSERT_TRUE(io::WriteNifti(frames + "/002.nii", geometry, PixelType::kFloat32, constant.data()).ok());
  std::ofstream(frames + "/003.nii") << "no image";
  std::filesystem::copy_file(Pair("moving.nii.gz"), frames + "/004.nii.gz");
  std::ofstream(frames + "/README.txt") << "not a frame";

  const ProcessResult result = Run({"navigate", "--fixed=" + Pair("fixed.nii.gz"), "--frames=" + frames,
                                    "--method=affine", "--field_dir=" + fields, "--report=" + Out("frames.json")});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, testing::StartsWith("intrawarp: FAILED_PRECONDITION: 2 of 4 frames failed"));
  EXPECT_THAT(result.err, HasSubstr("002.nii"));
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 4);

  const auto list = ReadJson(Out("frames.json"));
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0]["frame"], "001.nii.gz");
  EXPECT_TRUE(list[0]["error"].is_null());
  EXPECT_THAT(list[1]["error"].get<std::string>(), testing::StartsWith("FAILED_PRECONDITION: "));
  EXPECT_TRUE(list[1]["matrix"].is_null());
  EXPECT_TRUE(list[2]["error"].is_string());
  for (int i : {0, 3}) EXPECT_NEAR(list[i]["matrix"][0][3].get<double>(), 9, 0.1 * kVoxelMm) << i;
  // The fourth frame is the first one again, and starts from its result.
  EXPECT_LT(list[3]["stages"][0]["levels"][0]["value_before"].get<double>(),
            list[0]["stages"][0]["levels"][0]["value_before"].get<double>());
  EXPECT_TRUE(io::ReadField(fields + "/001.nii.gz").ok());
  EXPECT_TRUE(io::ReadField(fields + "/004.nii.gz").ok());
  EXPECT_FALSE(std::filesystem::exists(fields + "/002.nii.gz"));
}

TEST_F(CliTest, NavigateWritesCoarseFieldsBesideTheFinalOnes) {
  const std::string frames = Out("coarse_frames"), fields = Out("coarse_fields");
  std::filesystem::create_directories(frames);
  std::filesystem::copy_file(Pair("moving.nii.gz"), frames + "/001.nii.gz");
  const std::vector<std::string> arguments = {"navigate",           "--fixed=" + Pair("fixed.nii.gz"),
                                              "--frames=" + frames, "--method=log-demons",
                                              "--iterations=10",    "--field_dir=" + fields,
                                              "--coarse_field",     "--session_report=" + Out("session.json")};
  Succeed(arguments);
  const auto coarse = io::ReadField(fields + "/001.coarse.nii.gz"), fine = io::ReadField(fields + "/001.nii.gz");
  ASSERT_TRUE(coarse.ok() && fine.ok()) << coarse.status() << fine.status();
  EXPECT_TRUE(coarse->geometry == fine->geometry);
  EXPECT_EQ(ReadJson(Out("session.json"))["coarse_fields"], 1);
  // The field of this frame would have the name of that one's coarse field.
  std::filesystem::copy_file(Pair("moving.nii.gz"), frames + "/001.coarse.nii.gz");
  Fail(arguments, "INVALID_ARGUMENT", "001.coarse");
}

TEST_F(CliTest, NavigateTakesFramesAsFixedImages) {
  const std::string frames = Out("fixed_frames");
  std::filesystem::create_directories(frames);
  std::filesystem::copy_file(Pair("fixed.nii.gz"), frames + "/001.nii.gz");
  const std::string moving = Succeed({"volume", "put", Pair("moving.nii.gz")});
  Succeed({"navigate", "--moving=" + moving, "--frames=" + frames, "--report=" + Out("frames.json")});
  const auto list = ReadJson(Out("frames.json"));
  ASSERT_EQ(list.size(), 1u);
  EXPECT_NEAR(list[0]["matrix"][0][3].get<double>(), 9, 0.1 * kVoxelMm);
  Succeed({"volume", "delete", moving});
}

TEST_F(CliTest, NavigateReportsItsSession) {
  const std::string frames = Out("session_frames");
  std::filesystem::create_directories(frames);
  for (const char* name : {"/1.nii.gz", "/2.nii.gz", "/3.nii.gz"}) {
    std::filesystem::copy_file(Pair("moving.nii.gz"), frames + name);
  }
  const auto navigate = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"navigate", "--fixed=" + Pair("fixed.nii.gz"), "--frames=" + frames,
                                          "--session_report=" + Out("session.json")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return Run(arguments);
  };
  ASSERT_EQ(navigate({"--session=theatre-1", "--rate=200"}).exit_status, 0);
  auto session = ReadJson(Out("session.json"));
  EXPECT_EQ(session["session"], "sessions/theatre-1");
  EXPECT_EQ(session["frames"]["ok"], 3);
  EXPECT_GT(session["latency_ms"]["p99"].get<double>(), 0);
  EXPECT_GT(session["load"].get<double>(), 0);
  EXPECT_EQ(session["resumptions"], 0);

  // A superseded frame is not a failure.
  ASSERT_EQ(navigate({"--latest"}).exit_status, 0);
  session = ReadJson(Out("session.json"));
  EXPECT_EQ(session["frames"]["ok"].get<int>() + session["frames"]["superseded"].get<int>(), 3);
  EXPECT_TRUE(session["load"].is_null());

  const ProcessResult late = navigate({"--deadline_ms=1", "--method=log-demons", "--iterations=10000"});
  EXPECT_EQ(late.exit_status, 1);
  EXPECT_THAT(late.err, HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_GT(ReadJson(Out("session.json"))["frames"]["missed"].get<int>(), 0);
}

TEST_F(CliTest, NavigateErrorsHaveTheirCause) {
  for (const char* flag : {"--rate=0", "--rate=fast", "--deadline_ms=0", "--latest=1", "--session="}) {
    Wrong({"navigate", "--fixed=volumes/f", "--frames=" + world->pair, flag},
          std::string(flag).substr(0, std::string(flag).find('=')));
  }
  Fail({"navigate", "--fixed=" + Pair("fixed.nii.gz"), "--frames=" + world->pair, "--session=a/b"}, "INVALID_ARGUMENT",
       "session_id");
  Wrong({"navigate", "--fixed=volumes/f", "--frames=" + world->pair, "--coarse_field"}, "--coarse_field");
  Fail({"navigate", "--fixed=" + Pair("fixed.nii.gz"), "--frames=" + world->pair, "--field_dir=" + Out("fields"),
        "--coarse_field"},
       "INVALID_ARGUMENT", "config.coarse_field");
  Wrong({"navigate", "--frames=" + world->pair}, "--fixed");
  Wrong({"navigate", "--fixed=volumes/a", "--moving=volumes/b", "--frames=" + world->pair}, "--fixed");
  Fail({"navigate", "--fixed=volumes/a", "--frames=" + Out("no_such_folder")}, "NOT_FOUND", "no_such_folder");
  Fail({"navigate", "--fixed=volumes/nothing", "--frames=" + world->pair}, "NOT_FOUND", "volumes/nothing");
}

// Their values as a dense matrix, by rows.
std::vector<double> Dense(const std::string& path) {
  const auto coo = io::ReadMatrixMarket(path);
  EXPECT_TRUE(coo.ok()) << coo.status();
  if (!coo.ok()) return {};
  std::vector<double> dense(static_cast<size_t>(coo->rows) * coo->columns);
  for (size_t i = 0; i < coo->values.size(); ++i) {
    dense[static_cast<size_t>(coo->row_indices[i]) * coo->columns + coo->column_indices[i]] += coo->values[i];
  }
  return dense;
}

class CliMatrixTest : public CliTest {
 protected:
  // A = [1 2 0; 0 0 3], symmetric S = [1 4; 4 0], B = [1 0; 0 1; 2 0], M = [0 1; 0 0], D = [10 0; 0 20].
  CliMatrixTest() {
    Write("a.mtx", "general\n2 3 3\n1 1 1\n1 2 2\n2 3 3\n");
    Write("s.mtx", "symmetric\n2 2 2\n1 1 1\n2 1 4\n");
    Write("b.mtx", "general\n3 2 3\n1 1 1\n2 2 1\n3 1 2\n");
    Write("m.mtx", "general\n2 2 1\n1 2 1\n");
    Write("d.mtx", "general\n2 2 2\n1 1 10\n2 2 20\n");
  }
  static void Write(const std::string& name, const std::string& text) {
    std::ofstream(Out(name)) << "%%MatrixMarket matrix coordinate real " << text;
  }
  static std::vector<double> Multiplied(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "multiply");
    flags.push_back("--out=" + Out("c.mtx"));
    EXPECT_EQ(Succeed(flags), "");
    EXPECT_EQ(Succeed({"matrix", "list"}), "");
    return Dense(Out("c.mtx"));
  }
  static std::string File(const std::string& flag, const std::string& name) { return "--" + flag + "=" + Out(name); }
};

TEST_F(CliMatrixTest, MatricesComeBackAsTheyWere) {
  EXPECT_EQ(Succeed({"matrix", "put", Out("a.mtx"), "--id=a"}), "matrices/a");
  EXPECT_EQ(Succeed({"matrix", "put", Out("a.mtx"), "--id=a"}), "matrices/a");
  EXPECT_EQ(Succeed({"matrix", "put", Out("s.mtx"), "--id=s", "--values=float64"}), "matrices/s");
  const std::string list = Succeed({"matrix", "list"});
  EXPECT_THAT(list, HasSubstr("matrices/a\t2x3\t3 entries\tfloat32\t"));
  EXPECT_THAT(list, HasSubstr("matrices/s\t2x2\t3 entries\tfloat64\t"));
  Succeed({"matrix", "get", "matrices/a", "--out=" + Out("back.mtx.gz")});
  EXPECT_THAT(Dense(Out("back.mtx.gz")), ElementsAre(1, 2, 0, 0, 0, 3));
  Succeed({"matrix", "get", "matrices/s", "--out=" + Out("back.mtx")});
  EXPECT_THAT(Dense(Out("back.mtx")), ElementsAre(1, 4, 4, 0));
  Succeed({"matrix", "delete", "matrices/a"});
  Succeed({"matrix", "delete", "matrices/s"});
}

TEST_F(CliMatrixTest, ProductsAreTheKnownOnes) {
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("b", "b.mtx")}), ElementsAre(1, 2, 6, 0));
  EXPECT_THAT(Multiplied({File("a", "s.mtx")}), ElementsAre(17, 4, 4, 16));
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), "--transpose_a"}), ElementsAre(1, 2, 0, 2, 4, 0, 0, 0, 9));
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("b", "b.mtx"), File("mask", "m.mtx")}), ElementsAre(0, 2, 0, 0));
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("b", "b.mtx"), File("mask", "m.mtx"), "--complement_mask"}),
              ElementsAre(1, 0, 6, 0));
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("b", "b.mtx"), "--alpha=2", File("addend", "d.mtx"), "--beta=0.5"}),
              ElementsAre(7, 4, 12, 10));
  EXPECT_THAT(Multiplied({File("a", "s.mtx"), "--semiring=or-and"}), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Multiplied({File("a", "s.mtx"), "--semiring=min-plus"}), ElementsAre(2, 5, 5, 8));
  for (const char* precision : {"fp16", "bf16", "tf32", "fp32", "fp64"}) {
    EXPECT_THAT(Multiplied({File("a", "s.mtx"), std::string("--precision=") + precision}), ElementsAre(17, 4, 4, 16));
  }
}

TEST_F(CliMatrixTest, AProductStaysResident) {
  Succeed({"matrix", "put", Out("a.mtx"), "--id=a"});
  EXPECT_EQ(Succeed({"multiply", "--a=matrices/a", File("b", "b.mtx"), "--keep=c", File("report", "report.json")}),
            "matrices/c");
  const nlohmann::json report = ReadJson(Out("report.json"));
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["entries"], 3);
  EXPECT_EQ(report["estimate"]["products"], 3);
  EXPECT_GT(report["latency_ms"]["total"], 0);
  Fail({"multiply", "--a=matrices/a", File("b", "b.mtx"), "--keep=c"}, "ALREADY_EXISTS", "matrices/c");
  Succeed({"matrix", "get", "matrices/c", "--out=" + Out("c.mtx")});
  EXPECT_THAT(Dense(Out("c.mtx")), ElementsAre(1, 2, 6, 0));
  Succeed({"matrix", "delete", "matrices/a"});
  Succeed({"matrix", "delete", "matrices/c"});
}

TEST_F(CliMatrixTest, WrongProductsHaveTheirCause) {
  Fail({"multiply", File("a", "a.mtx"), File("out", "x.mtx")}, "INVALID_ARGUMENT", "b: ");
  Fail({"multiply", File("a", "nothing.mtx"), File("out", "x.mtx")}, "NOT_FOUND", "nothing.mtx");
  Fail({"multiply", "--a=matrices/nothing", File("out", "x.mtx")}, "NOT_FOUND", "matrices/nothing");
  Write("lying.mtx", "general\n2 2 1000000\n1 1 1\n");
  Fail({"multiply", File("a", "lying.mtx"), File("out", "x.mtx")}, "DATA_LOSS", "lying.mtx: data: ");
  Write("outside.mtx", "general\n2 2 1\n3 1 1\n");
  Fail({"matrix", "put", Out("outside.mtx")}, "INVALID_ARGUMENT", "outside.mtx: line 3: ");
  Write("short.mtx", "general\n2 2 2\n1 1 1\n");
  Fail({"matrix", "put", Out("short.mtx")}, "DATA_LOSS", "short.mtx: data: ");
  EXPECT_FALSE(std::filesystem::exists(Out("x.mtx")));
  Wrong({"multiply", "--a=matrices/a"}, "--out");
  Wrong({"multiply", "--a=matrices/a", "--out=c.mtx", "--beta=2"}, "--beta");
  Wrong({"multiply", "--a=matrices/a", "--out=c.mtx", "--complement_mask"}, "--complement_mask");
  Wrong({"multiply", "--a=matrices/a", "--out=c.txt"}, "c.txt");
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

TEST_F(CliTest, TheVerdictIsAlwaysTold) {
  const ProcessResult good = Run(Register({"--method=affine", "--report=" + Out("good.json"), "--require_ok"}));
  const auto report = ReadJson(Out("good.json"));
  const bool is_ok = report["verdict"] == "ok";
  EXPECT_EQ(good.exit_status, is_ok ? 0 : 3) << good.err;
  EXPECT_THAT(good.err, HasSubstr("verdict: " + report["verdict"].get<std::string>()));
  EXPECT_THAT(good.err, HasSubstr("expected error "));
  for (const char* name : {"schema_version", "transform", "client", "inputs", "command_line", "reason_details"}) {
    EXPECT_TRUE(report.contains(name)) << name;
  }
  EXPECT_EQ(report["transform"].get<std::string>() + "\n", good.out);
  EXPECT_EQ(report["inputs"]["fixed"], Pair("fixed.nii.gz"));

  // Noise is related to nothing. Outputs are written all the same, and the report has the numbers behind the words.
  Geometry geometry;
  geometry.size = {40, 40, 24};
  geometry.spacing = {8, 8, 10};
  std::vector<float> noise(40 * 40 * 24);
  uint32_t state = 1;
  for (float& v : noise) v = static_cast<float>((state = state * 1664525 + 1013904223) >> 16);
  ASSERT_TRUE(io::WriteNifti(Out("noise.nii"), geometry, PixelType::kFloat32, noise.data()).ok());
  const std::vector<std::string> unrelated = {"register",
                                              "--fixed=" + Pair("fixed.nii.gz"),
                                              "--method=rigid",
                                              "--moving=" + Out("noise.nii"),
                                              "--require_ok",
                                              "--report=" + Out("bad.json"),
                                              "--warped=" + Out("bad.nii")};
  const ProcessResult bad = Run(unrelated);
  EXPECT_EQ(bad.exit_status, 3) << bad.err;
  EXPECT_THAT(bad.out, testing::StartsWith("transforms/"));
  EXPECT_THAT(bad.err, HasSubstr("verdict: review: "));
  EXPECT_THAT(bad.err, HasSubstr("intrawarp: FAILED_PRECONDITION: the verdict is review"));
  EXPECT_TRUE(std::filesystem::exists(Out("bad.nii")));
  const auto details = ReadJson(Out("bad.json"))["reason_details"];
  ASSERT_GT(details.size(), 0u);
  EXPECT_EQ(details.size(), ReadJson(Out("bad.json"))["reasons"].size());
  for (const auto& reason : details) {
    EXPECT_TRUE(reason["cause"].is_string());
    EXPECT_THAT(bad.err, HasSubstr(reason["text"].get<std::string>()));
  }
  std::vector<std::string> without = unrelated;
  without.erase(without.begin() + 4);
  EXPECT_EQ(Run(without).exit_status, 0) << "the flag is asked for by name";

  // The stored transform says the same.
  const std::string name = bad.out.substr(0, bad.out.size() - 1);
  const std::string shown = Succeed({"transform", "show", name});
  EXPECT_THAT(shown, HasSubstr("verdict\treview\n"));
  EXPECT_THAT(shown, HasSubstr("reason\t" + details[0]["text"].get<std::string>()));
  const auto stored = nlohmann::json::parse(Succeed({"transform", "show", name, "--json"}));
  EXPECT_EQ(stored["kind"], "affine");
  EXPECT_EQ(stored["report"]["reason_details"], details);
  EXPECT_EQ(stored["report"]["transform"], name);
  EXPECT_THAT(Succeed({"transform", "list"}), HasSubstr("\treview\t"));
  EXPECT_EQ(nlohmann::json::parse(Succeed({"transform", "list", "--json"})).size(), 3u);
}

TEST_F(CliTest, NavigationWithAnUnrelatedFrameIsNotOk) {
  const std::string frames = Out("verdict_frames");
  std::filesystem::create_directories(frames);
  for (const char* name : {"/f16.nii.gz", "/f8.nii.gz"}) {
    std::filesystem::copy_file(Pair("moving.nii.gz"), frames + name);
  }
  const io::HostVolume moving = Value(io::ReadNifti(Pair("moving.nii.gz")));
  std::vector<float> noise(static_cast<size_t>(moving.geometry.voxels()));
  uint32_t state = 7;
  for (float& v : noise) v = static_cast<float>((state = state * 1664525 + 1013904223) >> 16);
  ASSERT_TRUE(io::WriteNifti(frames + "/f100.nii", moving.geometry, PixelType::kFloat32, noise.data()).ok());
  const ProcessResult result =
      Run({"navigate", "--fixed=" + Pair("fixed.nii.gz"), "--frames=" + frames, "--method=rigid", "--require_ok"});
  EXPECT_EQ(result.exit_status, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("and --require_ok takes only ok"));
  const std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], testing::StartsWith("f8.nii.gz\t"));
  EXPECT_THAT(lines[1], testing::StartsWith("f16.nii.gz\t"));
  EXPECT_THAT(lines[2], testing::StartsWith("f100.nii\treview\t"));
  for (const std::string& line : lines) {
    EXPECT_EQ(std::count(line.begin(), line.end(), '\t'), 4) << line;
    EXPECT_THAT(line, HasSubstr("\texpected error "));
  }
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

TEST_F(CliTest, AFileWithoutAnOrientationIsTold) {
  const auto bare = [](const std::string& from, const std::string& to) {
    // A MetaImage without TransformMatrix.
    const io::HostVolume volume = Value(io::ReadNifti(from));
    ASSERT_TRUE(io::WriteVolumeFile(to, volume).ok());
    std::string text = FileContents(to);
    for (const char* key : {"TransformMatrix =", "Offset ="}) {
      const size_t begin = text.find(key), end = text.find('\n', begin);
      ASSERT_NE(begin, std::string::npos);
      text.erase(begin, end - begin + 1);
    }
    std::ofstream(to, std::ios::binary) << text;
  };
  bare(Pair("fixed.nii.gz"), Out("bare_fixed.mha"));
  bare(Pair("moving.nii.gz"), Out("bare_moving.mha"));
  const std::vector<std::string> command = {"register", "--fixed=" + Out("bare_fixed.mha"),
                                            "--moving=" + Out("bare_moving.mha"), "--method=rigid"};
  const ProcessResult told = Run(command);
  EXPECT_EQ(told.exit_status, 0) << told.err;
  for (const char* name : {"bare_fixed.mha", "bare_moving.mha"}) {
    EXPECT_THAT(told.err, HasSubstr(std::string(name) + ": the file states no orientation"));
  }
  std::vector<std::string> settled = command;
  settled.push_back("--assume_orientation=LPS");
  Succeed(settled);
  const ProcessResult put = Run({"volume", "put", Out("bare_fixed.mha"), "--id=lps"});
  EXPECT_THAT(put.err, HasSubstr("--assume_orientation"));
  Succeed({"volume", "put", Out("bare_fixed.mha"), "--id=ras", "--assume_orientation=RAS"});
  Succeed({"volume", "get", "volumes/ras", "--out=" + Out("ras.nii")});
  Succeed({"volume", "get", "volumes/lps", "--out=" + Out("lps.nii")});
  const Geometry ras = Value(io::ReadNifti(Out("ras.nii"))).geometry,
                 lps = Value(io::ReadNifti(Out("lps.nii"))).geometry;
  EXPECT_EQ(ras.direction[0][0], -lps.direction[0][0]);
  EXPECT_EQ(ras.direction[1][1], -lps.direction[1][1]);
  EXPECT_EQ(ras.direction[2][2], lps.direction[2][2]);
  for (const char* id : {"volumes/ras", "volumes/lps"}) Succeed({"volume", "delete", id});
}

TEST_F(CliTest, PointsOutsideTheFixedImageAreTold) {
  const std::string name = Succeed(Register({"--method=affine", "--iterations=1", "--levels=1"}));
  std::ofstream(Out("outside.csv")) << "x,y,z\n0,0,0\n1000,0,0\n0,0,-500\n";
  const ProcessResult result =
      Run({"points", "--transform=" + name, "--in=" + Out("outside.csv"), "--out=" + Out("q.csv")});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err, HasSubstr("2 of 3 points lie outside the fixed image"));
  EXPECT_THAT(result.err, HasSubstr("by up to 840 mm"));
  EXPECT_EQ(Value(io::ReadPoints(Out("q.csv"))).size(), 3u);
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

TEST_F(CliTest, AutoOnACpuTellsItsCostFirst) {
  const ProcessResult result = Run(Register({"--budget_ms=1"}));
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, testing::StartsWith("cost: auto on the server's CPU, 40x40x24: some "));
  EXPECT_THAT(Run(Register({"--method=rigid", "--budget_ms=1"})).err, Not(HasSubstr("cost: ")));
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
