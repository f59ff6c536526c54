// SPDX-License-Identifier: Apache-2.0
// One volume of a path as the files and frames that it is made of, before its voxels are read.
#ifndef INTRAWARP_IO_DICOM_SELECTION_H_
#define INTRAWARP_IO_DICOM_SELECTION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/dicom/dicom.h"
#include "io/dicom/instance.h"
#include "io/dicom/stack.h"

namespace intrawarp::io::dicom {

// Plain values.
struct Selection {
  DicomEntry entry;  // with an OK status
  std::vector<Instance> instances;
  Stack stack;
  Grid grid;
};

// The volume that ReadDicom would read; the errors are its own. Thread-safe.
absl::StatusOr<Selection> SelectVolume(const std::string& path, const DicomOptions& options);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_SELECTION_H_
