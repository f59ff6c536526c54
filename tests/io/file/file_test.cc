// SPDX-License-Identifier: Apache-2.0
#include "io/file/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <functional>
#include <thread>
#include <vector>

#include "io/format/grid_files.h"
#include "io/format/itk_transform.h"
#include "io/format/matrix_market.h"
#include "io/format/matrix_text.h"
#include "io/format/nifti.h"
#include "io/format/points.h"
#include "io/picture/png.h"
#include "tests/engine/device_test.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
const std::string kYesterday = "yesterday's result\n";

// As long as it lives, no file of this process can grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  sighandler_t handler_;
  rlimit before_;
};

struct Format {
  std::string name;
  std::function<absl::Status(const std::string& path)> write;
};

std::vector<Format> EveryFormat() {
  const Geometry grid = ObliqueGeometry({6, 5, 4});
  const std::vector<float> vectors = RandomFloats(3 * grid.voxels(), 5, -10, 10);
  const std::vector<uint8_t> pixels(grid.voxels(), 7);
  const auto volume = [=](const std::string& path) { return WriteNifti(path, grid, PixelType::kUint8, pixels.data()); };
  const auto grid_file = [=](const std::string& path) {
    return WriteVolumeFile(path, {grid, PixelType::kUint8, 1, 0, pixels});
  };
  const auto matrix = [](const std::string& path) {
    return WriteMatrixMarket(path, HostCsr<float>{2, 2, {0, 1, 2}, {0, 1}, {1.5f, 2.5f}});
  };
  return {{"volume.nii", volume},
          {"volume.nii.gz", volume},
          {"field.nii", [=](const std::string& path) { return WriteField(path, grid, vectors.data()); }},
          {"velocity.nii.gz",
           [=](const std::string& path) { return WriteVelocity(path, AffineMap::Identity(), grid, vectors.data()); }},
          {"matrix.mtx", matrix},
          {"matrix.mtx.gz", matrix},
          {"grid.tfm",
           [=](const std::string& path) {
             return WriteItkTransform(path, {ItkTransform::Kind::kControlGrid, AffineMap::Identity(), grid, vectors});
           }},
          {"field.h5",
           [=](const std::string& path) {
             return WriteItkTransform(path, {ItkTransform::Kind::kDisplacement, AffineMap::Identity(), grid, vectors});
           }},
          {"volume.nrrd", grid_file},
          {"volume.mha", grid_file},
          {"field.nrrd", [=](const std::string& path) { return WriteFieldFile(path, grid, vectors.data()); }},
          {"affine.txt", [](const std::string& path) { return WriteMatrix(path, AffineMap::Identity()); }},
          {"points.csv",
           [](const std::string& path) {
             return WritePoints(path, {{1, 2, 3}, {4, 5, 6}});
           }},
          {"picture.png",
           [](const std::string& path) {
             return WritePng(path, {2, 1, {1, 2, 3, 4, 5, 6}});
           }},
          {"report.json", [](const std::string& path) { return WriteSmallFile(path, std::string(1000, ' ')); }}};
}

absl::Status WriteWithin(rlim_t bytes, const Format& format, const std::string& path) {
  const FileSizeLimit limit(bytes);
  return format.write(path);
}

class AtomicFileTest : public FileTest {
 protected:
  // The names in the folder of the test.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }
};

TEST_F(AtomicFileTest, AFullDiskLeavesTheOldFileOfEveryFormat) {
  for (const Format& format : EveryFormat()) {
    const std::string path = Put(format.name, kYesterday);
    EXPECT_THAT(WriteWithin(16, format, path), Fails(kExhausted, "file: cannot be written")) << format.name;
    EXPECT_EQ(Get(path), kYesterday) << format.name;
    EXPECT_THAT(Names(), testing::ElementsAre(format.name));
    EXPECT_THAT(format.write(path), Succeeds()) << format.name;
    EXPECT_NE(Get(path), kYesterday) << format.name;
    EXPECT_THAT(Names(), testing::ElementsAre(format.name));
    std::filesystem::remove(path);
  }
}

TEST_F(AtomicFileTest, AFullDiskLeavesNothingWhereNothingWas) {
  for (const Format& format : EveryFormat()) {
    EXPECT_THAT(WriteWithin(16, format, Path(format.name)), Fails(kExhausted, "file: cannot be written"))
        << format.name;
    EXPECT_THAT(Names(), testing::IsEmpty()) << format.name;
  }
}

