// SPDX-License-Identifier: Apache-2.0
// The command line's volumes: up, down, every format, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/format/grid_files.h"
#include "io/format/nifti.h"
#include "tests/client/cli_fixture.h"
#include "tests/client/process.h"

namespace intrawarp::client {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

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

}  // namespace
}  // namespace intrawarp::client
