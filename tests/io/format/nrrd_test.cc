// SPDX-License-Identifier: Apache-2.0
#include "io/format/nrrd.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/io/format/grid_file_test.h"

namespace intrawarp::io {
namespace {

using NrrdTest = GridFileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// As 3D Slicer writes a volume, 4x3x2 int16.
constexpr char kSlicer[] =
    "NRRD0004\n# Complete NRRD file format specification at:\n# http://teem.sourceforge.net/nrrd/format.html\n"
    "type: short\ndimension: 3\nspace: left-posterior-superior\nsizes: 4 3 2\n"
    "space directions: (0,-2,0) (0.5,0,0) (0,0,3)\nkinds: domain domain domain\nendian: little\nencoding: raw\n"
    "space origin: (10,20.5,-30)\n";
// As ITK writes a displacement field, 3x2x2.
constexpr char kItkField[] =
    "NRRD0004\ntype: double\ndimension: 4\nspace: left-posterior-superior\nsizes: 3 3 2 2\n"
    "space directions: none (1,0,0) (0,1,0) (0,0,1)\nkinds: vector domain domain domain\nendian: little\n"
    "encoding: raw\nspace origin: (0,0,0)\n";

TEST_F(NrrdTest, EveryTypeAndOrientationComesBack) { ExpectVolumesComeBack({"v.nrrd", "v.nhdr"}, WriteNrrd, ReadNrrd); }

TEST_F(NrrdTest, ReadsWhatOthersWrite) {
  const std::string samples = Counting(48);
  const auto check = [&](const std::string& file) {
    const auto read = ReadNrrd(Put("v.nrrd", file));
    ASSERT_THAT(read, Succeeds());
    Geometry expected;
    expected.size = {4, 3, 2};
    expected.spacing = {2, 0.5, 3};
    expected.origin = {10, 20.5, -30};
    const double direction[3][3] = {{0, 1, 0}, {-1, 0, 0}, {0, 0, 1}};
    std::copy(&direction[0][0], &direction[0][0] + 9, &expected.direction[0][0]);
    ExpectSameGrid(read->geometry, expected);
    EXPECT_EQ(read->pixel_type, PixelType::kInt16);
    EXPECT_EQ(Bytes(*read), samples);
  };
  const std::string header = kSlicer;
  const auto with = [&](const std::vector<std::pair<std::string, std::string>>& changes) {
    return absl::StrReplaceAll(header, changes);
  };
  check(header + "\n" + samples);
  check(with({{"\n", "\r\n"}}) + "\r\n" + samples);
  check(with({{"encoding: raw", "encoding: gzip"}}) + "\n" + Deflated(samples, 31));
  check(with({{"encoding: raw", "encoding: gz"}}) + "\n" + Deflated(samples.substr(0, 20), 31) +
        Deflated(samples.substr(20), 31));
  check(with({{"endian: little", "endian: big"}}) + "\n" + Reversed(samples, 2));
  check(with({{"endian: little", "endian: big"}, {"encoding: raw", "encoding: gzip"}}) + "\n" +
        Deflated(Reversed(samples, 2), 31));
  check(with({{"left-posterior-superior", "right-anterior-superior"},
              {"(0,-2,0) (0.5,0,0)", "(0,2,0) (-0.5,0,0)"},
              {"(10,20.5,-30)", "(-10,-20.5,-30)"}}) +
        "\n" + samples);
  check(with({{"left-posterior-superior", "LAS"}, {"(0,-2,0)", "(0,2,0)"}, {"(10,20.5,-30)", "(10,-20.5,-30)"}}) +
        "\n" + samples);
  check(
      with({{"space: left-posterior-superior", "space dimension: 3"}, {"domain domain domain", "space space space"}}) +
      "\n" + samples);
  check(with({{"(0,-2,0) (0.5,0,0) (0,0,3)", "(0, -2e-3, 0) (0.0005,0,0)(0 , 0 , .003)"},
              {"(10,20.5,-30)", "(+0.01,0.0205,-0.03)"}}) +
        "a field of later versions: 1\nspace units: \"m\" \"m\" \"m\"\nDWMRI_b-value:=1000\n\n" + samples);
  check(header + "byte skip: 5\n\n12345" + samples);
  check(header + "byte skip: -1\n\nanything" + samples);
  check(with({{"dimension: 3", "dimension: 4"},
              {"sizes: 4 3 2", "sizes: 1 4 3 2"},
              {"directions: ", "directions: none "},
              {"kinds: ", "kinds: list "}}) +
        "\n" + samples);
}

TEST_F(NrrdTest, DetachedSamples) {
  const std::string samples = Counting(48);
  Put("v.raw", samples);
  Put("big.raw", "xyz" + samples);
  for (const char* line : {"data file: v.raw\n", "datafile: ./v.raw\n", "data file: v.raw\n\n",
                           "data file: big.raw\nbyte skip: 3\n", "byte skip: -1\ndata file: big.raw\n"}) {
    const auto read = ReadNrrd(Put("v.nhdr", absl::StrCat(kSlicer, line)));
    ASSERT_THAT(read, Succeeds());
    EXPECT_EQ(Bytes(*read), samples);
  }
  EXPECT_THAT(ReadNrrd(Put("v.nhdr", absl::StrCat(kSlicer, "data file: big.raw\n"))),
              Fails(kInvalid, "data: there are"));
}

// A header leads nowhere but to its own folder.
TEST_F(NrrdTest, ADataFileElsewhereIsRefused) {
  std::filesystem::create_directory(Path("below"));
  Put("below/v.raw", Counting(48));
  std::filesystem::create_symlink(Path("below/v.raw"), Path("link.raw"));
  const std::string absolute = Path("below/v.raw");
  for (const std::string& name : std::vector<std::string>{"below/v.raw", "../v.raw", "..", ".", "", absolute,
                                                          "/etc/hostname", "below\\v.raw", "link.raw"}) {
    EXPECT_THAT(ReadNrrd(Put("v.nhdr", absl::StrCat(kSlicer, "data file: ", name, "\n"))),
                Fails(kInvalid, "data file: "))
        << name;
  }
  EXPECT_THAT(ReadNrrd(Put("v.nhdr", absl::StrCat(kSlicer, "data file: nothing.raw\n"))),
              Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(ReadNrrd(Put("v.nhdr", absl::StrCat(kSlicer, "data file: below\n"))),
              Fails(kInvalid, "file: not a regular"));
  for (const char* name : {"LIST 2", "slice%03d.raw 1 2 1"}) {
    EXPECT_THAT(ReadNrrd(Put("v.nhdr", absl::StrCat(kSlicer, "data file: ", name, "\n"))),
                Fails(kUnimplemented, "data file: "));
  }
}

TEST_F(NrrdTest, TwoDimensions) {
  const auto flat =
      ReadNrrd(Put("v.nrrd", "NRRD0002\ntype: uchar\ndimension: 2\nsizes: 4 3\nspacings: 0.5 nan\nencoding: raw\n\n" +
                                 Counting(12)));
  EXPECT_THAT(flat, Fails(kInvalid, "spacings: nan"));
  const auto plain = ReadNrrd(Put(
      "v.nrrd", "NRRD0001\ntype: uchar\ndimension: 2\nsizes: 4 3\nspacings: 0.5 2\nencoding: raw\n\n" + Counting(12)));
  ASSERT_THAT(plain, Succeeds());
  EXPECT_EQ(plain->geometry.size, (Int3{4, 3, 1}));
  EXPECT_EQ(plain->geometry.spacing, (Vec3d{0.5, 2, 1}));
  // A slice with its pose: the third axis is the normal.
  const auto slice = ReadNrrd(Put("v.nrrd",
                                  "NRRD0004\ntype: uchar\ndimension: 2\nspace: LPS\nsizes: 4 3\n"
                                  "space directions: (0,2,0) (0,0,3)\nspace origin: (1,2,3)\nencoding: raw\n\n" +
                                      Counting(12)));
  ASSERT_THAT(slice, Succeeds());
  EXPECT_EQ(IndexToPhysical(slice->geometry)({1, 1, 1}), (Vec3d{2, 4, 6}));
  const auto in_plane = ReadNrrd(Put("v.nrrd",
                                     "NRRD0004\ntype: uchar\ndimension: 2\nspace dimension: 2\nsizes: 4 3\n"
                                     "space directions: (0,2) (-3,0)\nspace origin: (1,2)\nencoding: raw\n\n" +
                                         Counting(12)));
  ASSERT_THAT(in_plane, Succeeds());
  EXPECT_EQ(IndexToPhysical(in_plane->geometry)({1, 1, 0}), (Vec3d{-2, 4, 0}));
}

TEST_F(NrrdTest, FieldsComeBackWithSlicersMarker) {
  ExpectFieldsComeBack({"f.nrrd", "f.nhdr"}, WriteNrrdField, ReadNrrdField, [](const std::string& path) {
    EXPECT_THAT(ReadNrrd(path), Fails(kInvalid, "sizes: axis 0 is not in space"));
    const std::string text = Get(path);
    EXPECT_NE(text.find("\ndisplacement field type:=resampling\n"), std::string::npos);
    EXPECT_NE(text.find("\nkinds: vector domain domain domain\n"), std::string::npos);
    EXPECT_NE(text.find("\nspace: left-posterior-superior\n"), std::string::npos);
  });
}

TEST_F(NrrdTest, FieldsOfOthers) {
  const std::vector<double> values = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,  11,  12,  13,  14,  15,  16,  17,  18,
                                      -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, -16, -17, -18};
  const std::string samples(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  const auto read = ReadNrrdField(Put("f.nrrd", absl::StrCat(kItkField, "\n", samples)));
  ASSERT_THAT(read, Succeeds());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(read->displacement[i], static_cast<float>(values[i]));
  // Components in planes.
  const std::string last =
      absl::StrReplaceAll(kItkField, {{"sizes: 3 3 2 2", "sizes: 3 2 2 3"},
                                      {"none (1,0,0) (0,1,0) (0,0,1)", "(1,0,0) (0,1,0) (0,0,1) none"},
                                      {"vector domain domain domain", "domain domain domain vector"}});
  const auto planes = ReadNrrdField(Put("f.nrrd", absl::StrCat(last, "\n", samples)));
  ASSERT_THAT(planes, Succeeds());
  for (size_t i = 0; i < 12; ++i)
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(planes->displacement[3 * i + c], static_cast<float>(values[12 * c + i]));

  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(std::string(kItkField).find(from), std::string::npos) << from;
    return ReadNrrdField(Put("f.nrrd", absl::StrReplaceAll(kItkField, {{from, to}}) + "\n" + samples));
  };
  const std::string end = "encoding: raw\n";
  EXPECT_THAT(with(end, end + "displacement field type:=resampling\n"), Succeeds());
  EXPECT_THAT(with(end, end + "measurement frame: (1,0,0) (0,1,0) (0,0,1)\n"), Succeeds());
  EXPECT_THAT(with(end, end + "displacement field type:=modeling\n"), Fails(kUnimplemented, "displacement field type"));
  EXPECT_THAT(with(end, end + "displacement field type:=other\n"), Fails(kInvalid, "displacement field type"));
  EXPECT_THAT(with(end, end + "measurement frame: (-1,0,0) (0,1,0) (0,0,1)\n"),
              Fails(kUnimplemented, "measurement frame"));
  EXPECT_THAT(with("left-posterior-superior", "right-anterior-superior"), Fails(kUnimplemented, "space: "));
  EXPECT_THAT(with("kinds: vector", "kinds: RGB-color"), Fails(kInvalid, "kinds: "));
  EXPECT_THAT(with("sizes: 3 3 2 2", "sizes: 4 3 2 2"), Fails(kInvalid, "sizes: a displacement has 4"));
  EXPECT_THAT(with("sizes: 3 3 2 2", "sizes: 2 3 2 2"), Fails(kInvalid, "sizes: a displacement has 2"));
  EXPECT_THAT(with("type: double", "type: int"), Fails(kInvalid, "data: there are more"));
  EXPECT_THAT(with("(1,0,0)", "none"), Fails(kInvalid, "kinds: several axes"));
  std::string broken = samples;
  const double nan = std::nan("");
  std::memcpy(broken.data() + 8 * 7, &nan, 8);
  EXPECT_THAT(ReadNrrdField(Put("f.nrrd", absl::StrCat(kItkField, "\n", broken))),
              Fails(kInvalid, "displacement: voxel 2 is not finite"));
  const std::string half = absl::StrReplaceAll(kItkField, {{"type: double", "type: short"}});
  EXPECT_THAT(ReadNrrdField(Put("f.nrrd", absl::StrCat(half, "\n", samples.substr(0, 72)))),
              Fails(kUnimplemented, "type: of a displacement"));
  EXPECT_THAT(ReadNrrdField(Put("f.nrrd", absl::StrCat(kSlicer, "\n", Counting(48)))),
              Fails(kInvalid, "kinds: no axis"));
}

TEST_F(NrrdTest, Refuses) {
  const std::string samples = Counting(48);
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(std::string(kSlicer).find(from), std::string::npos) << from;
    return ReadNrrd(Put("v.nrrd", absl::StrReplaceAll(kSlicer, {{from, to}}) + "\n" + samples));
  };
  EXPECT_THAT(with("NRRD0004", "NRRD0006"), Fails(kInvalid, "header: the magic"));
  EXPECT_THAT(with("type: short\n", "type: short\nnothing\n"), Fails(kInvalid, "header: has a line"));
  EXPECT_THAT(with("type: short\n", "type: short\ntype: short\n"), Fails(kInvalid, "header: states a field twice"));
  EXPECT_THAT(with("type: short\n", ""), Fails(kInvalid, "type: is missing"));
  EXPECT_THAT(with("type: short", "type: long"), Fails(kInvalid, "type: is none"));
  EXPECT_THAT(with("type: short", "type: int64"), Fails(kUnimplemented, "type: int64"));
  EXPECT_THAT(with("type: short", "type: block"), Fails(kUnimplemented, "type: block"));
  EXPECT_THAT(with("dimension: 3", "dimension: 17"), Fails(kInvalid, "dimension: "));
  EXPECT_THAT(with("dimension: 3", "dimension: -1"), Fails(kInvalid, "dimension: "));
  EXPECT_THAT(with("dimension: 3\n", ""), Fails(kInvalid, "dimension: "));
  EXPECT_THAT(with("dimension: 3", "dimension: 2"), Fails(kInvalid, "sizes: has 3"));
  EXPECT_THAT(with("sizes: 4 3 2", "sizes: 4 3 0"), Fails(kInvalid, "sizes: must be"));
  EXPECT_THAT(with("sizes: 4 3 2", "sizes: 4 3 -2"), Fails(kInvalid, "sizes: must be"));
  EXPECT_THAT(with("sizes: 4 3 2", "sizes: 4 3 16385"), Fails(kInvalid, "sizes: must be"));
  EXPECT_THAT(with("sizes: 4 3 2", "sizes: 4 3 99999999999999999999"), Fails(kInvalid, "sizes: must be"));
  EXPECT_THAT(with("sizes: 4 3 2", "sizes: 16384 16384 16384"), Fails(absl::StatusCode::kResourceExhausted, "size: "));
  EXPECT_THAT(with("sizes: 4 3 2", "sizes: 4 3 3"), Fails(kDataLoss, "data: ends after 48 of 72"));
  EXPECT_THAT(with("sizes: 4 3 2", "sizes: 4 3 1"), Fails(kInvalid, "data: there are more"));
  EXPECT_THAT(with("kinds: domain", "kinds: list"), Succeeds());  // a direction says that the axis is in space
  EXPECT_THAT(with("kinds: domain", "kinds: "), Fails(kInvalid, "kinds: "));
  EXPECT_THAT(with("space directions: (0,-2,0)", "space directions: none"), Fails(kInvalid, "sizes: axis 0"));
  EXPECT_THAT(with("(0,-2,0)", "(0,-2)"), Fails(kInvalid, "space directions: a vector has 2"));
  EXPECT_THAT(with("(0,-2,0)", "(0,-2,0,0)"), Fails(kInvalid, "space directions: a vector has 4"));
  EXPECT_THAT(with("(0,-2,0)", "(0,nan,0)"), Fails(kInvalid, "space directions: a number"));
  EXPECT_THAT(with("(0,-2,0)", "(0,-2,0"), Fails(kInvalid, "space directions: a number"));
  EXPECT_THAT(with("(0,0,3)", "(0,0,3"), Fails(kInvalid, "space directions: must be"));
  EXPECT_THAT(with("(0,-2,0)", "(0,0,0)"), Fails(kInvalid, "spacing: "));
  EXPECT_THAT(with("(0,-2,0)", "(1,-2,0)"), Fails(kInvalid, "direction: "));
  EXPECT_THAT(with("(0,0,3)", "(0,0,3) (1,0,0)"), Fails(kInvalid, "space directions: must have 3"));
  EXPECT_THAT(with(" (0,0,3)", ""), Fails(kInvalid, "space directions: must have 3"));
  EXPECT_THAT(with("space origin: (10,20.5,-30)", "space origin: none"), Fails(kInvalid, "space origin: "));
  EXPECT_THAT(with("space origin: (10,20.5,-30)", "space origin: (10,20.5,-1e30)"), Fails(kInvalid, "origin: "));
  EXPECT_THAT(with("left-posterior-superior", "scanner-xyz"), Fails(kUnimplemented, "space: "));
  EXPECT_THAT(with("left-posterior-superior", "left-posterior-superior-time"), Fails(kUnimplemented, "space: "));
  EXPECT_THAT(with("space: left-posterior-superior\n", ""), Fails(kInvalid, "space directions: need"));
  EXPECT_THAT(with("space: left-posterior-superior", "space dimension: 4"), Fails(kUnimplemented, "space dimension"));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\nspace dimension: 3"), Fails(kInvalid, "space dimension"));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\nspace units: \"mm\" \"cm\" \"mm\""),
              Fails(kUnimplemented, "space units"));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\nspace units: \"parsec\""), Fails(kUnimplemented, "space units"));
  EXPECT_THAT(with("encoding: raw", "encoding: bzip2"), Fails(kUnimplemented, "encoding: bzip2"));
  EXPECT_THAT(with("encoding: raw", "encoding: ascii"), Fails(kUnimplemented, "encoding: ascii"));
  EXPECT_THAT(with("encoding: raw", "encoding: lzma"), Fails(kInvalid, "encoding: "));
  EXPECT_THAT(with("encoding: raw\n", ""), Fails(kInvalid, "encoding: is missing"));
  EXPECT_THAT(with("endian: little\n", ""), Fails(kInvalid, "endian: "));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\nline skip: 3"), Fails(kUnimplemented, "line skip"));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\nbyte skip: -2"), Fails(kInvalid, "byte skip"));
  EXPECT_THAT(with("encoding: raw", "encoding: gzip\nbyte skip: -1"), Fails(kInvalid, "byte skip"));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\nbyte skip: 9223372036854775807"), Fails(kInvalid, "byte skip"));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\nbyte skip: 40"), Fails(kDataLoss, "data: ends after 8 of 48"));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\nbyte skip: 100"), Fails(kDataLoss, "data: ends after 0 of 48"));
  EXPECT_THAT(with("encoding: raw", "encoding: raw\naxis mins: 0 0 0"), Fails(kUnimplemented, "axis mins"));
  EXPECT_THAT(with("encoding: raw", "encoding: gzip"), Fails(kDataLoss, "data: the compressed stream is corrupt"));
  EXPECT_THAT(ReadNrrd(Put("long.nrrd", "NRRD0004\n" + std::string(1 << 20, '#') + "\n")),
              Fails(kInvalid, "header: is longer"));
  EXPECT_THAT(ReadNrrd(Put("empty.nrrd", "")), Fails(kInvalid, "header: the magic"));
  EXPECT_THAT(ReadNrrd(Put("end.nrrd", "NRRD0004")), Fails(kInvalid, "dimension: "));
  EXPECT_THAT(ReadNrrd(Path("nothing.nrrd")), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(WriteNrrd(Path("v.raw"), NoiseVolume(FlippedGeometry(), PixelType::kInt8)), Fails(kInvalid, "path: "));
}

