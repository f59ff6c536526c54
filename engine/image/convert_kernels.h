// SPDX-License-Identifier: Apache-2.0
// The two versions of the operators of convert.h. Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_CONVERT_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_CONVERT_KERNELS_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/image/convert.h"

namespace intrawarp {

// visit(T()) with the C++ type of the pixels.
template <typename Visit>
absl::Status VisitPixelType(PixelType type, const Visit& visit) {
  switch (type) {
    case PixelType::kUint8:
      return visit(uint8_t{});
    case PixelType::kInt8:
      return visit(int8_t{});
    case PixelType::kUint16:
      return visit(uint16_t{});
    case PixelType::kInt16:
      return visit(int16_t{});
    case PixelType::kUint32:
      return visit(uint32_t{});
    case PixelType::kInt32:
      return visit(int32_t{});
    case PixelType::kFloat32:
      return visit(float{});
    case PixelType::kFloat64:
      return visit(double{});
  }
  return absl::InvalidArgumentError("pixel_type: unknown");
}

// A weight from 0 to 1 as a byte. In float64 nothing but the last step rounds.
INTRAWARP_HD inline uint8_t WeightByte(float weight) {
  if (!(weight > 0)) return 0;
  const double byte = 255.0 * weight + 0.5;
  return byte < 1 ? 1 : static_cast<uint8_t>(byte);
}

// Pixels of the size of a float32 may lie where `out` lies.
INTRAWARP_DECLARE_ON_DEVICES(absl::Status ConvertPixels(const ExecContext& ctx, const void* pixels, PixelType type,
                                                        double slope, double intercept, VolumeView out);
                             absl::Status BinarizeMask(const ExecContext& ctx, ConstVolumeView volume, MaskView out);
                             absl::Status QuantizeWeights(const ExecContext& ctx, ConstVolumeView weights,
                                                          ConstVolumeView mask, MaskView out);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_CONVERT_KERNELS_H_
