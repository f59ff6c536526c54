// SPDX-License-Identifier: Apache-2.0
// The DICOM items of the public test data: what each is read as, or why not, and how it compares with a reference.
#ifndef INTRAWARP_TESTS_IO_DICOM_DICOM_ITEMS_H_
#define INTRAWARP_TESTS_IO_DICOM_DICOM_ITEMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/dicom/dicom.h"

namespace intrawarp::io {

// Largest differences over all voxels of a volume from a reference that holds the same voxels in any order.
struct Difference {
  double intensity = 0;
  // Between where a voxel lies and where the reference has it, mm.
  double geometry_mm = 0;
  std::string reference;
};

struct ItemResult {
  std::string name;  // in the folder of the data
  absl::StatusOr<DicomVolume> volume;
  std::optional<Difference> difference;
};

// INVALID_ARGUMENT when voxels do not lie on the reference's.
absl::StatusOr<Difference> Compare(const HostVolume& volume, const HostVolume& reference, const std::string& name);

// One time point of a 4-D file of int16, which ReadNifti refuses.
absl::StatusOr<HostVolume> ReadTimePoint(const std::string& path, int time, const std::string& scratch);

// Unpacks into `scratch` with tar and gzip what has to be, and converts with dcm2niix where it is installed. Padding is
// kept, as the references keep it.
std::vector<ItemResult> ReadItems(const std::string& data, const std::string& scratch);

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_DICOM_DICOM_ITEMS_H_
