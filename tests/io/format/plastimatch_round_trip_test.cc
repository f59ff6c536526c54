// SPDX-License-Identifier: Apache-2.0
// Transforms that this library writes and plastimatch maps points by, and fields that plastimatch writes and this
// library reads: 10,000 points each. INTRAWARP_PLASTIMATCH names the program; tests/io/plastimatch_round_trips runs
// these tests and prints their table. B-splines are left out: docs/use/formats.md says why.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "io/format/grid_files.h"
#include "io/format/itk_transform.h"
#include "tests/io/format/round_trip.h"

namespace intrawarp::io {
namespace {

// Points on a grid of their own: plastimatch maps the voxels of an image.
constexpr Int3 kSamples = {25, 20, 21};
static_assert(kSamples.x * kSamples.y * kSamples.z >= kPoints);

// Within `margin` voxels of the grid's first and last, at no voxel of it; by `turn` the samples' axes are others than
// the grid's.
Geometry SamplesIn(const Geometry& grid, double margin, bool turn) {
  Geometry samples = grid;
  samples.size = kSamples;
  if (turn) {
    const Geometry other = grid.direction[0][0] == 1 ? ObliqueGeometry({1, 1, 1}) : Geometry();
    std::copy(&other.direction[0][0], &other.direction[0][0] + 9, &samples.direction[0][0]);
  }
  Vec3d first, middle;
  for (int a = 0; a < 3; ++a) {
    const double cells = grid.size[a] - 1 - 2 * margin;
    first[a] = margin;
    middle[a] = (grid.size[a] - 1) / 2.0;
    samples.spacing[a] = cells * grid.spacing[a] / (kSamples[a] - 1);
  }
  const AffineMap to_physical = IndexToPhysical(grid);
  samples.origin = to_physical(first);
  if (!turn) return samples;
  // A box that stays inside of the grid however it is turned.
  double least = HUGE_VAL;
  for (int a = 0; a < 3; ++a) least = std::min(least, samples.spacing[a] * (kSamples[a] - 1));
  for (int a = 0; a < 3; ++a) samples.spacing[a] = least / std::sqrt(3.0) / (kSamples[a] - 1);
  const Vec3d center = to_physical(middle);
  const Vec3d half = 0.5 * (IndexToPhysical(samples)({kSamples.x - 1.0, kSamples.y - 1.0, kSamples.z - 1.0}) -
                            IndexToPhysical(samples)({0, 0, 0}));
  samples.origin = center - half;
  return samples;
}

class PlastimatchRoundTripTest : public FileTest {
 protected:
  void SetUp() override {
    if (std::getenv("INTRAWARP_PLASTIMATCH") == nullptr) GTEST_SKIP() << "INTRAWARP_PLASTIMATCH is not set";
  }

  bool Plastimatch(const std::string& arguments) const {
    const std::string command =
        absl::StrCat("'", std::getenv("INTRAWARP_PLASTIMATCH"), "' ", arguments, " >'", Path("said"), "' 2>&1");
    const int status = std::system(command.c_str());
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  // Lets plastimatch sample a transform on the voxels of an image of this grid, as a field in `out`.
  bool SampleInto(const std::string& out, const std::string& file, const Geometry& samples) {
    EXPECT_THAT(WriteVolumeFile(Path("samples.mha"), NoiseVolume(samples, PixelType::kUint8)), Succeeds());
    std::filesystem::remove(out);
    return Plastimatch(absl::StrCat("warp --input ", Path("samples.mha"), " --fixed ", Path("samples.mha"), " --xf ",
                                    file, " --output-img ", Path("warped.mha"), " --output-vf ", out)) &&
           std::filesystem::exists(out);
  }

  static double LargestDifference(const HostField& field, const ItkTransform& transform) {
    const AffineMap to_physical = IndexToPhysical(field.geometry);
    double largest = 0;
    int64_t i = 0;
    for (int z = 0; z < field.geometry.size.z; ++z) {
      for (int y = 0; y < field.geometry.size.y; ++y) {
        for (int x = 0; x < field.geometry.size.x; ++x, ++i) {
          const Vec3d p = to_physical({1.0 * x, 1.0 * y, 1.0 * z});
          const float* const u = &field.displacement[3 * i];
          const Vec3d d = p + Vec3d{u[0], u[1], u[2]} - Mapped(transform, p);
          largest = std::max(largest, std::sqrt(Dot(d, d)));
        }
      }
    }
    return largest;
  }

  void Row(const std::string& form, const std::string& file, const char* grid, const char* way, double largest) {
    std::printf("| %s | %s | %s | %s | %.2g |\n", form.c_str(), file.c_str(), grid, way, largest);
    EXPECT_LE(largest, kTolerance) << form << " " << file << " " << grid << " " << way;
  }

  // The row of a file through plastimatch, over samples along the axes of `grid` and turned against them.
  void Compare(const std::string& form, const std::string& file, const char* suffix, const NamedGrid& grid,
               const ItkTransform& transform, double margin) {
    for (const bool turn : {false, true}) {
      const std::string out = Path("sampled.mha");
      ASSERT_TRUE(SampleInto(out, file, SamplesIn(grid.geometry, margin, turn))) << form << suffix << Get(Path("said"));
      const auto read = ReadFieldFile(out);
      ASSERT_THAT(read, Succeeds());
      Row(form, suffix, grid.name, "to plastimatch", LargestDifference(*read, transform));
    }
  }
};

TEST_F(PlastimatchRoundTripTest, WhatIsWrittenIsWhatPlastimatchReads) {
  for (const NamedGrid& grid : Grids({9, 8, 7})) {
    ItkTransform affine, field;
    affine.affine = SomeAffine();
    field.kind = ItkTransform::Kind::kDisplacement;
    field.grid = grid.geometry;
    field.vectors = RandomFloats(3 * grid.geometry.voxels(), 5, -10, 10);
    ASSERT_THAT(WriteItkTransform(Path("affine.tfm"), affine), Succeeds());
    Compare("affine", Path("affine.tfm"), ".tfm", grid, affine, 0.01);
    for (const char* suffix : {".mha", ".mhd", ".nrrd", ".nhdr", ".nii.gz"}) {
      const std::string file = Path(absl::StrCat("field", suffix));
      ASSERT_THAT(WriteFieldFile(file, field.grid, field.vectors.data()), Succeeds());
      Compare("displacement", file, suffix, grid, field, 0.01);
    }
  }
}

TEST_F(PlastimatchRoundTripTest, WhatPlastimatchWritesIsRead) {
  for (const NamedGrid& grid : Grids({9, 8, 7})) {
    ItkTransform affine;
    affine.affine = SomeAffine();
    ASSERT_THAT(WriteItkTransform(Path("affine.tfm"), affine), Succeeds());
    for (const char* suffix : {".mha", ".mhd", ".nrrd", ".nhdr", ".nii.gz"}) {
      const std::string out = Path(absl::StrCat("theirs", suffix));
      ASSERT_TRUE(SampleInto(out, Path("affine.tfm"), SamplesIn(grid.geometry, 0.01, false))) << Get(Path("said"));
      const auto read = ReadFieldFile(out);
      ASSERT_THAT(read, Succeeds()) << suffix;
      Row("displacement", suffix, grid.name, "from plastimatch", LargestDifference(*read, affine));
    }
  }
}

}  // namespace
}  // namespace intrawarp::io
