// SPDX-License-Identifier: Apache-2.0
// NIfTI volumes: types, forms, byte orders, pairs, NIfTI-2, and files of other programs.
#include "io/format/nifti.h"

#include <nifti1_io.h>
#include <nifti2.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "tests/engine/device_test.h"
#include "tests/io/format/nifti_fixture.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

HostVolume RandomVolume(const Geometry& geometry, PixelType type, uint32_t seed = 1) {
  HostVolume volume;
  volume.geometry = geometry;
  volume.pixel_type = type;
  volume.pixels = RandomBytes(geometry.voxels() * BytesPerPixel(type), seed);
  return volume;
}

TEST_F(NiftiTest, EveryTypeAndOrientationComesBack) {
  Geometry left_handed_axes;
  left_handed_axes.size = {6, 5, 4};
  left_handed_axes.spacing = {0.7, 1.1, 3};
  left_handed_axes.origin = {90, -126, -72};
  left_handed_axes.direction[0][0] = -1;
  const Geometry geometries[] = {left_handed_axes, ObliqueGeometry({7, 5, 3}), ObliqueGeometry({7, 5, 3}, true),
                                 ObliqueGeometry({9, 4, 1}), ObliqueGeometry({1, 1, 1})};
  for (const Geometry& geometry : geometries) {
    for (PixelType type : {PixelType::kUint8, PixelType::kInt8, PixelType::kUint16, PixelType::kInt16,
                           PixelType::kUint32, PixelType::kInt32, PixelType::kFloat32, PixelType::kFloat64}) {
      for (const char* name : {"v.nii", "v.nii.gz"}) {
        HostVolume volume = RandomVolume(geometry, type);
        volume.rescale_slope = 0.5;
        volume.rescale_intercept = -1024;
        ASSERT_THAT(WriteNifti(Path(name), volume), Succeeds());
        const auto read = ReadNifti(Path(name));
        ASSERT_THAT(read, Succeeds());
        ExpectNear(read->geometry, geometry);
        EXPECT_EQ(read->pixel_type, type);
        EXPECT_EQ(read->rescale_slope, 0.5);
        EXPECT_EQ(read->rescale_intercept, -1024);
        EXPECT_EQ(read->pixels, volume.pixels);
      }
    }
  }
}

// A NIfTI-1 file of this library as NIfTI-2.
std::string AsNifti2(
    const std::string& file, const std::function<void(nifti_2_header&)>& change = [](auto&) {}) {
  nifti_1_header h;
  std::memcpy(&h, file.data(), sizeof(h));
  nifti_2_header wide{};
  wide.sizeof_hdr = 540;
  std::memcpy(wide.magic, "n+2\0\r\n\032\n", 8);
  wide.datatype = h.datatype, wide.bitpix = h.bitpix;
  std::copy(h.dim, h.dim + 8, wide.dim);
  std::copy(h.pixdim, h.pixdim + 8, wide.pixdim);
  wide.vox_offset = 544;
  wide.scl_slope = h.scl_slope, wide.scl_inter = h.scl_inter;
  wide.qform_code = h.qform_code, wide.sform_code = h.sform_code;
  wide.quatern_b = h.quatern_b, wide.quatern_c = h.quatern_c, wide.quatern_d = h.quatern_d;
  wide.qoffset_x = h.qoffset_x, wide.qoffset_y = h.qoffset_y, wide.qoffset_z = h.qoffset_z;
  std::copy(h.srow_x, h.srow_x + 4, wide.srow_x);
  std::copy(h.srow_y, h.srow_y + 4, wide.srow_y);
  std::copy(h.srow_z, h.srow_z + 4, wide.srow_z);
  wide.xyzt_units = h.xyzt_units, wide.intent_code = h.intent_code;
  change(wide);
  std::string out(reinterpret_cast<const char*>(&wide), sizeof(wide));
  return out + std::string(4, '\0') + file.substr(352);
}

// The offsets are those of the NIfTI-2 standard.
std::string Nifti2InOtherByteOrder(std::string file, int bytes_per_pixel) {
  const auto swap = [&](size_t at, size_t size) { std::reverse(file.begin() + at, file.begin() + at + size); };
  for (size_t at : {0, 344, 348, 496, 500, 504}) swap(at, 4);
  for (size_t at : {12, 14}) swap(at, 2);
  for (size_t at = 16; at < 240; at += 8) swap(at, 8);
  for (size_t at = 352; at < 496; at += 8) swap(at, 8);
  for (size_t at = 544; at < file.size(); at += bytes_per_pixel) swap(at, bytes_per_pixel);
  return file;
}

