// SPDX-License-Identifier: Apache-2.0
// The content of an IMAGE message: a header of 72 bytes and voxels, x fastest.
//
// The columns of the matrix are the axes of the image, each as long as the distance of its voxels in mm; the fourth is
// the position of the CENTRE of the volume. Plain values; thread-safe functions.
#ifndef INTRAWARP_CLIENT_IGTL_CODEC_IMAGE_H_
#define INTRAWARP_CLIENT_IGTL_CODEC_IMAGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/igtl/codec/message.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"

namespace intrawarp::igtl {

enum class Coordinates { kRas, kLps };

struct ImageHeader {
  int components = 1;
  PixelType pixel_type = PixelType::kFloat32;
  bool is_big_endian = false;
  Coordinates coordinates = Coordinates::kRas;
  Int3 size{1, 1, 1};
  float matrix[3][4]{};
  // The part of the volume that the voxels are.
  Int3 part_begin{0, 0, 0};
  Int3 part_size{1, 1, 1};

  bool is_whole() const { return part_begin == Int3{} && part_size == size; }
};

struct ImageContent {
  ImageHeader header;
  // These lie in the message.
  absl::string_view voxels;
};

// INVALID_ARGUMENT, naming the field: a header that is cut, an unknown type, byte order or coordinate system, a part
// beyond the volume, too many or too few bytes for the part's voxels.
absl::StatusOr<ImageContent> ParseImage(absl::string_view content);
// The header of a content whose voxels may lie elsewhere. Errors of ParseImage but those about the voxels.
absl::StatusOr<ImageHeader> ParseImageHeader(absl::string_view content);
// The part of a body that is the voxels of an IMAGE, by the first bytes of the body. Errors of ParseImage and LayoutOf.
struct VoxelPart {
  ImageHeader header;
  size_t begin = 0;
  size_t bytes = 0;
};
absl::StatusOr<VoxelPart> FindVoxels(const MessageHeader& header, absl::string_view body_begin);
// The 72 bytes of a header. The size is at most 65535 along each axis.
std::string PackImageHeader(const ImageHeader& header);

// The grid in LPS mm. Errors of ValidateGeometry; a 2-D image whose third axis has no length gets the normal of its
// plane, 1 mm long. INVALID_ARGUMENT where another axis has none.
absl::StatusOr<Geometry> GeometryOfImage(const ImageHeader& header);
// The header of a whole little-endian image on a grid, whose axes are shorter than 65536.
ImageHeader HeaderOfGeometry(const Geometry& geometry, Coordinates coordinates, PixelType pixel_type, int components);

// Voxels in the other byte order.
void SwapBytes(std::string& voxels, int64_t bytes_per_value);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CODEC_IMAGE_H_
