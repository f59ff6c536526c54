// SPDX-License-Identifier: Apache-2.0
// The voxels of a stack: files are read again one by one, decoded, and put in their place.
#ifndef INTRAWARP_IO_DICOM_VOLUME_H_
#define INTRAWARP_IO_DICOM_VOLUME_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/dicom/stack.h"

namespace intrawarp::io::dicom {

// Leaves one frame at each position, and says so in `notes`; INVALID_ARGUMENT "slices: ..." when frames at one position
// differ in a pixel. Reads the pixels of those frames alone. Thread-safe, as is MakeVolume.
absl::Status DropRepeats(const std::vector<Instance>& instances, const DicomOptions& options, Stack* stack,
                         std::vector<std::string>* notes);

// The bytes of a voxel of the type that MakeVolume will choose. RESOURCE_EXHAUSTED "size: ..." above `max_bytes`.
absl::StatusOr<PixelType> VoxelTypeOf(const std::vector<Instance>& instances, const Stack& stack, const Grid& grid,
                                      int64_t max_bytes);

// `grid` is GridOf(stack). ABORTED "file: ..." when a file is not what it was when it was described.
absl::StatusOr<HostVolume> MakeVolume(const std::vector<Instance>& instances, const Stack& stack, const Grid& grid,
                                      const DicomOptions& options, std::vector<std::string>* notes);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_VOLUME_H_