TEST_F(NiftiTest, Nifti2IsTheSameVolumeAndField) {
  HostVolume volume = RandomVolume(ObliqueGeometry({7, 5, 3}, true), PixelType::kInt16);
  volume.rescale_slope = 0.5;
  ASSERT_THAT(WriteNifti(Path("v.nii"), volume), Succeeds());
  const auto one = ReadNifti(Path("v.nii"));
  ASSERT_THAT(one, Succeeds());
  const std::string two = AsNifti2(Get(Path("v.nii")));
  for (const std::string& file : {two, Nifti2InOtherByteOrder(two, 2), Gzip(two)}) {
    for (bool qform : {false, true}) {
      std::string changed = file;
      if (qform && file == two) changed = AsNifti2(Get(Path("v.nii")), [](auto& h) { h.sform_code = 0; });
      const auto read = ReadNifti(Put("two.nii", changed));
      ASSERT_THAT(read, Succeeds());
      ExpectNear(read->geometry, one->geometry);
      EXPECT_EQ(read->pixels, one->pixels);
      EXPECT_EQ(read->rescale_slope, 0.5);
    }
  }
  HostField field{volume.geometry, RandomFloats(3 * volume.geometry.voxels(), 3, -5, 5)};
  ASSERT_THAT(WriteField(Path("f.nii"), field), Succeeds());
  const std::string wide = AsNifti2(Get(Path("f.nii")));
  for (const std::string& file : {wide, Nifti2InOtherByteOrder(wide, 4)}) {
    const auto read = ReadField(Put("two.nii", file));
    ASSERT_THAT(read, Succeeds());
    EXPECT_EQ(read->displacement, field.displacement);
  }
}

// A double holds what a float rounds.
TEST_F(NiftiTest, Nifti2KeepsDoubles) {
  const auto read = ReadNifti(Put("two.nii", AsNifti2(FileOf(SomeHeader()), [](auto& h) {
                                    h.srow_x[0] = 2.0000000001;
                                    h.srow_x[3] = -123.456789012345;
                                  })));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->geometry.spacing.x, 2.0000000001);
  EXPECT_EQ(read->geometry.origin.x, 123.456789012345);
}

TEST_F(NiftiTest, HostileNifti2) {
  struct Case {
    const char* message;
    std::function<void(nifti_2_header&)> change;
  };
  const Case cases[] = {
      {"header: the magic", [](auto& h) { h.magic[0] = 'x'; }},
      {"header: the magic", [](auto& h) { h.magic[4] = '\n'; }},
      {"size: dim[0]", [](auto& h) { h.dim[0] = int64_t{1} << 40; }},
      {"size: dim[1] is too long", [](auto& h) { h.dim[1] = std::numeric_limits<int64_t>::max(); }},
      {"size: dim[2] is -1", [](auto& h) { h.dim[2] = -1; }},
      {"size: ", [](auto& h) { h.dim[1] = 20000; }},
      {"vox_offset: ", [](auto& h) { h.vox_offset = 540; }},
      {"vox_offset: ", [](auto& h) { h.vox_offset = std::numeric_limits<int64_t>::max(); }},
      {"vox_offset: ", [](auto& h) { h.vox_offset = -8; }},
      {"spacing: ", [](auto& h) { h.pixdim[1] = std::nan(""), h.sform_code = 0; }},
  };
  const std::string file = FileOf(SomeHeader());
  for (const Case& c : cases) {
    EXPECT_THAT(ReadNifti(Put("two.nii", AsNifti2(file, c.change))), Fails(kInvalid, c.message)) << c.message;
  }
  EXPECT_THAT(ReadNifti(Put("two.nii", AsNifti2(file, [](auto& h) { h.dim[3] = 3; }))), Fails(kDataLoss, "data: "));
  EXPECT_THAT(ReadNifti(Put("two.nii", AsNifti2(file).substr(0, 500))), Fails(kDataLoss, "header: ends after 500"));
}

// Without the sform, the quaternion must say the same.
TEST_F(NiftiTest, QformAgreesWithSform) {
  for (bool left_handed : {false, true}) {
    const HostVolume volume = RandomVolume(ObliqueGeometry({7, 5, 3}, left_handed), PixelType::kUint8);
    ASSERT_THAT(WriteNifti(Path("v.nii"), volume), Succeeds());
    std::string file = Get(Path("v.nii"));
    nifti_1_header h;
    std::memcpy(&h, file.data(), sizeof(h));
    h.sform_code = 0;
    std::fill(h.srow_x, h.srow_x + 12, std::nanf(""));
    std::memcpy(file.data(), &h, sizeof(h));
    const auto read = ReadNifti(Put("q.nii", file));
    ASSERT_THAT(read, Succeeds());
    ExpectNear(read->geometry, volume.geometry);
  }
}

