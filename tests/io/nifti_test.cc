// SPDX-License-Identifier: Apache-2.0
#include "io/nifti.h"

#include <nifti1_io.h>
#include <nifti2.h>
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "tests/engine/device_test.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using NiftiTest = FileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::vector<uint8_t> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(engine());
  return bytes;
}

HostVolume RandomVolume(const Geometry& geometry, PixelType type, uint32_t seed = 1) {
  HostVolume volume;
  volume.geometry = geometry;
  volume.pixel_type = type;
  volume.pixels = RandomBytes(geometry.voxels() * BytesPerPixel(type), seed);
  return volume;
}

void ExpectNear(const Geometry& a, const Geometry& b, double tolerance = 1e-5) {
  EXPECT_EQ(a.size, b.size);
  for (int r = 0; r < 3; ++r) {
    EXPECT_NEAR(a.spacing[r], b.spacing[r], tolerance) << r;
    EXPECT_NEAR(a.origin[r], b.origin[r], tolerance) << r;
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(a.direction[r][c], b.direction[r][c], 1e-6) << r << c;
  }
}

// A header as another program might have written it, 4x3x2 int16 with an sform of 2 mm voxels in RAS.
nifti_1_header SomeHeader() {
  nifti_1_header h{};
  h.sizeof_hdr = 348;
  const short dim[8] = {3, 4, 3, 2, 1, 1, 1, 1};
  std::copy(dim, dim + 8, h.dim);
  h.datatype = DT_INT16;
  h.bitpix = 16;
  for (float& p : h.pixdim) p = 1;
  for (int a = 1; a < 4; ++a) h.pixdim[a] = 2;
  h.vox_offset = 352;
  h.xyzt_units = NIFTI_UNITS_MM;
  h.sform_code = NIFTI_XFORM_SCANNER_ANAT;
  h.srow_x[0] = h.srow_y[1] = h.srow_z[2] = 2;
  h.srow_x[3] = 10, h.srow_y[3] = 20, h.srow_z[3] = 30;
  std::memcpy(h.magic, "n+1", 4);
  return h;
}

std::string FileOf(const nifti_1_header& h, size_t data_bytes = 48) {
  std::string file(reinterpret_cast<const char*>(&h), sizeof(h));
  file.resize(352);
  for (size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<char>(i));
  return file;
}

