// SPDX-License-Identifier: Apache-2.0
// The command line's transforms: warps, points, fields, control grids and velocities through files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/geometry/vec.h"
#include "io/format/grid_files.h"
#include "io/format/itk_transform.h"
#include "io/format/matrix_text.h"
#include "io/format/nifti.h"
#include "io/format/points.h"
#include "tests/client/cli_fixture.h"
#include "tests/client/process.h"

namespace intrawarp::client {
namespace {

using ::testing::HasSubstr;

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

  // It is a place to start from, by name and as a file; on half the grid not quite the same one.
  for (const std::string& initial : {name, Out("v.nii.gz")}) {
    Succeed(Register({"--method=log-demons", "--levels=1", "--iterations=1", "--velocity_grid=full",
                      "--initial=" + initial, "--report=" + Out("next.json")}));
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

}  // namespace
}  // namespace intrawarp::client
