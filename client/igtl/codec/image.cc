// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/image.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "client/igtl/codec/bytes.h"
#include "engine/base/checked.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::igtl {
namespace {

struct ScalarType {
  uint8_t code;
  PixelType type;
};
constexpr ScalarType kScalarTypes[] = {{2, PixelType::kInt8},     {3, PixelType::kUint8},   {4, PixelType::kInt16},
                                       {5, PixelType::kUint16},   {6, PixelType::kInt32},   {7, PixelType::kUint32},
                                       {10, PixelType::kFloat32}, {11, PixelType::kFloat64}};
constexpr size_t kImageHeaderBytes = 72;
constexpr uint8_t kBigEndian = 1;
constexpr uint8_t kLittleEndian = 2;
constexpr uint8_t kRasCode = 1;
constexpr uint8_t kLpsCode = 2;

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}

std::optional<PixelType> PixelTypeOf(uint8_t code) {
  for (const ScalarType& each : kScalarTypes) {
    if (each.code == code) return each.type;
  }
  return std::nullopt;
}

Int3 ReadSize(ByteReader& in) {
  Int3 size;
  for (int axis = 0; axis < 3; ++axis) size[axis] = in.Uint16();
  return size;
}

void WriteSize(ByteWriter& out, const Int3& size) {
  for (int axis = 0; axis < 3; ++axis) out.Uint16(static_cast<uint16_t>(size[axis]));
}

absl::Status CheckPart(const ImageHeader& header) {
  for (int axis = 0; axis < 3; ++axis) {
    if (header.size[axis] < 1) return Invalid("image.size", "must be at least 1 along each axis");
    if (header.part_size[axis] < 1 || header.part_begin[axis] + header.part_size[axis] > header.size[axis]) {
      return Invalid("image.subvolume", "must lie within the volume");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PartBytes(const ImageHeader& header) {
  int64_t bytes = BytesPerPixel(header.pixel_type) * header.components;
  for (int axis = 0; axis < 3; ++axis) {
    INTRAWARP_ASSIGN_OR_RETURN(bytes, CheckedMultiply(bytes, header.part_size[axis]));
  }
  return bytes;
}

absl::Status CheckBytes(const ImageHeader& header, size_t voxels) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, PartBytes(header));
  if (static_cast<uint64_t>(bytes) == voxels) return absl::OkStatus();
  return Invalid("image.voxels", "has another number of bytes than its header says");
}

// LPS from RAS, and back.
double Flip(Coordinates coordinates, int row) { return coordinates == Coordinates::kRas && row < 2 ? -1 : 1; }

template <typename T>
void SwapAll(std::string& bytes, T (*swap)(T)) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    value = swap(value);
    std::memcpy(bytes.data() + at, &value, sizeof(T));
  }
}

}  // namespace

absl::StatusOr<ImageHeader> ParseImageHeader(absl::string_view content) {
  ByteReader in(content);
  ImageHeader header;
  const int version = in.Uint16();
  header.components = in.Uint8();
  const std::optional<PixelType> pixel_type = PixelTypeOf(in.Uint8());
  const uint8_t byte_order = in.Uint8();
  const uint8_t coordinates = in.Uint8();
  header.size = ReadSize(in);
  for (int column = 0; column < 4; ++column) {
    for (auto& row : header.matrix) row[column] = in.Float();
  }
  header.part_begin = ReadSize(in);
  header.part_size = ReadSize(in);
  if (!in.ok()) return Invalid("image", "has fewer than the 72 bytes of its header");
  if (version != 1 && version != 2) return Invalid("image.version", "must be 1 or 2");
  if (header.components < 1) return Invalid("image.components", "must be at least 1");
  if (!pixel_type) return Invalid("image.scalar_type", "is unknown");
  header.pixel_type = *pixel_type;
  if (byte_order != kBigEndian && byte_order != kLittleEndian) return Invalid("image.endian", "must be 1 or 2");
  header.is_big_endian = byte_order == kBigEndian;
  if (coordinates != kRasCode && coordinates != kLpsCode) return Invalid("image.coordinate", "must be 1 or 2");
  header.coordinates = coordinates == kRasCode ? Coordinates::kRas : Coordinates::kLps;
  INTRAWARP_RETURN_IF_ERROR(CheckPart(header));
  return header;
}

absl::StatusOr<ImageContent> ParseImage(absl::string_view content) {
  ImageContent image;
  INTRAWARP_ASSIGN_OR_RETURN(image.header, ParseImageHeader(content));
  image.voxels = content.substr(kImageHeaderBytes);
  INTRAWARP_RETURN_IF_ERROR(CheckBytes(image.header, image.voxels.size()));
  return image;
}