// A reader that has the old file open goes on reading it.
TEST_F(AtomicFileTest, ReplacesTheNameNotTheContents) {
  const std::string path = Put("report.json", kYesterday);
  std::ifstream reader(path);
  ASSERT_THAT(WriteSmallFile(path, "today's result\n"), Succeeds());
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), kYesterday);
  EXPECT_EQ(Get(path), "today's result\n");
}

TEST_F(AtomicFileTest, KeepsTheModeAndTheLink) {
  const std::string path = Put("secret.csv", kYesterday);
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  std::filesystem::create_symlink("secret.csv", Path("link.csv"));
  ASSERT_THAT(WriteSmallFile(Path("link.csv"), "x"), Succeeds());
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link.csv")));
  EXPECT_EQ(Get(path), "x");
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
}

TEST_F(AtomicFileTest, ANewFileHasTheModeOfTheUmask) {
  const mode_t before = umask(027);
  const absl::Status written = WriteSmallFile(Path("new.csv"), "x");
  umask(before);
  ASSERT_THAT(written, Succeeds());
  struct stat info;
  ASSERT_EQ(stat(Path("new.csv").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
}

TEST_F(AtomicFileTest, ADeviceOrAPipeIsWrittenDirectly) {
  EXPECT_THAT(WriteSmallFile("/dev/null", "x"), Succeeds());
  EXPECT_THAT(WriteSmallFile("/dev/full", "x"), Fails(kExhausted, "file: cannot be written"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = Get(Path("pipe")); });
  EXPECT_THAT(WriteSmallFile(Path("pipe"), "through the pipe"), Succeeds());
  reader.join();
  EXPECT_EQ(got, "through the pipe");
  EXPECT_TRUE(std::filesystem::is_fifo(Path("pipe")));
}

// A shell has opened the file and goes on writing to it after the program.
TEST_F(AtomicFileTest, AnOpenDescriptorIsWrittenDirectly) {
  const std::string path = Put("out.json", kYesterday);
  const int shell = open(path.c_str(), O_RDWR);
  ASSERT_GE(shell, 0);
  EXPECT_THAT(WriteSmallFile("/dev/fd/" + std::to_string(shell), "today"), Succeeds());
  char got[5];
  EXPECT_EQ(read(shell, got, sizeof(got)), 5);
  close(shell);
  EXPECT_EQ(std::string(got, 5), "today");
}

TEST_F(AtomicFileTest, AFolderIsNoTarget) {
  std::filesystem::create_directory(Path("folder"));
  EXPECT_FALSE(WriteSmallFile(Path("folder"), "x").ok());
  EXPECT_THAT(Names(), testing::ElementsAre("folder"));
}

using SmallFileTest = FileTest;

// Opening a FIFO that nobody writes to waits for ever, unless the reader asks not to: the alarm ends such a test.
TEST_F(SmallFileTest, AFifoIsRefusedWithoutWaiting) {
  ASSERT_EQ(mkfifo(Path("pipe.mtx").c_str(), 0600), 0);
  alarm(20);
  EXPECT_THAT(ReadMatrixMarket(Path("pipe.mtx")), Fails(kInvalid, "file: not a regular file"));
  EXPECT_THAT(ReadSmallFile(Path("pipe.mtx"), 100), Fails(kInvalid, "file: not a regular file"));
  EXPECT_THAT(ReadNifti(Path("pipe.mtx")), Fails(kInvalid, "file: not a regular file"));
  alarm(0);
}

TEST_F(SmallFileTest, ReadsUpToItsLimit) {
  const std::string path = Put("a.txt", std::string(100000, 'a'));
  EXPECT_EQ(ReadSmallFile(path, 100000)->size(), 100000u);
  EXPECT_THAT(ReadSmallFile(path, 99999), Fails(kExhausted, "file: longer than 99999 bytes"));
  EXPECT_THAT(ReadSmallFile("/dev/zero", 100), Fails(kInvalid, "file: not a regular file"));
}

// Names may come from a header that somebody else wrote.
TEST_F(SmallFileTest, APathThatNoFileCanHaveIsInvalid) {
  EXPECT_THAT(ReadSmallFile(Path(std::string(300, 'n')), 100), Fails(kInvalid, "file: cannot be opened"));
  std::filesystem::create_symlink("loop", Path("loop"));
  EXPECT_THAT(ReadSmallFile(Path("loop"), 100), Fails(kInvalid, "file: cannot be opened"));
  const std::string header = Put("a.mhd", absl::StrCat("NDims = 3\nDimSize = 3 4 2\nElementType = MET_FLOAT\n",
                                                       "ElementDataFile = ", std::string(300, 'L'), "\n"));
  EXPECT_EQ(ReadVolumeFile(header).status().code(), kInvalid);
}

}  // namespace
}  // namespace intrawarp::io
