// SPDX-License-Identifier: Apache-2.0
#include "io/format/volume.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::io {
namespace {

template <typename T>
void ConvertToFloat(const HostVolume& volume, std::vector<float>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, volume.pixels.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(volume.rescale_slope * static_cast<double>(value) + volume.rescale_intercept);
  }
}

}  // namespace

std::vector<float> ToFloat(const HostVolume& volume) {
  std::vector<float> out(volume.pixels.size() / BytesPerPixel(volume.pixel_type));
  switch (volume.pixel_type) {
    case PixelType::kUint8:
      ConvertToFloat<uint8_t>(volume, out);
      break;
    case PixelType::kInt8:
      ConvertToFloat<int8_t>(volume, out);
      break;
    case PixelType::kUint16:
      ConvertToFloat<uint16_t>(volume, out);
      break;
    case PixelType::kInt16:
      ConvertToFloat<int16_t>(volume, out);
      break;
    case PixelType::kUint32:
      ConvertToFloat<uint32_t>(volume, out);
      break;
    case PixelType::kInt32:
      ConvertToFloat<int32_t>(volume, out);
      break;
    case PixelType::kFloat32:
      ConvertToFloat<float>(volume, out);
      break;
    case PixelType::kFloat64:
      ConvertToFloat<double>(volume, out);
      break;
  }
  return out;
}

absl::Status CheckVolume(const HostVolume& volume) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(volume.geometry));
  if (static_cast<int64_t>(volume.pixels.size()) == volume.geometry.voxels() * BytesPerPixel(volume.pixel_type)) {
    return absl::OkStatus();
  }
  return FieldError(absl::StatusCode::kInvalidArgument, "pixels", "their number of bytes does not match the size");
}

absl::Status CheckField(const HostField& field) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(field.geometry));
  if (static_cast<int64_t>(field.displacement.size()) == 3 * field.geometry.voxels()) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "displacement", "the number of values does not match the size");
}

absl::StatusOr<int64_t> CountSamples(const Geometry& geometry, int64_t components, PixelType type, int64_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t count, CheckedMultiply(geometry.voxels(), components));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, CheckedMultiply(count, BytesPerPixel(type)));
  if (bytes <= max_bytes) return count;
  return FieldError(absl::StatusCode::kResourceExhausted, "size",
                    absl::StrCat(SizeString(geometry), " takes ", bytes, " bytes, the limit is ", max_bytes));
}

}  // namespace intrawarp::io