std::string Gzip(const std::string& plain) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, plain.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// The same file as a machine of the other byte order writes it. The offsets are those of the NIfTI-1 standard.
std::string OtherByteOrder(std::string file, int bytes_per_pixel) {
  const auto swap = [&](size_t at, size_t size) { std::reverse(file.begin() + at, file.begin() + at + size); };
  for (size_t at : {0, 32, 56, 60, 64, 108, 112, 116, 124, 128, 132, 136, 140, 144}) swap(at, 4);
  for (size_t at = 40; at < 56; at += 2) swap(at, 2);
  for (size_t at : {36, 68, 70, 72, 74, 120, 252, 254}) swap(at, 2);
  for (size_t at = 76; at < 108; at += 4) swap(at, 4);
  for (size_t at = 256; at < 328; at += 4) swap(at, 4);
  for (size_t at = 352; at < file.size(); at += bytes_per_pixel) swap(at, bytes_per_pixel);
  return file;
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

TEST_F(NiftiTest, LyingHeadersAreNamed) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  struct Case {
    const char* message;
    std::function<void(nifti_1_header&)> change;
    absl::StatusCode code = kInvalid;
  };
  const Case cases[] = {
      {"size: dim[0]", [](auto& h) { h.dim[0] = 0; }},
      {"size: dim[0]", [](auto& h) { h.dim[0] = 8; }},
      {"size: dim[1]", [](auto& h) { h.dim[1] = 0; }},
      {"size: dim[2]", [](auto& h) { h.dim[2] = -3; }},
      {"size: 2 time points", [](auto& h) { h.dim[0] = 4, h.dim[4] = 2; }},
      {"size: dim[4]", [](auto& h) { h.dim[0] = 4, h.dim[4] = 0; }},
      {"size: 3 components", [](auto& h) { h.dim[0] = 5, h.dim[5] = 3; }},
      {"size: more than 5", [](auto& h) { h.dim[0] = 7, h.dim[7] = 3; }},
      {"size: x", [](auto& h) { h.dim[1] = 32767; }},
      {"data: ends after", [](auto& h) { h.dim[3] = 3; }, kDataLoss},
      {"data: there are more", [](auto& h) { h.dim[3] = 1; }},
      {"size: 16384x16384x16384 takes", [](auto& h) { h.dim[1] = h.dim[2] = h.dim[3] = 16384; },
       absl::StatusCode::kResourceExhausted},
      {"data: ends after", [](auto& h) { h.dim[1] = h.dim[2] = 16384; }, kDataLoss},
      {"spacing: x", [](auto& h) { h.pixdim[1] = 0; }},
      {"spacing: y", [](auto& h) { h.pixdim[2] = -2; }},
      {"spacing: z", [nan](auto& h) { h.pixdim[3] = nan; }},
      {"spacing: z", [inf](auto& h) { h.pixdim[3] = inf; }},
      {"spacing: x", [](auto& h) { h.srow_x[0] = 0; }},
      {"spacing: x", [nan](auto& h) { h.srow_x[0] = nan; }},
      {"spacing: y", [inf](auto& h) { h.srow_y[1] = inf; }},
      {"spacing: z", [](auto& h) { h.srow_z[2] = 1e30f; }},
      {"origin: y", [nan](auto& h) { h.srow_y[3] = nan; }},
      {"origin: z", [](auto& h) { h.srow_z[3] = 1e20f; }},
      {"direction: axes x and z", [](auto& h) { h.srow_z[2] = 0, h.srow_x[2] = 2; }},
      {"direction: the quaternion", [](auto& h) { h.sform_code = 0, h.qform_code = 1, h.quatern_b = 2; }},
      {"direction: the quaternion", [nan](auto& h) { h.sform_code = 0, h.qform_code = 1, h.quatern_d = nan; }},
      {"origin: x", [inf](auto& h) { h.sform_code = 0, h.qform_code = 1, h.qoffset_x = inf; }},
      {"bitpix: is 8", [](auto& h) { h.bitpix = 8; }},
      {"datatype: 3 is none", [](auto& h) { h.datatype = 3; }},
      {"datatype: 0 is none", [](auto& h) { h.datatype = 0; }},
      {"RGB24", [](auto& h) { h.datatype = DT_RGB24, h.bitpix = 24; }, kUnimplemented},
      {"COMPLEX64", [](auto& h) { h.datatype = DT_COMPLEX64, h.bitpix = 64; }, kUnimplemented},
      {"INT64", [](auto& h) { h.datatype = DT_INT64, h.bitpix = 64; }, kUnimplemented},
      {"vox_offset: ", [](auto& h) { h.vox_offset = 0; }},
      {"vox_offset: ", [](auto& h) { h.vox_offset = -352; }},
      {"vox_offset: ", [](auto& h) { h.vox_offset = 352.5; }},
      {"vox_offset: ", [nan](auto& h) { h.vox_offset = nan; }},
      {"vox_offset: ", [](auto& h) { h.vox_offset = 1e12f; }},
      {"data: ends after", [](auto& h) { h.vox_offset = 100000; }, kDataLoss},
      {"header: not a NIfTI file", [](auto& h) { h.sizeof_hdr = 349; }},
      {"header: ends after 400 of 540", [](auto& h) { h.sizeof_hdr = 540; }, kDataLoss},
      {"header: the magic", [](auto& h) { h.magic[1] = '2'; }},
  };
  for (const Case& c : cases) {
    nifti_1_header h = SomeHeader();
    c.change(h);
    EXPECT_THAT(ReadNifti(Put("v.nii", FileOf(h))), Fails(c.code, c.message)) << "plain";
    // The length of a compressed file is not known beforehand; tests of truncation below cover it.
    if (c.code == kDataLoss) continue;
    EXPECT_THAT(ReadNifti(Put("v.nii.gz", Gzip(FileOf(h)))), Fails(c.code, c.message)) << "compressed";
  }
}

