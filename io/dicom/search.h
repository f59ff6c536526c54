// SPDX-License-Identifier: Apache-2.0
// The files that a path stands for: a file itself, the files below a folder, or those that a DICOMDIR names.
#ifndef INTRAWARP_IO_DICOM_SEARCH_H_
#define INTRAWARP_IO_DICOM_SEARCH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/dicom/dicom.h"

class DcmDataset;

namespace intrawarp::io::dicom {

// The regular files below a folder, sorted; links to folders are not followed. RESOURCE_EXHAUSTED "file: ..." above the
// limits on files and depth. Thread-safe.
absl::StatusOr<std::vector<std::string>> FilesBelow(const std::string& folder, const DicomLimits& limits);

// The files that the records of a DICOMDIR name. Names that leave the folder of the DICOMDIR are INVALID_ARGUMENT
// "file: ...". `path` is that of the DICOMDIR.
absl::StatusOr<std::vector<std::string>> FilesOfDirectory(DcmDataset& directory, const std::string& path,
                                                          const DicomLimits& limits);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_SEARCH_H_
