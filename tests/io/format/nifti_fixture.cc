// SPDX-License-Identifier: Apache-2.0
#include "tests/io/format/nifti_fixture.h"

#include <nifti1_io.h>
#include <nifti2.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"

namespace intrawarp::io {

std::vector<uint8_t> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(engine());
  return bytes;
}

void ExpectNear(const Geometry& a, const Geometry& b, double tolerance) {
  EXPECT_EQ(a.size, b.size);
  for (int r = 0; r < 3; ++r) {
    EXPECT_NEAR(a.spacing[r], b.spacing[r], tolerance) << r;
    EXPECT_NEAR(a.origin[r], b.origin[r], tolerance) << r;
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(a.direction[r][c], b.direction[r][c], 1e-6) << r << c;
  }
}

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

std::string FileOf(const nifti_1_header& h, size_t data_bytes) {
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

}  // namespace intrawarp::io
