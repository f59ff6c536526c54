// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/image_assembler.h"

#include <algorithm>
#include <cstring>

#include "engine/base/checked.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::igtl {
namespace {

bool IsSameVolume(const ImageHeader& a, const ImageHeader& b) {
  return a.components == b.components && a.pixel_type == b.pixel_type && a.is_big_endian == b.is_big_endian &&
         a.coordinates == b.coordinates && a.size == b.size && std::memcmp(a.matrix, b.matrix, sizeof(a.matrix)) == 0;
}

int64_t VoxelBytes(const ImageHeader& header) { return BytesPerPixel(header.pixel_type) * header.components; }

}  // namespace

absl::Status ImageAssembler::Begin(const ImageHeader& header) {
  missing_ = -1;
  int64_t voxels = 1;
  for (int axis = 0; axis < 3; ++axis) {
    INTRAWARP_ASSIGN_OR_RETURN(voxels, CheckedMultiply(voxels, header.size[axis]));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, CheckedMultiply(voxels, VoxelBytes(header)));
  if (bytes > max_bytes_) {
    return FieldError(absl::StatusCode::kResourceExhausted, "image.size", "makes a volume above the limit");
  }
  header_ = header;
  header_.part_begin = {};
  header_.part_size = header.size;
  voxels_.assign(static_cast<size_t>(bytes), '\0');
  has_come_.assign(static_cast<size_t>(voxels), false);
  missing_ = voxels;
  return absl::OkStatus();
}

absl::StatusOr<bool> ImageAssembler::Add(const ImageContent& part) {
  if (missing_ < 0 || !IsSameVolume(part.header, header_)) INTRAWARP_RETURN_IF_ERROR(Begin(part.header));
  const Int3 begin = part.header.part_begin, size = part.header.part_size;
  const int64_t voxel_bytes = VoxelBytes(header_);
  const char* from = part.voxels.data();
  for (int k = begin.z; k < begin.z + size.z; ++k) {
    for (int j = begin.y; j < begin.y + size.y; ++j, from += size.x * voxel_bytes) {
      const int64_t first = (int64_t{k} * header_.size.y + j) * header_.size.x + begin.x;
      std::memcpy(&voxels_[first * voxel_bytes], from, size.x * voxel_bytes);
      if (missing_ == 0) continue;
      missing_ -= std::count(has_come_.begin() + first, has_come_.begin() + first + size.x, false);
      std::fill_n(has_come_.begin() + first, size.x, true);
    }
  }
  return missing_ == 0;
}

}  // namespace intrawarp::igtl
