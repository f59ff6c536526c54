// SPDX-License-Identifier: Apache-2.0
// Volumes and displacement fields as MetaImage files: .mha, and .mhd with its samples in a file of their own.
//
// Read: two and three dimensions; raw and compressed samples (zlib, also gzip); both byte orders; the types of
// PixelType; directions of either hand (TransformMatrix, Rotation, Orientation); HeaderSize; DistanceUnits;
// ElementToIntensityFunctionSlope and -Offset as rescaling. Positions are LPS mm, as ITK has them. UNIMPLEMENTED by
// name: text samples, samples in several files, other types.
//
// Fields are images of as many channels as dimensions, in LPS mm, fixed to moving, as ITK and elastix have them.
//
// Written: .mha, raw; .mhd with raw samples beside it in STEM.DIGEST.raw (samples.h). Readers differ in whether they
// rescale, so that a volume with a rescaling is written as float32.
//
// Files are taken for hostile, as in nrrd.h. Errors begin with the key at fault ("DimSize: ..."). Thread-safe
// functions.
#ifndef INTRAWARP_IO_FORMAT_METAIMAGE_H_
#define INTRAWARP_IO_FORMAT_METAIMAGE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/format/volume.h"

namespace intrawarp::io {

absl::StatusOr<HostVolume> ReadMetaImage(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);
absl::StatusOr<HostField> ReadMetaImageField(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);

// By the suffix .mha or .mhd. The same input gives the same bytes; files are replaced at once (AtomicFile in file.h).
absl::Status WriteMetaImage(const std::string& path, const HostVolume& volume);
absl::Status WriteMetaImageField(const std::string& path, const Geometry& geometry, const float* displacement);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_METAIMAGE_H_
