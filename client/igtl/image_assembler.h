// SPDX-License-Identifier: Apache-2.0
// ImageAssembler: whole images of partial ones (IMAGE messages with a subvolume). A volume is given out once each of
// its voxels has come, and with every part from then on. A part with another grid, type or byte order begins a new
// volume. Thread-compatible.
#ifndef INTRAWARP_CLIENT_IGTL_IMAGE_ASSEMBLER_H_
#define INTRAWARP_CLIENT_IGTL_IMAGE_ASSEMBLER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/igtl/codec/image.h"

namespace intrawarp::igtl {

class ImageAssembler {
 public:
  explicit ImageAssembler(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Whether the volume is whole now. RESOURCE_EXHAUSTED for a volume of more bytes than the limit.
  absl::StatusOr<bool> Add(const ImageContent& part);

  // The header of the volume as a whole image.
  const ImageHeader& header() const { return header_; }
  const std::string& voxels() const { return voxels_; }

 private:
  absl::Status Begin(const ImageHeader& header);

  const int64_t max_bytes_;
  ImageHeader header_;
  std::string voxels_;
  std::vector<bool> has_come_;
  int64_t missing_ = -1;  // -1: no volume yet
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_IMAGE_ASSEMBLER_H_
