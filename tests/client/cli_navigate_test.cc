// SPDX-License-Identifier: Apache-2.0
// The command line's navigate: frames from files, their fields and reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "io/format/nifti.h"
#include "tests/client/cli_fixture.h"
#include "tests/client/process.h"

namespace intrawarp::client {
namespace {

using ::testing::HasSubstr;

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

// In the second frame a half shows what lies four voxels further: its mask hides it. CliTest sees
// that no mask is left.
TEST_F(CliTest, NavigateTakesMasksOfSingleFrames) {
  const std::string frames = Out("masked_frames"), masks = Out("frame_masks");
  std::filesystem::create_directories(frames);
  std::filesystem::create_directories(masks);
  const io::HostVolume moving = Value(io::ReadNifti(Pair("moving.nii.gz")));
  const std::vector<float> voxels = io::ToFloat(moving);
  std::vector<float> covered = voxels, mask(voxels.size(), 1);
  for (size_t i = 0; i < covered.size(); ++i) {
    const int64_t n = moving.geometry.size.x, x = static_cast<int64_t>(i) % n;
    if (2 * x >= n) continue;
    covered[i] = voxels[i + 4];
    mask[i] = 0;
  }
  const std::string clean = frames + "/001.nii.gz", broken = frames + "/002.nii";
  std::filesystem::copy_file(Pair("moving.nii.gz"), clean);
  ASSERT_TRUE(io::WriteNifti(broken, moving.geometry, PixelType::kFloat32, covered.data()).ok());
  ASSERT_TRUE(io::WriteNifti(masks + "/002.nii.gz", moving.geometry, PixelType::kFloat32, mask.data()).ok());
  const std::vector<std::string> arguments = {"navigate", "--fixed=" + Pair("fixed.nii.gz"), "--frames=" + frames,
                                              "--method=rigid", "--report=" + Out("frames.json")};
  const auto with = [&](const std::string& flag) {
    std::vector<std::string> all = arguments;
    all.push_back(flag);
    return all;
  };
  const auto offset = [&](int frame) { return ReadJson(Out("frames.json"))[frame]["matrix"][0][3].get<double>(); };
  const auto astray = [&] { return std::abs(offset(1) - offset(0)); };
  Succeed(arguments);
  const double without = astray();
  for (const char* const flag : {"--frame_masks=", "--frame_weights="}) {
    Succeed(with(flag + masks));
    EXPECT_LT(astray(), 0.5 * without) << flag << ", without " << without;
  }
  std::filesystem::copy_file(masks + "/002.nii.gz", masks + "/003.nii.gz");
  Fail(with("--frame_masks=" + masks), "INVALID_ARGUMENT", "--frame_masks: no frame is called 003");
  std::filesystem::rename(masks + "/003.nii.gz", masks + "/002.nii");
  Fail(with("--frame_weights=" + masks), "INVALID_ARGUMENT", "--frame_weights: two files are called 002");
  Fail(with("--frame_masks=" + Out("nowhere")), "NOT_FOUND", "nowhere");
}

// A mask that does not suit its frame is the error of that frame.
TEST_F(CliTest, NavigateGoesOnAfterAMaskThatDoesNotSuit) {
  const std::string frames = Out("frames_of_masks"), masks = Out("masks");
  for (const std::string& folder : {frames, masks}) std::filesystem::create_directories(folder);
  for (const char* name : {"/1.nii.gz", "/2.nii.gz", "/3.nii.gz"}) {
    std::filesystem::copy_file(Pair("moving.nii.gz"), frames + name);
  }
  std::ofstream(masks + "/1.nii") << "no image";
  Geometry small;
  small.size = {9, 8, 7};
  const std::vector<float> ones(static_cast<size_t>(small.voxels()), 1);
  ASSERT_TRUE(io::WriteNifti(masks + "/2.nii", small, PixelType::kFloat32, ones.data()).ok());
  const ProcessResult result = Run({"navigate", "--fixed=" + Pair("fixed.nii.gz"), "--frames=" + frames,
                                    "--frame_masks=" + masks, "--method=rigid", "--report=" + Out("frames.json")});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, HasSubstr("2 of 3 frames failed"));
  const auto list = ReadJson(Out("frames.json"));
  ASSERT_EQ(list.size(), 3u);
  EXPECT_THAT(list[0]["error"].get<std::string>(), HasSubstr("the frame's masks"));
  EXPECT_THAT(list[1]["error"].get<std::string>(), HasSubstr("frame.mask"));
  EXPECT_TRUE(list[2]["error"].is_null());
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

}  // namespace
}  // namespace intrawarp::client
