// SPDX-License-Identifier: Apache-2.0
// For the tests of volumes and fields in files: random ones, comparisons, and files as other programs write them.
#ifndef INTRAWARP_TESTS_IO_FORMAT_GRID_FILE_TEST_H_
#define INTRAWARP_TESTS_IO_FORMAT_GRID_FILE_TEST_H_

#include <zlib.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "io/format/volume.h"
#include "tests/engine/device_test.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {

inline constexpr PixelType kPixelTypes[] = {PixelType::kUint8,   PixelType::kInt8,   PixelType::kUint16,
                                            PixelType::kInt16,   PixelType::kUint32, PixelType::kInt32,
                                            PixelType::kFloat32, PixelType::kFloat64};

inline HostVolume NoiseVolume(const Geometry& geometry, PixelType type, uint32_t seed = 1) {
  std::mt19937 engine(seed);
  HostVolume volume;
  volume.geometry = geometry;
  volume.pixel_type = type;
  volume.pixels.resize(geometry.voxels() * BytesPerPixel(type));
  for (uint8_t& b : volume.pixels) b = static_cast<uint8_t>(engine());
  return volume;
}

inline HostField NoiseField(const Geometry& geometry, uint32_t seed = 1) {
  return {geometry, RandomFloats(3 * geometry.voxels(), seed, -10, 10)};
}

inline Geometry FlippedGeometry() {
  Geometry g;
  g.size = {6, 5, 4};
  g.spacing = {0.7, 1.1, 3};
  g.origin = {90, -126, -72};
  g.direction[0][0] = -1;
  return g;
}

// Oblique, anisotropic, of either hand, 2-D and one voxel.
inline std::vector<Geometry> SomeGeometries() {
  return {FlippedGeometry(), ObliqueGeometry({7, 5, 3}), ObliqueGeometry({7, 5, 3}, true), ObliqueGeometry({9, 4, 1}),
          ObliqueGeometry({1, 1, 1})};
}

inline void ExpectSameGrid(const Geometry& a, const Geometry& b, double tolerance = 1e-12) {
  EXPECT_EQ(a.size, b.size);
  for (int r = 0; r < 3; ++r) {
    EXPECT_NEAR(a.spacing[r], b.spacing[r], tolerance) << r;
    EXPECT_NEAR(a.origin[r], b.origin[r], tolerance) << r;
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(a.direction[r][c], b.direction[r][c], tolerance) << r << c;
  }
}

// `format`: zlib's window bits, 15 for zlib's own format, 31 for gzip's.
inline std::string Deflated(const std::string& plain, int format) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, format, 8, Z_DEFAULT_STRATEGY), Z_OK);
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

// Samples of `size` bytes in the other byte order.
inline std::string Reversed(std::string samples, size_t size) {
  for (size_t at = 0; at + size <= samples.size(); at += size) {
    std::reverse(samples.begin() + static_cast<ptrdiff_t>(at), samples.begin() + static_cast<ptrdiff_t>(at + size));
  }
  return samples;
}

inline std::string Counting(size_t bytes) {
  std::string samples;
  for (size_t i = 0; i < bytes; ++i) samples.push_back(static_cast<char>(i * 7));
  return samples;
}

// The tests that every format of volumes and fields passes; `names` are file names with the suffixes of the format.
class GridFileTest : public FileTest {
 protected:
  using Names = std::vector<std::string>;
  using ReadVolume = absl::StatusOr<HostVolume> (*)(const std::string& path, int64_t max_bytes);
  using WriteVolume = absl::Status (*)(const std::string& path, const HostVolume& volume);
  using ReadField = absl::StatusOr<HostField> (*)(const std::string& path, int64_t max_bytes);
  using WriteField = absl::Status (*)(const std::string& path, const Geometry& geometry, const float* displacement);

  // Volumes of every type and orientation come back.
  void ExpectVolumesComeBack(const Names& names, WriteVolume write, ReadVolume read) const {
    for (const Geometry& geometry : SomeGeometries()) {
      for (PixelType type : kPixelTypes) {
        for (const std::string& name : names) {
          const HostVolume volume = NoiseVolume(geometry, type);
          ASSERT_THAT(write(Path(name), volume), Succeeds());
          const auto back = read(Path(name), kDefaultMaxVolumeBytes);
          ASSERT_THAT(back, Succeeds());
          ExpectSameGrid(back->geometry, geometry);
          EXPECT_EQ(back->pixel_type, type);
          EXPECT_EQ(back->pixels, volume.pixels);
        }
      }
    }
  }

  // Fields of every orientation come back; `check` looks at each file.
  void ExpectFieldsComeBack(const Names& names, WriteField write, ReadField read,
                            const std::function<void(const std::string& path)>& check) const {
    for (const Geometry& geometry : SomeGeometries()) {
      const HostField field = NoiseField(geometry);
      for (const std::string& name : names) {
        ASSERT_THAT(write(Path(name), field.geometry, field.displacement.data()), Succeeds());
        const auto back = read(Path(name), kDefaultMaxVolumeBytes);
        ASSERT_THAT(back, Succeeds());
        ExpectSameGrid(back->geometry, geometry);
        EXPECT_EQ(back->displacement, field.displacement);
        check(Path(name));
      }
    }
  }

  // A header for 48 bytes, followed by compressed data that is too long, too short or cut. `format` as in Deflated.
  void ExpectLiesAreRefused(const std::string& name, const std::string& header, int format, ReadVolume read) const {
    const auto with = [&](const std::string& data) { return read(Put(name, header + data), kDefaultMaxVolumeBytes); };
    EXPECT_THAT(with(Deflated(Counting(49), format)),
                Fails(absl::StatusCode::kInvalidArgument, "data: there are more"));
    EXPECT_THAT(with(Deflated(Counting(47), format)), Fails(absl::StatusCode::kDataLoss, "data: ends after 47"));
    const std::string packed = Deflated(Counting(48), format);
    for (size_t length = 0; length < packed.size(); ++length) {
      EXPECT_THAT(with(packed.substr(0, length)), Fails(absl::StatusCode::kDataLoss, "data: ")) << length;
    }
  }
};

inline std::string Bytes(const HostVolume& volume) { return std::string(volume.pixels.begin(), volume.pixels.end()); }

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_FORMAT_GRID_FILE_TEST_H_