// A half turn has a = 0, where rounding can make the quaternion a little longer than 1.
TEST_F(NiftiTest, QformOfAHalfTurn) {
  nifti_1_header h = SomeHeader();
  h.sform_code = 0;
  h.qform_code = 1;
  h.quatern_b = h.quatern_c = 0.70710683f;
  const auto read = ReadNifti(Put("v.nii", FileOf(h)));
  ASSERT_THAT(read, Succeeds());
  const double expected[3][3] = {{0, -1, 0}, {-1, 0, 0}, {0, 0, -1}};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(read->geometry.direction[r][c], expected[r][c], 1e-6) << r << c;
}

TEST_F(NiftiTest, RasBecomesLpsAndSformComesFirst) {
  nifti_1_header h = SomeHeader();
  h.qform_code = 1;
  h.quatern_b = 1;
  const auto read = ReadNifti(Put("v.nii", FileOf(h)));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->geometry.origin, (Vec3d{-10, -20, 30}));
  EXPECT_EQ(read->geometry.spacing, (Vec3d{2, 2, 2}));
  EXPECT_EQ(read->geometry.direction[0][0], -1);
  EXPECT_EQ(read->geometry.direction[1][1], -1);
  EXPECT_EQ(read->geometry.direction[2][2], 1);
  EXPECT_EQ(read->rescale_slope, 1);
}

TEST_F(NiftiTest, NeitherFormMeansSpacingAlone) {
  nifti_1_header h = SomeHeader();
  h.sform_code = 0;
  h.pixdim[2] = 0.5;
  const auto read = ReadNifti(Put("v.nii", FileOf(h)));
  ASSERT_THAT(read, Succeeds());
  Geometry expected;
  expected.size = {4, 3, 2};
  expected.spacing = {2, 0.5, 2};
  EXPECT_EQ(read->geometry, expected);
}

TEST_F(NiftiTest, Units) {
  for (const auto& [unit, factor] : {std::pair<int, double>{0, 1}, {1, 1e3}, {2, 1}, {3, 1e-3}, {2 + 8, 1}}) {
    nifti_1_header h = SomeHeader();
    h.xyzt_units = static_cast<char>(unit);
    const auto read = ReadNifti(Put("v.nii", FileOf(h)));
    ASSERT_THAT(read, Succeeds());
    EXPECT_DOUBLE_EQ(read->geometry.spacing.y, 2 * factor);
    EXPECT_DOUBLE_EQ(read->geometry.origin.z, 30 * factor);
  }
  nifti_1_header h = SomeHeader();
  h.xyzt_units = 5;
  EXPECT_THAT(ReadNifti(Put("v.nii", FileOf(h))), Fails(kInvalid, "units: 5"));
}

TEST_F(NiftiTest, BothByteOrders) {
  const std::string native = FileOf(SomeHeader());
  const auto expected = ReadNifti(Put("a.nii", native));
  const auto read = ReadNifti(Put("b.nii", OtherByteOrder(native, 2)));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->geometry, expected->geometry);
  EXPECT_EQ(read->pixels, expected->pixels);
  const auto zipped = ReadNifti(Put("b.nii.gz", Gzip(OtherByteOrder(native, 2))));
  ASSERT_THAT(zipped, Succeeds());
  EXPECT_EQ(zipped->pixels, expected->pixels);
}

