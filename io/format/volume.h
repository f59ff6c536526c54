// SPDX-License-Identifier: Apache-2.0
// Volumes, displacement fields and velocities on the host, as files hold them. Plain values; thread-compatible.
#ifndef INTRAWARP_IO_FORMAT_VOLUME_H_
#define INTRAWARP_IO_FORMAT_VOLUME_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"

namespace intrawarp::io {

// A volume on the host; x fastest, native byte order. The intensity of a pixel is slope * pixel + intercept.
struct HostVolume {
  Geometry geometry;
  PixelType pixel_type = PixelType::kUint8;
  double rescale_slope = 1;
  double rescale_intercept = 0;
  std::vector<uint8_t> pixels;  // geometry.voxels() * BytesPerPixel(pixel_type) bytes
  // False for a file that states none: its axes are then taken as LPS, which is a guess.
  bool has_orientation = true;
};

// Displacements T(p) - p at the voxel centres, x y z interleaved, LPS mm.
struct HostField {
  Geometry geometry;
  std::vector<float> displacement;  // 3 * geometry.voxels()
};

// T(x) = A(exp(v)(x)), fixed to moving: v at the voxel centres of the fixed image, x y z interleaved, LPS mm.
struct HostVelocity {
  AffineMap affine = AffineMap::Identity();
  Geometry geometry;
  std::vector<float> velocity;  // 3 * geometry.voxels()
};

// The most bytes that a reader takes for samples unless it is told another limit.
inline constexpr int64_t kDefaultMaxVolumeBytes = int64_t{16} << 30;

// The intensities of a volume as float32, rescaled.
std::vector<float> ToFloat(const HostVolume& volume);

// OK when a volume's or field's geometry is valid and its samples are as many as its size says; INVALID_ARGUMENT
// "pixels: ..." or "displacement: ..." or ValidateGeometry's otherwise.
absl::Status CheckVolume(const HostVolume& volume);
absl::Status CheckField(const HostField& field);

// geometry.voxels() * components when so many samples fit into `max_bytes`; RESOURCE_EXHAUSTED or OUT_OF_RANGE "size:
// ..." otherwise. `geometry` is valid.
absl::StatusOr<int64_t> CountSamples(const Geometry& geometry, int64_t components, PixelType type, int64_t max_bytes);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_VOLUME_H_
