// SPDX-License-Identifier: Apache-2.0
// Files that ITK writes and this library reads, and the other way round, compared as functions: 10,000 points through
// each. INTRAWARP_ITK_PEER names the program that tests/io/itk_peer builds; tests/io/round_trips builds it, runs these
// tests and prints their table.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/file/file.h"
#include "io/format/grid_files.h"
#include "io/format/itk_transform.h"
#include "tests/io/format/round_trip.h"

namespace intrawarp::io {
namespace {

class ItkRoundTripTest : public FileTest {
 protected:
  void SetUp() override {
    if (std::getenv("INTRAWARP_ITK_PEER") == nullptr) GTEST_SKIP() << "INTRAWARP_ITK_PEER is not set";
  }

  void Peer(const std::string& arguments) {
    const std::string command = absl::StrCat("'", std::getenv("INTRAWARP_ITK_PEER"), "' ", arguments);
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command;
  }

  std::string GridText(const Geometry& g) {
    std::string text = absl::StrCat(g.size.x, " ", g.size.y, " ", g.size.z);
    for (int a = 0; a < 3; ++a) absl::StrAppend(&text, " ", FormatDouble(g.origin[a]));
    for (int a = 0; a < 3; ++a) absl::StrAppend(&text, " ", FormatDouble(g.spacing[a]));
    for (const auto& row : g.direction)
      for (double v : row) absl::StrAppend(&text, " ", FormatDouble(v));
    return text;
  }

  std::vector<Vec3d> MappedByItk(const std::string& file, const std::vector<Vec3d>& points) {
    std::string text;
    for (const Vec3d& p : points) {
      absl::StrAppend(&text, FormatDouble(p.x), " ", FormatDouble(p.y), " ", FormatDouble(p.z), "\n");
    }
    Put("points", text);
    Peer(absl::StrCat("map ", file, " ", Path("points"), " ", Path("mapped")));
    std::ifstream in(Path("mapped"));
    std::vector<Vec3d> mapped;
    for (Vec3d q; in >> q.x >> q.y >> q.z;) mapped.push_back(q);
    EXPECT_EQ(mapped.size(), points.size());
    return mapped;
  }

  // The largest distance between what ITK makes of a file and what a transform is.
  double LargestDifference(const std::string& file, const ItkTransform& transform, const std::vector<Vec3d>& points) {
    const std::vector<Vec3d> theirs = MappedByItk(file, points);
    double largest = theirs.size() == points.size() ? 0 : HUGE_VAL;
    for (size_t i = 0; i < theirs.size(); ++i) {
      const Vec3d d = theirs[i] - Mapped(transform, points[i]);
      largest = std::max(largest, std::sqrt(Dot(d, d)));
    }
    return largest;
  }

