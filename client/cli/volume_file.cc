// SPDX-License-Identifier: Apache-2.0
#include "client/cli/volume_file.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command_context.h"
#include "client/cli/files.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dicom.h"
#include "io/format/grid_files.h"
#include "wire/convert.h"

namespace intrawarp::cli {
namespace {

struct Source {
  std::string path;
  std::string series;
};

Source SplitSeries(const std::string& path) {
  std::error_code error;
  const size_t mark = path.rfind('#');
  if (mark == std::string::npos || std::filesystem::exists(path, error)) return {path, ""};
  return {path.substr(0, mark), path.substr(mark + 1)};
}

// A name that tells no format was tried as NIfTI: a user who gave something else needs the list.
absl::Status WithFormats(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsDataLoss(status)) return status;
  return Annotate(status, absl::StrCat("neither DICOM nor a file whose name ends in ",
                                       absl::StrJoin(io::GridSuffixes(), ", "), "; read as NIfTI"));
}

absl::StatusOr<LoadedVolume> LoadPlain(const std::string& path, const VolumeFileOptions& options) {
  if (!options.series.empty()) return absl::InvalidArgumentError("--series: the file is not DICOM");
  if (options.resample) return absl::InvalidArgumentError("--resample: the file is not DICOM");
  absl::StatusOr<io::HostVolume> read = io::ReadVolumeFile(path);
  if (!read.ok()) return HasVolumeSuffix(path) ? read.status() : WithFormats(read.status());
  io::HostVolume& volume = *read;
  AssumeOrientation(options.orientation, &volume);
  return LoadedVolume{std::move(volume), ProvenanceToProto(v1::PROVENANCE_SOURCE_FILE, "", "", "")};
}

absl::StatusOr<LoadedVolume> LoadDicom(const Source& source, const VolumeFileOptions& options) {
  if (!source.series.empty() && !options.series.empty()) {
    return absl::InvalidArgumentError("--series: the path names a series, too");
  }
  io::DicomOptions dicom;
  dicom.series = options.series.empty() ? source.series : options.series;
  dicom.resample = options.resample;
  INTRAWARP_ASSIGN_OR_RETURN(io::DicomVolume read, io::ReadDicom(source.path, dicom));
  const io::DicomProvenance& from = read.provenance;
  return LoadedVolume{std::move(read.volume), ProvenanceToProto(v1::PROVENANCE_SOURCE_DICOM, from.modality, from.series,
                                                                from.frame_of_reference)};
}

}  // namespace

absl::StatusOr<LoadedVolume> LoadVolume(const std::string& path, const VolumeFileOptions& options) {
  absl::StatusOr<LoadedVolume> volume =
      IsDicomPath(path) ? LoadDicom(SplitSeries(path), options) : LoadPlain(path, options);
  if (!volume.ok()) return Annotate(volume.status(), path);
  return volume;
}

void AssumeOrientation(const std::string& orientation, io::HostVolume* volume) {
  if (volume->has_orientation || orientation.empty()) return;
  volume->has_orientation = true;
  if (orientation != "RAS") return;
  Geometry& g = volume->geometry;
  for (int r = 0; r < 2; ++r) {
    g.origin[r] = 0 - g.origin[r];
    for (double& v : g.direction[r]) v = 0 - v;
  }
}

bool IsDicomPath(const std::string& path) {
  return !HasVolumeSuffix(path) && io::LooksLikeDicom(SplitSeries(path).path);
}

absl::StatusOr<io::DicomReference> LoadReference(const std::string& path) {
  const Source source = SplitSeries(path);
  io::DicomOptions options;
  options.series = source.series;
  absl::StatusOr<io::DicomReference> reference = io::DicomReference::Read(source.path, options);
  if (!reference.ok()) return Annotate(reference.status(), path);
  return reference;
}

}  // namespace intrawarp::cli
