// SPDX-License-Identifier: Apache-2.0
// The types of voxels as they come from outside. A plain value.
#ifndef INTRAWARP_ENGINE_BASE_PIXEL_TYPE_H_
#define INTRAWARP_ENGINE_BASE_PIXEL_TYPE_H_

#include <cstdint>

namespace intrawarp {

enum class PixelType { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kFloat32, kFloat64 };
constexpr int64_t BytesPerPixel(PixelType type) {
  switch (type) {
    case PixelType::kUint8:
    case PixelType::kInt8:
      return 1;
    case PixelType::kUint16:
    case PixelType::kInt16:
      return 2;
    case PixelType::kUint32:
    case PixelType::kInt32:
    case PixelType::kFloat32:
      return 4;
    case PixelType::kFloat64:
      return 8;
  }
  return 0;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_PIXEL_TYPE_H_