TEST_F(NiftiTest, EveryTruncationIsRefused) {
  const std::string plain = FileOf(SomeHeader());
  const std::string packed = Gzip(plain);
  for (size_t length = 0; length < plain.size(); ++length) {
    EXPECT_THAT(ReadNifti(Put("v.nii", plain.substr(0, length))), Fails(kDataLoss, "ends after")) << length;
  }
  for (size_t length = 0; length < packed.size(); ++length) {
    const auto read = ReadNifti(Put("v.nii.gz", packed.substr(0, length)));
    EXPECT_FALSE(read.ok()) << length;
    EXPECT_EQ(read.status().code(), kDataLoss) << length << read.status();
  }
  EXPECT_THAT(ReadNifti(Put("v.nii.gz", packed)), Succeeds());
}

TEST_F(NiftiTest, EveryFlippedBitOfACompressedFileIsRefusedOrHarmless) {
  const std::string plain = FileOf(SomeHeader());
  const std::string packed = Gzip(plain);
  const auto expected = ReadNifti(Put("v.nii.gz", packed));
  int refused = 0;
  for (size_t at = 10; at < packed.size(); ++at) {
    std::string broken = packed;
    broken[at] ^= 0x10;
    const auto read = ReadNifti(Put("v.nii.gz", broken));
    refused += !read.ok();
    // A copy of zeros from elsewhere is a copy of zeros.
    if (read.ok()) {
      EXPECT_EQ(read->pixels, expected->pixels) << at;
    }
  }
  EXPECT_GT(refused, static_cast<int>(packed.size()) - 20);
}

TEST_F(NiftiTest, EveryChangedHeaderByteIsSurvived) {
  const std::string plain = FileOf(SomeHeader());
  std::mt19937 engine(7);
  for (int round = 0; round < 3000; ++round) {
    std::string broken = plain;
    for (int change = 0; change < 1 + round % 4; ++change) broken[engine() % 348] = static_cast<char>(engine());
    const auto read = ReadNifti(Put("v.nii", broken), 1 << 20);
    if (!read.ok()) continue;
    EXPECT_TRUE(ValidateGeometry(read->geometry).ok());
    EXPECT_EQ(static_cast<int64_t>(read->pixels.size()), read->geometry.voxels() * BytesPerPixel(read->pixel_type));
  }
}

// 8 GiB promised by a file of a few hundred bytes, and by one that really unpacks to far less.
TEST_F(NiftiTest, CompressedLiesTakeNoMemory) {
  nifti_1_header h = SomeHeader();
  h.dim[1] = h.dim[2] = 16384;
  h.dim[3] = 16;
  EXPECT_THAT(ReadNifti(Put("v.nii.gz", Gzip(FileOf(h)))), Fails(kDataLoss, "data: the file is too short"));
  const std::vector<uint8_t> noise = RandomBytes(9 << 20, 3);
  EXPECT_THAT(ReadNifti(Put("w.nii.gz", Gzip(FileOf(h) + std::string(noise.begin(), noise.end())))),
              Fails(kDataLoss, "data: ends after"));
}

TEST_F(NiftiTest, LimitIsInBytes) {
  const std::string path = Put("v.nii", FileOf(SomeHeader()));
  EXPECT_THAT(ReadNifti(path, 48), Succeeds());
  EXPECT_THAT(ReadNifti(path, 47), Fails(absl::StatusCode::kResourceExhausted, "size: 4x3x2 takes 48 bytes"));
}