TEST_F(NrrdTest, CompressedDataThatLies) {
  const std::string header = absl::StrReplaceAll(kSlicer, {{"encoding: raw", "encoding: gzip"}});
  const std::string packed = Deflated(Counting(48), 31);
  ExpectLiesAreRefused("v.nrrd", header + "\n", 31, ReadNrrd);
  std::string wrong = packed;
  wrong[wrong.size() - 6] ^= 1;  // the checksum
  EXPECT_THAT(ReadNrrd(Put("v.nrrd", header + "\n" + wrong)), Fails(kDataLoss, "data: "));
  // 64 MiB of zeros in 64 KiB are not unpacked beyond what the header says.
  const std::string bomb = Deflated(std::string(size_t{64} << 20, '\0'), 31);
  EXPECT_THAT(ReadNrrd(Put("v.nrrd", header + "\n" + bomb)), Fails(kInvalid, "data: there are more"));
  const std::string huge = absl::StrReplaceAll(header, {{"sizes: 4 3 2", "sizes: 2000 2000 2000"}});
  EXPECT_THAT(ReadNrrd(Put("v.nrrd", huge + "\n" + packed)), Fails(kDataLoss, "data: the file is too short"));
}

// A header is replaced after its samples, which are removed with it.
TEST_F(NrrdTest, ADetachedFileIsReplacedWithItsSamples) {
  const auto files = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  };
  const HostVolume first = NoiseVolume(FlippedGeometry(), PixelType::kInt16, 1);
  const HostVolume second = NoiseVolume(FlippedGeometry(), PixelType::kInt16, 2);
  Put("v.0123456789abcdef.raw", "not named by the header");
  ASSERT_THAT(WriteNrrd(Path("v.nhdr"), first), Succeeds());
  ASSERT_THAT(WriteNrrd(Path("v.nhdr"), first), Succeeds());
  EXPECT_EQ(files().size(), 3u);
  ASSERT_THAT(WriteNrrd(Path("v.nhdr"), second), Succeeds());
  EXPECT_EQ(files().size(), 3u);
  const auto read = ReadNrrd(Path("v.nhdr"));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->pixels, second.pixels);
  EXPECT_THAT(WriteNrrd(Path("50% of it.nhdr"), first), Fails(kInvalid, "path: "));
  ASSERT_THAT(WriteNrrd(Path("50%.nhdr"), first), Succeeds());
  EXPECT_THAT(ReadNrrd(Path("50%.nhdr")), Succeeds());
  // A header of another program keeps its samples.
  Put("w.raw", Counting(48));
  Put("w.nhdr", absl::StrCat(kSlicer, "data file: w.raw\n"));
  ASSERT_THAT(WriteNrrd(Path("w.nhdr"), first), Succeeds());
  EXPECT_TRUE(std::filesystem::exists(Path("w.raw")));
}

TEST_F(NrrdTest, ARescaledVolumeIsWrittenAsItsIntensities) {
  HostVolume volume = NoiseVolume(FlippedGeometry(), PixelType::kInt16);
  volume.rescale_slope = 0.5;
  volume.rescale_intercept = -1024;
  ASSERT_THAT(WriteNrrd(Path("v.nrrd"), volume), Succeeds());
  const auto read = ReadNrrd(Path("v.nrrd"));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->pixel_type, PixelType::kFloat32);
  EXPECT_EQ(ToFloat(*read), ToFloat(volume));
}

}  // namespace
}  // namespace intrawarp::io
