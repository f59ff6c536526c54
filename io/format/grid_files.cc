// SPDX-License-Identifier: Apache-2.0
#include "io/format/grid_files.h"

#include <cstring>

#include "absl/strings/match.h"
#include "engine/base/status_macros.h"
#include "io/format/metaimage.h"
#include "io/format/nifti.h"
#include "io/format/nrrd.h"

namespace intrawarp::io {

GridFormat GridFormatOf(absl::string_view path) {
  if (absl::EndsWith(path, ".nrrd") || absl::EndsWith(path, ".nhdr")) return GridFormat::kNrrd;
  if (absl::EndsWith(path, ".mha") || absl::EndsWith(path, ".mhd")) return GridFormat::kMetaImage;
  return GridFormat::kNifti;
}

const std::vector<std::string>& GridSuffixes() {
  static const auto* const suffixes = new std::vector<std::string>{".nii.gz", ".nii", ".nrrd", ".nhdr", ".mha", ".mhd"};
  return *suffixes;
}

absl::StatusOr<HostVolume> ReadVolumeFile(const std::string& path, int64_t max_bytes) {
  switch (GridFormatOf(path)) {
    case GridFormat::kNrrd:
      return ReadNrrd(path, max_bytes);
    case GridFormat::kMetaImage:
      return ReadMetaImage(path, max_bytes);
    case GridFormat::kNifti:
      break;
  }
  return ReadNifti(path, max_bytes);
}

absl::Status WriteVolumeFile(const std::string& path, const HostVolume& volume) {
  switch (GridFormatOf(path)) {
    case GridFormat::kNrrd:
      return WriteNrrd(path, volume);
    case GridFormat::kMetaImage:
      return WriteMetaImage(path, volume);
    case GridFormat::kNifti:
      break;
  }
  return WriteNifti(path, volume);
}

absl::Status WriteVolumeFile(const std::string& path, const Geometry& geometry, const float* values) {
  if (GridFormatOf(path) == GridFormat::kNifti) return WriteNifti(path, geometry, PixelType::kFloat32, values);
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(geometry));
  HostVolume volume;
  volume.geometry = geometry;
  volume.pixel_type = PixelType::kFloat32;
  volume.pixels.resize(geometry.voxels() * sizeof(float));
  std::memcpy(volume.pixels.data(), values, volume.pixels.size());
  return WriteVolumeFile(path, volume);
}

absl::StatusOr<HostField> ReadFieldFile(const std::string& path, int64_t max_bytes) {
  switch (GridFormatOf(path)) {
    case GridFormat::kNrrd:
      return ReadNrrdField(path, max_bytes);
    case GridFormat::kMetaImage:
      return ReadMetaImageField(path, max_bytes);
    case GridFormat::kNifti:
      break;
  }
  return ReadField(path, max_bytes);
}

absl::Status WriteFieldFile(const std::string& path, const Geometry& geometry, const float* displacement) {
  switch (GridFormatOf(path)) {
    case GridFormat::kNrrd:
      return WriteNrrdField(path, geometry, displacement);
    case GridFormat::kMetaImage:
      return WriteMetaImageField(path, geometry, displacement);
    case GridFormat::kNifti:
      break;
  }
  return WriteField(path, geometry, displacement);
}

}  // namespace intrawarp::io