TEST_F(NiftiTest, OddFiles) {
  EXPECT_THAT(ReadNifti(Path("none.nii")), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(ReadNifti(folder_.string()), Fails(kInvalid, "file: not a regular"));
  EXPECT_THAT(ReadNifti("/dev/zero"), Fails(kInvalid, "file: not a regular"));
  EXPECT_THAT(ReadNifti(Put("empty.nii", "")), Fails(kDataLoss, "header: ends after 0"));
  EXPECT_THAT(ReadNifti(Put("text.nii", std::string(1000, 'x'))), Fails(kInvalid, "header: not a NIfTI file"));
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

HostField RandomField(const Geometry& geometry) { return {geometry, RandomFloats(3 * geometry.voxels(), 5, -20, 20)}; }

TEST_F(NiftiTest, FieldsComeBack) {
  for (const Geometry& geometry :
       {ObliqueGeometry({7, 5, 3}, true), ObliqueGeometry({9, 4, 1}), ObliqueGeometry({300, 1000, 1})}) {
    for (const char* name : {"f.nii", "f.nii.gz"}) {
      const HostField field = RandomField(geometry);
      ASSERT_THAT(WriteField(Path(name), field), Succeeds());
      const auto read = ReadField(Path(name));
      ASSERT_THAT(read, Succeeds());
      ExpectNear(read->geometry, geometry);
      EXPECT_EQ(read->displacement, field.displacement);
      EXPECT_THAT(ReadNifti(Path(name)), Fails(kInvalid, "size: 3 components"));
    }
  }
}

// The layout that ITK and ANTs expect, byte for byte where it matters.
TEST_F(NiftiTest, FieldLayout) {
  const HostField field = RandomField(ObliqueGeometry({4, 3, 2}));
  ASSERT_THAT(WriteField(Path("f.nii"), field), Succeeds());
  const std::string file = Get(Path("f.nii"));
  nifti_1_header h;
  std::memcpy(&h, file.data(), sizeof(h));
  const short dim[8] = {5, 4, 3, 2, 1, 3, 1, 1};
  EXPECT_TRUE(std::equal(dim, dim + 8, h.dim));
  EXPECT_EQ(h.intent_code, 1007);
  EXPECT_EQ(h.datatype, DT_FLOAT32);
  ASSERT_EQ(file.size(), 352u + 24 * 3 * 4);
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 24; ++i) {
      float v;
      std::memcpy(&v, file.data() + 352 + 4 * (24 * c + i), 4);
      EXPECT_EQ(v, field.displacement[3 * i + c]);
    }
  }
}

