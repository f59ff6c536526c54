// SPDX-License-Identifier: Apache-2.0
// A volume from a path that a user gave: NIfTI, NRRD or MetaImage by its suffix, or DICOM by what is there. Thread-safe
// functions.
#ifndef INTRAWARP_CLIENT_CLI_VOLUME_FILE_H_
#define INTRAWARP_CLIENT_CLI_VOLUME_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "intrawarp/v1/volume.pb.h"
#include "io/dicom/reference.h"
#include "io/format/nifti.h"

namespace intrawarp::cli {

struct VolumeFileOptions {
  // Which of several DICOM volumes; empty: what the path says.
  std::string series = {};
  // Missing, uneven and sheared DICOM slices are interpolated.
  bool resample = false;
  // How the axes of a file that states no orientation lie: "LPS", "RAS", or empty, which is LPS as a guess.
  std::string orientation = {};
};

struct LoadedVolume {
  io::HostVolume volume;
  v1::Provenance provenance;
};

// A file with a suffix of ReadVolumeFile's is read by that. A folder, a DICOMDIR and a file that begins like DICOM are
// DICOM, with PATH#SERIES for one of several volumes where no file has that whole name. Any other file is left to
// ReadVolumeFile. Errors begin with the path. An option that only DICOM has is INVALID_ARGUMENT for another file.
absl::StatusOr<LoadedVolume> LoadVolume(const std::string& path, const VolumeFileOptions& options = {});

// Gives a volume without an orientation the one of these words; empty changes nothing.
void AssumeOrientation(const std::string& orientation, io::HostVolume* volume);

// Whether LoadVolume would take the path for DICOM.
bool IsDicomPath(const std::string& path);

// The series of a DICOM path, for objects that refer to it. Errors begin with the path.
absl::StatusOr<io::DicomReference> LoadReference(const std::string& path);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_VOLUME_FILE_H_