TEST_F(NiftiTest, HeaderAndImagePair) {
  nifti_1_header h = SomeHeader();
  std::memcpy(h.magic, "ni1", 4);
  h.vox_offset = 0;
  const std::string file = FileOf(h);
  for (const char* zip : {"", ".gz"}) {
    const bool packed = *zip != 0;
    const std::string hdr = file.substr(0, 348), img = file.substr(352);
    Put(std::string("v.hdr") + zip, packed ? Gzip(hdr) : hdr);
    Put(std::string("v.img") + zip, packed ? Gzip(img) : img);
    for (const char* name : {"v.hdr", "v.img"}) {
      const auto read = ReadNifti(Path(std::string(name) + zip));
      ASSERT_THAT(read, Succeeds()) << name << zip;
      EXPECT_EQ(std::string(read->pixels.begin(), read->pixels.end()), img);
    }
  }
  Put("alone.hdr", file.substr(0, 348));
  EXPECT_THAT(ReadNifti(Path("alone.hdr")), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(ReadNifti(Put("v.nii", file)), Fails(kInvalid, "header: "));
}

TEST_F(NiftiTest, ExtensionsAreSkipped) {
  nifti_1_header h = SomeHeader();
  h.vox_offset = 352 + 4096;
  std::string file = FileOf(h);
  const std::string pixels = file.substr(352);
  file.insert(352, std::string(4096, 'e'));
  for (const std::string& path : {Put("v.nii", file), Put("v.nii.gz", Gzip(file))}) {
    const auto read = ReadNifti(path);
    ASSERT_THAT(read, Succeeds());
    EXPECT_EQ(std::string(read->pixels.begin(), read->pixels.end()), pixels);
  }
}

TEST_F(NiftiTest, TwoDimensionalFilesWithoutAThirdAxis) {
  nifti_1_header h = SomeHeader();
  h.dim[0] = 2;
  h.dim[3] = 0;
  h.pixdim[3] = 0;
  std::fill(h.srow_z, h.srow_z + 3, 0.f);
  h.srow_x[0] = 0, h.srow_x[1] = 2, h.srow_y[0] = 2, h.srow_y[1] = 0;
  const auto read = ReadNifti(Put("v.nii", FileOf(h, 24)));
  ASSERT_THAT(read, Succeeds());
  EXPECT_TRUE(read->geometry.is_2d());
  EXPECT_EQ(read->geometry.spacing, (Vec3d{2, 2, 1}));
  EXPECT_EQ(read->geometry.direction[2][2], -1);
}

TEST_F(NiftiTest, RescaleIsTakenWhereItIsMeant) {
  const auto rescale = [&](float slope, float intercept) {
    nifti_1_header h = SomeHeader();
    h.scl_slope = slope;
    h.scl_inter = intercept;
    return ReadNifti(Put("v.nii", FileOf(h)));
  };
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  for (float none : {0.f, nan}) {
    EXPECT_EQ(rescale(none, 7)->rescale_slope, 1);
    EXPECT_EQ(rescale(none, 7)->rescale_intercept, 0);
  }
  EXPECT_EQ(rescale(-2, 7)->rescale_slope, -2);
  EXPECT_EQ(rescale(-2, 7)->rescale_intercept, 7);
  EXPECT_THAT(rescale(inf, 0), Fails(kInvalid, "rescale_slope: "));
  EXPECT_THAT(rescale(1, nan), Fails(kInvalid, "rescale_intercept: "));
  const std::vector<float> values = ToFloat(*rescale(-2, 7));
  ASSERT_EQ(values.size(), 24u);
  EXPECT_EQ(values[1], -2.f * (2 + 3 * 256) + 7);
}

TEST_F(NiftiTest, SformNoiseIsMadeOrthonormalAndShearsAreRefused) {
  nifti_1_header h = SomeHeader();
  h.srow_x[1] = 2e-4f;
  h.srow_y[2] = -3e-4f;
  const auto read = ReadNifti(Put("v.nii", FileOf(h)));
  ASSERT_THAT(read, Succeeds());
  const auto& d = read->geometry.direction;
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      EXPECT_NEAR(d[0][a] * d[0][b] + d[1][a] * d[1][b] + d[2][a] * d[2][b], a == b, 1e-14);
    }
  }
  EXPECT_NEAR(d[0][1], -5e-5, 1e-8);
  EXPECT_NEAR(d[1][0], 5e-5, 1e-8);
  h.srow_x[1] = 0.2f;
  EXPECT_THAT(ReadNifti(Put("v.nii", FileOf(h))), Fails(kInvalid, "direction: axes x and y"));
}

TEST_F(NiftiTest, WritingIsDeterministicAndRefusesNonsense) {
  const HostVolume volume = RandomVolume(ObliqueGeometry({11, 7, 5}), PixelType::kInt16);
  ASSERT_THAT(WriteNifti(Path("a.nii.gz"), volume), Succeeds());
  ASSERT_THAT(WriteNifti(Path("b.nii.gz"), volume), Succeeds());
  const std::string bytes = Get(Path("a.nii.gz"));
  EXPECT_EQ(bytes, Get(Path("b.nii.gz")));
  EXPECT_EQ(bytes.substr(4, 4), std::string(4, '\0')) << "the time in the gzip header";

  EXPECT_THAT(WriteNifti(Path("a.mha"), volume), Fails(kInvalid, "path: "));
  EXPECT_THAT(WriteNifti(Path("no/a.nii"), volume), Fails(absl::StatusCode::kNotFound, "file: "));
  HostVolume wrong = volume;
  wrong.pixels.pop_back();
  EXPECT_THAT(WriteNifti(Path("c.nii"), wrong), Fails(kInvalid, "pixels: "));
  wrong = volume;
  wrong.geometry.spacing.x = 0;
  EXPECT_THAT(WriteNifti(Path("c.nii"), wrong), Fails(kInvalid, "spacing: x"));
  wrong = volume;
  wrong.rescale_slope = 0;
  EXPECT_THAT(WriteNifti(Path("c.nii"), wrong), Fails(kInvalid, "rescale_slope: "));
  EXPECT_FALSE(std::filesystem::exists(Path("c.nii")));
}