TEST_F(NiftiTest, FieldsOfOthers) {
  const auto field_of = [&](const std::function<void(nifti_1_header&)>& change, int values, bool as_double = false,
                            bool swapped = false) {
    nifti_1_header h = SomeHeader();
    h.dim[0] = 5, h.dim[5] = 3;
    h.datatype = as_double ? DT_FLOAT64 : DT_FLOAT32;
    h.bitpix = as_double ? 64 : 32;
    h.intent_code = NIFTI_INTENT_VECTOR;
    change(h);
    std::string file = FileOf(h, 0);
    for (int i = 0; i < values; ++i) {
      const double d = i + 0.5;
      const float f = static_cast<float>(d);
      file.append(as_double ? reinterpret_cast<const char*>(&d) : reinterpret_cast<const char*>(&f), as_double ? 8 : 4);
    }
    return ReadField(Put("f.nii", swapped ? OtherByteOrder(file, as_double ? 8 : 4) : file));
  };
  const auto nothing = [](nifti_1_header&) {};
  for (bool as_double : {false, true}) {
    for (bool swapped : {false, true}) {
      const auto field = field_of(nothing, 72, as_double, swapped);
      ASSERT_THAT(field, Succeeds());
      EXPECT_EQ(field->displacement[3 * 5 + 1], 24 + 5 + 0.5f);
    }
  }
  const auto ras = field_of([](auto& h) { h.intent_code = NIFTI_INTENT_DISPVECT; }, 72);
  ASSERT_THAT(ras, Succeeds());
  EXPECT_EQ(ras->displacement[0], -0.5f);
  EXPECT_EQ(ras->displacement[1], -24.5f);
  EXPECT_EQ(ras->displacement[2], 48.5f);
  const auto planar = field_of([](auto& h) { h.dim[3] = 1, h.dim[5] = 2; }, 24);
  ASSERT_THAT(planar, Succeeds());
  EXPECT_EQ(planar->displacement[3 * 11 + 1], 23.5f);
  EXPECT_EQ(planar->displacement[3 * 11 + 2], 0.f);

  EXPECT_THAT(field_of([](auto& h) { h.dim[5] = 2; }, 48), Fails(kInvalid, "size: a displacement field"));
  EXPECT_THAT(field_of([](auto& h) { h.dim[0] = 3; }, 24), Fails(kInvalid, "size: a displacement field"));
  EXPECT_THAT(field_of([](auto& h) { h.dim[4] = 3, h.dim[5] = 1; }, 72), Fails(kInvalid, "size: a displacement"));
  EXPECT_THAT(field_of([](auto& h) { h.intent_code = 0; }, 72), Fails(kInvalid, "intent: is 0"));
  EXPECT_THAT(field_of([](auto& h) { std::memcpy(h.intent_name, "NREG_TRANS", 10); }, 72),
              Fails(kUnimplemented, "intent: "));
  EXPECT_THAT(field_of([](auto& h) { h.xyzt_units = 1; }, 72), Fails(kUnimplemented, "units: "));
  EXPECT_THAT(field_of([](auto& h) { h.datatype = DT_INT32; }, 72), Fails(kUnimplemented, "datatype: "));
  EXPECT_THAT(field_of(nothing, 71), Fails(kDataLoss, "data: ends after 284 of 288"));
  HostField broken = RandomField(ObliqueGeometry({4, 3, 2}));
  broken.displacement[3 * 7 + 2] = std::numeric_limits<float>::infinity();
  ASSERT_THAT(WriteField(Path("g.nii"), broken), Succeeds());
  EXPECT_THAT(ReadField(Path("g.nii")), Fails(kInvalid, "displacement: voxel 7"));
}

HostVelocity RandomVelocity(const Geometry& geometry) {
  AffineMap affine = AffineMap::Identity();
  affine.m[0][1] = 1.0 / 3;
  affine.m[2][3] = -1e-7 / 7;
  return {affine, geometry, RandomFloats(3 * geometry.voxels(), 6, -20, 20)};
}
absl::Status Write(const std::string& path, const HostVelocity& v) {
  return WriteVelocity(path, v.affine, v.geometry, v.velocity.data());
}

TEST_F(NiftiTest, VelocitiesComeBackWithTheirMapAndAreNoDisplacements) {
  for (const Geometry& geometry : {ObliqueGeometry({7, 5, 3}, true), ObliqueGeometry({9, 4, 1})}) {
    const HostVelocity velocity = RandomVelocity(geometry);
    for (const char* name : {"v.nii", "v.nii.gz"}) {
      ASSERT_THAT(Write(Path(name), velocity), Succeeds());
      EXPECT_TRUE(*HoldsVelocity(Path(name)));
      const auto read = ReadVelocity(Path(name));
      ASSERT_THAT(read, Succeeds());
      ExpectNear(read->geometry, geometry);
      EXPECT_EQ(read->velocity, velocity.velocity);
      for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < 4; ++c) EXPECT_EQ(read->affine.m[r][c], velocity.affine.m[r][c]);
      }
      EXPECT_THAT(ReadField(Path(name)), Fails(kInvalid, "intent: a velocity"));
    }
  }
  ASSERT_THAT(WriteField(Path("f.nii"), RandomField(ObliqueGeometry({4, 3, 2}))), Succeeds());
  EXPECT_FALSE(*HoldsVelocity(Path("f.nii")));
  EXPECT_THAT(ReadVelocity(Path("f.nii")), Fails(kInvalid, "intent: must be"));
  EXPECT_FALSE(HoldsVelocity(Path("none.nii")).ok());
}

