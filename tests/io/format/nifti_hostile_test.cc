// SPDX-License-Identifier: Apache-2.0
// NIfTI files that lie, are cut short or damaged.
#include <nifti1_io.h>
#include <nifti2.h>
#include <zlib.h>

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "io/format/nifti.h"
#include "tests/io/format/nifti_fixture.h"

namespace intrawarp::io {
namespace {

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

}  // namespace
}  // namespace intrawarp::io
