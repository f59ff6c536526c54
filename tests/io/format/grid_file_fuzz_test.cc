// SPDX-License-Identifier: Apache-2.0
// Seeded mutations of every kind of file that holds a grid or a transform: bytes flipped, runs overwritten, cut and
// doubled. A reader ends with a value or a status, never with a crash, and takes no more memory than its limit.
#include <cstdlib>
#include <functional>

#include "absl/strings/str_cat.h"
#include "io/format/grid_files.h"
#include "io/format/itk_transform.h"
#include "tests/io/format/grid_file_test.h"

namespace intrawarp::io {
namespace {

// INTRAWARP_FUZZ_MUTATIONS asks for another number of mutations a file.
int Mutations() {
  const char* asked = std::getenv("INTRAWARP_FUZZ_MUTATIONS");
  return asked == nullptr ? 200 : std::atoi(asked);
}
constexpr int64_t kLimit = int64_t{1} << 20;

// Numbers that break arithmetic, as headers hold them.
constexpr const char* kWords[] = {
    "-1",  "0",  "1e308", "nan", "99999999999999999999", "4294967295", "(", ")", "\n", "none", ":=", "= ",
    "../", "%d", ",",     "LIST"};

std::string Mutated(std::string bytes, std::mt19937& engine) {
  const auto below = [&](size_t n) {
    return n == 0 ? size_t{0} : std::uniform_int_distribution<size_t>(0, n - 1)(engine);
  };
  // Headers, which lie in front, are hit more often than samples.
  const auto place = [&] { return below(2) == 0 ? below(std::min<size_t>(bytes.size(), 600)) : below(bytes.size()); };
  for (size_t change = 1 + below(4); change > 0 && !bytes.empty(); --change) {
    const size_t at = place();
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(engine());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, 1 + below(16));
        break;
      case 4:
        bytes.insert(at, kWords[below(std::size(kWords))]);
        break;
      default:
        bytes.insert(at, bytes.substr(at, 1 + below(64)));
        break;
    }
  }
  return bytes;
}

#ifdef __SANITIZE_ADDRESS__
// The HDF5 library loses some hundred bytes where a file's metadata is broken.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
#endif

class GridFileFuzzTest : public FileTest {
 protected:
  // Mutations of the file at `path`, each given to `read`.
  void Mutate(const std::string& path, const std::function<absl::Status(const std::string&)>& read) {
    const std::string good = Get(path);
    ASSERT_THAT(read(path), Succeeds()) << path;
    std::mt19937 engine(1);
    const int mutations = Mutations();
    int refused = 0;
    for (int i = 0; i < mutations; ++i) {
      Put(std::filesystem::path(path).filename(), Mutated(good, engine));
      const absl::Status status = read(path);
      refused += !status.ok();
      EXPECT_NE(status.code(), absl::StatusCode::kUnknown) << status;
      EXPECT_NE(status.code(), absl::StatusCode::kInternal) << status;
      if (!NamedField(status).empty()) {
        EXPECT_EQ(FieldOf(status), NamedField(status)) << status;
      }
    }
    // Most changes are noticed; those of samples cannot be.
    EXPECT_GT(refused, mutations / 4) << path;
  }
};

TEST_F(GridFileFuzzTest, Volumes) {
  const HostVolume volume = NoiseVolume(ObliqueGeometry({7, 5, 3}), PixelType::kInt16);
  for (const char* suffix : {".nii", ".nii.gz", ".nrrd", ".nhdr", ".mha", ".mhd"}) {
    const std::string path = Path(absl::StrCat("v", suffix));
    ASSERT_THAT(WriteVolumeFile(path, volume), Succeeds());
    Mutate(path, [](const std::string& p) { return ReadVolumeFile(p, kLimit).status(); });
  }
}

TEST_F(GridFileFuzzTest, Fields) {
  const HostField field = NoiseField(ObliqueGeometry({4, 3, 2}));
  for (const char* suffix : {".nii", ".nrrd", ".nhdr", ".mha", ".mhd"}) {
    const std::string path = Path(absl::StrCat("f", suffix));
    ASSERT_THAT(WriteFieldFile(path, field.geometry, field.displacement.data()), Succeeds());
    Mutate(path, [](const std::string& p) { return ReadFieldFile(p, kLimit).status(); });
  }
}

TEST_F(GridFileFuzzTest, Transforms) {
  ItkTransform affine, spline;
  affine.affine.m[0][1] = 0.25;
  spline.kind = ItkTransform::Kind::kControlGrid;
  spline.grid = ObliqueGeometry({4, 4, 4});
  spline.vectors = RandomFloats(3 * spline.grid.voxels(), 5, -10, 10);
  ItkTransform field = spline;
  field.kind = ItkTransform::Kind::kDisplacement;
  for (const ItkTransform* transform : {&affine, &spline, &field}) {
    for (const char* suffix : {".tfm", ".h5"}) {
      const std::string path = Path(absl::StrCat("t", suffix));
      ASSERT_THAT(WriteItkTransform(path, *transform), Succeeds());
      Mutate(path, [](const std::string& p) { return ReadItkTransform(p, kLimit).status(); });
    }
  }
}

}  // namespace
}  // namespace intrawarp::io