// Other programs find the voxels behind a comment of theirs.
TEST_F(NiftiTest, VelocityLayout) {
  const HostVelocity velocity = RandomVelocity(ObliqueGeometry({4, 3, 2}));
  ASSERT_THAT(Write(Path("v.nii"), velocity), Succeeds());
  const std::string file = Get(Path("v.nii"));
  nifti_1_header h;
  std::memcpy(&h, file.data(), sizeof(h));
  EXPECT_EQ(h.intent_code, 1007);
  EXPECT_STREQ(h.intent_name, "velocity");
  int32_t extension[2];
  std::memcpy(extension, file.data() + 352, 8);
  EXPECT_EQ(file.substr(348, 4), std::string("\1\0\0\0", 4));
  EXPECT_EQ(extension[0] % 16, 0);
  EXPECT_EQ(extension[1], 6);
  EXPECT_EQ(h.vox_offset, 352 + extension[0]);
  ASSERT_EQ(file.size(), h.vox_offset + 24 * 3 * 4);
  float v;
  std::memcpy(&v, file.data() + 352 + extension[0] + 4 * (24 * 2 + 5), 4);
  EXPECT_EQ(v, velocity.velocity[3 * 5 + 2]);
  nifti_image* const image = nifti_image_read(Path("v.nii").c_str(), 1);
  ASSERT_NE(image, nullptr);
  EXPECT_EQ(image->num_ext, 1);
  EXPECT_EQ(static_cast<const float*>(image->data)[24 * 2 + 5], v);
  nifti_image_free(image);
}

TEST_F(NiftiTest, BrokenVelocitiesAreRefused) {
  const HostVelocity velocity = RandomVelocity(ObliqueGeometry({4, 3, 2}));
  ASSERT_THAT(Write(Path("v.nii"), velocity), Succeeds());
  const std::string good = Get(Path("v.nii"));
  const auto changed = [&](size_t at, const std::string& bytes) {
    std::string file = good;
    file.replace(at, bytes.size(), bytes);
    return ReadVelocity(Put("w.nii", file));
  };
  const auto number = [](int32_t n) { return std::string(reinterpret_cast<const char*>(&n), 4); };
  EXPECT_THAT(changed(348, std::string(1, '\0')), Fails(kInvalid, "extension: the affine map"));
  for (const int32_t size : {0, -16, 8, 17, 1 << 30, 4096}) {
    EXPECT_THAT(changed(352, number(size)), Fails(kInvalid, "extension: its size")) << size;
  }
  EXPECT_THAT(changed(356, number(4)), Fails(kInvalid, "extension: the affine map"));
  EXPECT_THAT(changed(360, "x"), Fails(kInvalid, "extension: the affine map"));
  const size_t row = good.find('\n', 360) + 1;
  EXPECT_THAT(changed(row, "x"), Fails(kInvalid, "extension: line 2"));
  EXPECT_THAT(changed(row, std::string(40, '\0')), Fails(kInvalid, "extension: matrix"));
  EXPECT_THAT(ReadVelocity(Put("w.nii", good.substr(0, 350))), Fails(kDataLoss, "header: is cut short"));
  EXPECT_THAT(ReadVelocity(Put("w.nii", good.substr(0, 400))), Fails(kDataLoss, "extension: is cut short"));
  EXPECT_THAT(ReadVelocity(Put("w.nii", good.substr(0, good.size() - 1))), Fails(kDataLoss, "data: "));

  // Someone else's extension before ours.
  std::string two = good;
  two.insert(352, number(32) + number(4) + std::string(24, 'd'));
  nifti_1_header h;
  std::memcpy(&h, two.data(), sizeof(h));
  h.vox_offset += 32;
  two.replace(0, sizeof(h), reinterpret_cast<const char*>(&h), sizeof(h));
  const auto read = ReadVelocity(Put("two.nii", two));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->velocity, velocity.velocity);
  EXPECT_EQ(read->affine.m[0][1], 1.0 / 3);

  std::mt19937 engine(3);
  for (int round = 0; round < 500; ++round) {
    std::string broken = good;
    for (int change = 0; change < 1 + round % 4; ++change) broken[engine() % 760] = static_cast<char>(engine());
    (void)ReadVelocity(Put("v.nii", broken), 1 << 20);
  }
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