TEST_F(NiftiTest, AFullDiskIsAnError) {
  std::filesystem::create_symlink("/dev/full", Path("full.nii"));
  std::filesystem::create_symlink("/dev/full", Path("full.nii.gz"));
  const HostVolume volume = RandomVolume(ObliqueGeometry({64, 64, 64}), PixelType::kFloat32);
  for (const char* name : {"full.nii", "full.nii.gz"}) {
    EXPECT_THAT(WriteNifti(Path(name), volume), Fails(absl::StatusCode::kResourceExhausted, "file: ")) << name;
  }
  const HostVolume small = RandomVolume(ObliqueGeometry({2, 2, 2}), PixelType::kUint8);
  EXPECT_THAT(WriteNifti(Path("full.nii"), small), Fails(absl::StatusCode::kResourceExhausted, "file: "));
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
}

// Real files.

TEST_F(NiftiTest, SpmTemplatesAreLeftHanded) {
  const auto path = TestData("reg3d/templates_spm/avg152T1.nii.gz");
  if (!path) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  const auto t1 = ReadNifti(*path);
  ASSERT_THAT(t1, Succeeds());
  EXPECT_EQ(t1->geometry.size, (Int3{91, 109, 91}));
  EXPECT_EQ(t1->geometry.spacing, (Vec3d{2, 2, 2}));
  EXPECT_LT(Determinant(IndexToPhysical(t1->geometry)), 0);
  const auto t2 = ReadNifti(*TestData("reg3d/templates_spm/avg152T2.nii.gz"));
  ASSERT_THAT(t2, Succeeds());
  EXPECT_TRUE(SameGrid(t1->geometry, t2->geometry));
  // The commissure, the origin of the template's space, is inside: RAS and LPS 0 alike.
  const Vec3d index = PhysicalToIndex(t1->geometry)({0, 0, 0});
  for (int a = 0; a < 3; ++a) EXPECT_NEAR(index[a], std::round(index[a]), 1e-4);
  EXPECT_NEAR(index.y, 63, 1e-3);
}

TEST_F(NiftiTest, TwoDimensionalFilesOfNiftyReg) {
  const auto path = TestData("reg2d/niftyreg_regtest/brainweb_2D.nii.gz");
  if (!path) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  const auto image = ReadNifti(*path);
  ASSERT_THAT(image, Succeeds());
  EXPECT_EQ(image->geometry.size, (Int3{181, 217, 1}));
  EXPECT_EQ(image->pixel_type, PixelType::kUint8);
  EXPECT_LT(Determinant(IndexToPhysical(image->geometry)), 0);
  EXPECT_FALSE(ReadNifti(*TestData("reg2d/niftyreg_regtest/test_DEF_BW_2D.nii.gz")).ok());
}

TEST_F(NiftiTest, EveryScalarFileOfTheTestDataIsRead) {
  const auto folder = TestData("reg3d");
  if (!folder) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  int read = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(*folder)) {
    const std::string name = entry.path().string();
    if (!name.ends_with(".nii.gz") || name.find("us_label") != name.npos || name.find("mr_label") != name.npos)
      continue;
    const auto volume = ReadNifti(name);
    EXPECT_THAT(volume, Succeeds()) << name;
    if (!volume.ok()) continue;
    ++read;
    std::vector<uint8_t> pixels = volume->pixels;
    EXPECT_TRUE(std::any_of(pixels.begin(), pixels.end(), [](uint8_t b) { return b != 0; })) << name;
  }
  EXPECT_GT(read, 30);
  EXPECT_THAT(ReadNifti(*TestData("reg3d/prostate_mr_us/case000025_us_label.nii.gz")),
              Fails(kInvalid, "size: 3 time points (4-D)"));
}

}  // namespace
}  // namespace intrawarp::io