absl::StatusOr<VoxelPart> FindVoxels(const MessageHeader& header, absl::string_view body_begin) {
  INTRAWARP_ASSIGN_OR_RETURN(const BodyLayout layout, LayoutOf(header, body_begin));
  VoxelPart part;
  part.begin = layout.content_begin + kImageHeaderBytes;
  if (part.begin > body_begin.size() || layout.content_bytes < kImageHeaderBytes) {
    return Invalid("image", "has no header within its first bytes");
  }
  INTRAWARP_ASSIGN_OR_RETURN(part.header, ParseImageHeader(body_begin.substr(layout.content_begin)));
  part.bytes = layout.content_bytes - kImageHeaderBytes;
  INTRAWARP_RETURN_IF_ERROR(CheckBytes(part.header, part.bytes));
  return part;
}

std::string PackImageHeader(const ImageHeader& header) {
  ByteWriter out;
  out.Uint16(1);
  out.Uint8(static_cast<uint8_t>(header.components));
  for (const ScalarType& each : kScalarTypes) {
    if (each.type == header.pixel_type) out.Uint8(each.code);
  }
  out.Uint8(header.is_big_endian ? kBigEndian : kLittleEndian);
  out.Uint8(header.coordinates == Coordinates::kRas ? kRasCode : kLpsCode);
  WriteSize(out, header.size);
  for (int column = 0; column < 4; ++column) {
    for (const auto& row : header.matrix) out.Float(row[column]);
  }
  WriteSize(out, header.part_begin);
  WriteSize(out, header.part_size);
  return out.Take();
}

absl::StatusOr<Geometry> GeometryOfImage(const ImageHeader& header) {
  Vec3d axes[3];
  for (int axis = 0; axis < 3; ++axis) {
    for (int row = 0; row < 3; ++row) axes[axis][row] = Flip(header.coordinates, row) * header.matrix[row][axis];
  }
  if (header.size.z == 1 && axes[2] == Vec3d{}) {
    const Vec3d a = axes[0], b = axes[1];
    const Vec3d normal = {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
    const double length = std::sqrt(Dot(normal, normal));
    if (length > 0) axes[2] = (1 / length) * normal;
  }
  Geometry geometry;
  geometry.size = header.size;
  Vec3d center = {Flip(header.coordinates, 0) * header.matrix[0][3], Flip(header.coordinates, 1) * header.matrix[1][3],
                  header.matrix[2][3]};
  for (int axis = 0; axis < 3; ++axis) {
    const double length = std::sqrt(Dot(axes[axis], axes[axis]));
    if (!(length > 0)) return Invalid("image.matrix", "has an axis without a length");
    geometry.spacing[axis] = length;
    for (int row = 0; row < 3; ++row) geometry.direction[row][axis] = axes[axis][row] / length;
    center = center - (0.5 * (header.size[axis] - 1)) * axes[axis];
  }
  geometry.origin = center;
  const absl::Status valid = ValidateGeometry(geometry);
  if (!valid.ok()) return Invalid("image.matrix", valid.message());
  return geometry;
}

ImageHeader HeaderOfGeometry(const Geometry& geometry, Coordinates coordinates, PixelType pixel_type, int components) {
  ImageHeader header;
  header.components = components;
  header.pixel_type = pixel_type;
  header.coordinates = coordinates;
  header.size = header.part_size = geometry.size;
  const Vec3d center = Center(geometry);
  for (int row = 0; row < 3; ++row) {
    const double sign = Flip(coordinates, row);
    for (int axis = 0; axis < 3; ++axis) {
      header.matrix[row][axis] = static_cast<float>(sign * geometry.direction[row][axis] * geometry.spacing[axis]);
    }
    header.matrix[row][3] = static_cast<float>(sign * center[row]);
  }
  return header;
}

void SwapBytes(std::string& voxels, int64_t bytes_per_value) {
  switch (bytes_per_value) {
    case 2:
      return SwapAll<uint16_t>(voxels, [](uint16_t v) -> uint16_t { return __builtin_bswap16(v); });
    case 4:
      return SwapAll<uint32_t>(voxels, [](uint32_t v) -> uint32_t { return __builtin_bswap32(v); });
    case 8:
      return SwapAll<uint64_t>(voxels, [](uint64_t v) -> uint64_t { return __builtin_bswap64(v); });
    default:
      return;
  }
}

}  // namespace intrawarp::igtl