  void Row(const std::string& form, const std::string& file, const char* grid, const char* way, double largest) {
    std::printf("| %s | %s | %s | %s | %.2g |\n", form.c_str(), file.c_str(), grid, way, largest);
    EXPECT_LE(largest, kTolerance) << form << " " << file << " " << grid << " " << way;
  }
};

TEST_F(ItkRoundTripTest, WhatIsWrittenIsWhatItkReads) {
  for (const NamedGrid& grid : Grids({9, 8, 7})) {
    ItkTransform affine, spline, field;
    affine.affine = spline.affine = SomeAffine();
    spline.kind = ItkTransform::Kind::kControlGrid;
    field.kind = ItkTransform::Kind::kDisplacement;
    spline.grid = field.grid = grid.geometry;
    spline.vectors = field.vectors = RandomFloats(3 * grid.geometry.voxels(), 5, -10, 10);
    ItkTransform both = field;
    both.affine = SomeAffine();
    const std::pair<const char*, const ItkTransform*> forms[] = {
        {"affine", &affine}, {"affine, B-spline", &spline}, {"displacement", &field}, {"affine, displacement", &both}};
    for (const auto& [form, transform] : forms) {
      const std::vector<Vec3d> points = PointsIn(grid.geometry, MarginOf(transform->kind));
      for (const char* suffix : {".tfm", ".h5"}) {
        const std::string file = Path(absl::StrCat("ours", suffix));
        ASSERT_THAT(WriteItkTransform(file, *transform), Succeeds());
        Row(form, suffix, grid.name, "to ITK", LargestDifference(file, *transform, points));
      }
    }
    for (const char* suffix : {".nii", ".nii.gz", ".nrrd", ".nhdr", ".mha", ".mhd"}) {
      const std::string file = Path(absl::StrCat("ours", suffix));
      ASSERT_THAT(WriteFieldFile(file, field.grid, field.vectors.data()), Succeeds());
      // NIfTI keeps geometry as float32: points just outside of the grid that ITK sees are not moved by it.
      const std::vector<Vec3d> points = PointsIn(grid.geometry, 0.01);
      Row("displacement", suffix, grid.name, "to ITK", LargestDifference(file, field, points));
    }
  }
}

TEST_F(ItkRoundTripTest, WhatItkWritesIsRead) {
  for (const NamedGrid& grid : Grids({9, 8, 7})) {
    for (const char* kind :
         {"affine", "euler", "euler_zyx", "versor", "versor_rigid", "similarity", "scale", "translation", "affines",
          "bspline", "displacement", "affine_bspline", "affine_displacement", "bspline_rigid", "displacement_rigid"}) {
      for (const char* suffix : {".tfm", ".h5"}) {
        const std::string file = Path(absl::StrCat("theirs", suffix));
        Peer(absl::StrCat("make ", kind, " ", file, " ", GridText(grid.geometry)));
        const auto read = ReadItkTransform(file);
        ASSERT_THAT(read, Succeeds());
        const Geometry& where = read->kind == ItkTransform::Kind::kAffine ? grid.geometry : read->grid;
        const std::vector<Vec3d> points = PointsIn(where, MarginOf(read->kind));
        Row(kind, suffix, grid.name, "from ITK", LargestDifference(file, *read, points));
      }
    }
    for (const char* suffix : {".nii", ".nii.gz", ".nrrd", ".nhdr", ".mha", ".mhd"}) {
      const std::string file = Path(absl::StrCat("theirs", suffix));
      Peer(absl::StrCat("make displacement ", file, " ", GridText(grid.geometry)));
      const auto read = ReadFieldFile(file);
      ASSERT_THAT(read, Succeeds());
      const ItkTransform field{ItkTransform::Kind::kDisplacement, AffineMap::Identity(), read->geometry,
                               read->displacement};
      Row("displacement", suffix, grid.name, "from ITK",
          LargestDifference(file, field, PointsIn(read->geometry, 0.01)));
    }
  }
}

// The largest distance between corners of two grids.
double CornerDistance(const Geometry& a, const Geometry& b) {
  double largest = 0;
  for (int corner = 0; corner < 8; ++corner) {
    Vec3d index;
    for (int axis = 0; axis < 3; ++axis) index[axis] = corner >> axis & 1 ? a.size[axis] - 1 : 0;
    const Vec3d d = IndexToPhysical(a)(index) - IndexToPhysical(b)(index);
    largest = std::max(largest, std::sqrt(Dot(d, d)));
  }
  return largest;
}

// Ours to ITK to ours, between every two formats.
TEST_F(ItkRoundTripTest, VolumesAndFieldsThroughItk) {
  const char* const suffixes[] = {".nii.gz", ".nrrd", ".nhdr", ".mha", ".mhd"};
  for (const NamedGrid& grid : Grids({9, 8, 7})) {
    const HostVolume volume = NoiseVolume(grid.geometry, PixelType::kInt16);
    const HostField field = NoiseField(grid.geometry);
    for (const char* from : suffixes) {
      for (const char* to : suffixes) {
        const std::string ours = Path(absl::StrCat("ours", from)), theirs = Path(absl::StrCat("theirs", to));
        ASSERT_THAT(WriteVolumeFile(ours, volume), Succeeds());
        Peer(absl::StrCat("copy ", ours, " ", theirs));
        const auto read = ReadVolumeFile(theirs);
        ASSERT_THAT(read, Succeeds());
        EXPECT_EQ(ToFloat(*read), ToFloat(volume)) << from << to;
        Row("volume", absl::StrCat(from, " to ", to), grid.name, "through ITK",
            CornerDistance(read->geometry, grid.geometry));

        ASSERT_THAT(WriteFieldFile(ours, field.geometry, field.displacement.data()), Succeeds());
        Peer(absl::StrCat("copy_field ", ours, " ", theirs));
        const auto vectors = ReadFieldFile(theirs);
        ASSERT_THAT(vectors, Succeeds());
        EXPECT_EQ(vectors->displacement, field.displacement) << from << to;
        EXPECT_LE(CornerDistance(vectors->geometry, grid.geometry), kTolerance);
      }
    }
  }
}

}  // namespace
}  // namespace intrawarp::io
