// SPDX-License-Identifier: Apache-2.0
// The command line's register: what it finds, writes, reports and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/geometry/vec.h"
#include "io/format/matrix_text.h"
#include "io/format/nifti.h"
#include "io/format/points.h"
#include "tests/client/cli_fixture.h"
#include "tests/client/process.h"

namespace intrawarp::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

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
  std::vector<std::string> command = {"register",
                                      "--fixed=" + fixed,
                                      "--moving=" + moving,
                                      "--method=affine",
                                      "--report=" + Out("report.json"),
                                      "--fixed_mask=" + Pair("mask.nii.gz")};
  std::vector<std::string> from_matrix = command;
  from_matrix.push_back("--initial=" + (world->folder / "truth.txt"));
  const std::string first = Succeed(from_matrix);
  const auto report = ReadJson(Out("report.json"));
  EXPECT_NEAR(report["matrix"][0][3].get<double>(), 9, 0.1 * kVoxelMm);
  std::vector<std::string> from_transform = command;
  from_transform.push_back("--initial=" + first);
  const std::string second = Succeed(from_transform);
  EXPECT_NE(first, second);
  command.back() = "--fixed_weight=" + Pair("mask.nii.gz");
  command[4] = "--report=" + Out("weighed.json");
  command.push_back("--initial=" + first);
  Succeed(command);
  const auto weighed = ReadJson(Out("weighed.json"));
  EXPECT_NEAR(weighed["matrix"][0][3].get<double>(), 9, 0.1 * kVoxelMm);
  EXPECT_EQ(weighed["inputs"]["fixed_weight"], Pair("mask.nii.gz"));
  EXPECT_EQ(weighed["provenance"]["fixed_weight_digest"], report["provenance"]["fixed_mask_digest"]);
  EXPECT_TRUE(weighed["provenance"]["fixed_mask_digest"].is_null());
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
  Fail(Register({"--method=affine", "--fixed_weight=" + Pair("fixed.nii.gz")}), "INVALID_ARGUMENT",
       "options.fixed_weight");
  Fail(Register({"--method=affine", "--moving_weight=volumes/nothing"}), "NOT_FOUND", "volumes/nothing");
}

// Smooth blobs of all brightnesses within 60 mm of the origin.
class Blobs {
 public:
  explicit Blobs(unsigned seed) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<double> u(-1, 1);
    for (int i = 0; i < 90; ++i) {
      blobs_.push_back({{60 * u(engine), 60 * u(engine), 60 * u(engine)}, 9 + 4 * u(engine), 50 * u(engine)});
    }
  }
  double operator()(Vec3d p) const {
    double sum = 100;
    for (const Blob& b : blobs_) sum += b.value * std::exp(-Dot(p - b.center, p - b.center) / (b.radius * b.radius));
    return sum;
  }

 private:
  struct Blob {
    Vec3d center;
    double radius, value;
  };
  std::vector<Blob> blobs_;
};

// A block that slides by 8 mm along y, and its surroundings, which stay.
void WriteSlidingPair(const std::string& fixed, const std::string& moving) {
  Geometry g;
  g.size = {36, 34, 30};
  g.spacing = {2, 2, 2};
  g.origin = {-35, -33, -29};
  const Blobs wall(21), block(22);
  std::vector<float> at_first, later;
  for (int i = 0; i < g.voxels(); ++i) {
    const Vec3d p{g.origin.x + 2 * (i % 36), g.origin.y + 2 * (i / 36 % 34), g.origin.z + 2 * (i / (36 * 34))};
    const bool slides = std::abs(p.x) < 18 && std::abs(p.z) < 16;
    at_first.push_back(static_cast<float>(slides ? block(p) : wall(p)));
    later.push_back(static_cast<float>(slides ? block(p + Vec3d{0, 8, 0}) : wall(p)));
  }
  ASSERT_TRUE(io::WriteNifti(moving, g, PixelType::kFloat32, at_first.data()).ok());
  ASSERT_TRUE(io::WriteNifti(fixed, g, PixelType::kFloat32, later.data()).ok());
}

// The affine pair of all tests has nothing that slides.
TEST_F(CliTest, SlidingTellsWhetherAnythingSlid) {
  WriteSlidingPair(Out("later.nii"), Out("at_first.nii"));
  const auto stage_of = [&](const std::vector<std::string>& arguments, ProcessResult* result) {
    *result = Run(arguments);
    EXPECT_EQ(result->exit_status, 0) << result->err;
    return ReadJson(Out("report.json"))["stages"].back();
  };
  const std::string report = "--report=" + Out("report.json");
  ProcessResult result;
  const double fraction =
      stage_of({"register", "--fixed=" + Out("later.nii"), "--moving=" + Out("at_first.nii"), "--method=ffd",
                "--metric=ssd", "--spacing_vox=10", "--iterations=30", "--sliding", report},
               &result)["second_layer_fraction"];
  // 0.27 of the voxels are in the block, and a part of these has no source.
  EXPECT_GT(fraction, 0.15);
  EXPECT_LT(fraction, 0.3);
  EXPECT_THAT(result.err, HasSubstr(absl::StrFormat("sliding: two layers; the second one has %.3g %% of the voxels\n",
                                                    100 * fraction)));
  EXPECT_THAT(Succeed({"transform", "show", result.out.substr(0, result.out.find('\n'))}),
              HasSubstr("sliding\ttwo layers; "));

  const std::vector<std::string> plain = {"--method=affine,ffd", "--metric=ssd", "--iterations=3", report};
  std::vector<std::string> sliding = plain;
  sliding.push_back("--sliding");
  EXPECT_EQ(stage_of(Register(sliding), &result)["second_layer_fraction"], 0.0);
  EXPECT_THAT(result.err, HasSubstr("sliding: one layer;"));
  EXPECT_TRUE(stage_of(Register(plain), &result)["second_layer_fraction"].is_null());
  EXPECT_THAT(result.err, Not(HasSubstr("sliding")));
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

TEST_F(CliTest, AutoOnACpuTellsItsCostFirst) {
  const ProcessResult result = Run(Register({"--budget_ms=1"}));
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, testing::StartsWith("cost: auto on the server's CPU, 40x40x24: some "));
  EXPECT_THAT(Run(Register({"--method=rigid", "--budget_ms=1"})).err, Not(HasSubstr("cost: ")));
}

}  // namespace
}  // namespace intrawarp::client
