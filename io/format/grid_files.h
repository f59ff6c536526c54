// SPDX-License-Identifier: Apache-2.0
// Volumes and displacement fields in any format, told apart by the suffix of the path:
//
//   .nii .nii.gz .hdr .hdr.gz .img .img.gz   NIfTI (nifti.h); the pairs are read, not written
//   .nrrd .nhdr                              NRRD (nrrd.h)
//   .mha .mhd                                MetaImage (metaimage.h)
//
// A path with another suffix is read as NIfTI, and is INVALID_ARGUMENT "path: ..." for a writer. Errors are those of
// the format. Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_GRID_FILES_H_
#define INTRAWARP_IO_FORMAT_GRID_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "io/format/volume.h"

namespace intrawarp::io {

enum class GridFormat { kNifti, kNrrd, kMetaImage };
GridFormat GridFormatOf(absl::string_view path);

// The suffixes that volumes and fields are written with.
const std::vector<std::string>& GridSuffixes();

absl::StatusOr<HostVolume> ReadVolumeFile(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);
absl::Status WriteVolumeFile(const std::string& path, const HostVolume& volume);
// float32 intensities, x fastest.
absl::Status WriteVolumeFile(const std::string& path, const Geometry& geometry, const float* values);

absl::StatusOr<HostField> ReadFieldFile(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);
// x y z interleaved, LPS mm.
absl::Status WriteFieldFile(const std::string& path, const Geometry& geometry, const float* displacement);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_GRID_FILES_H_
