// SPDX-License-Identifier: Apache-2.0
#include "engine/image/convert.h"

#include "engine/image/convert_kernels.h"

namespace intrawarp {

absl::Status ConvertPixels(const ExecContext& ctx, const void* pixels, PixelType type, double slope, double intercept,
                           VolumeView out) {
  return INTRAWARP_DISPATCH(ctx, ConvertPixels, pixels, type, slope, intercept, out);
}

absl::Status BinarizeMask(const ExecContext& ctx, ConstVolumeView volume, MaskView out) {
  if (!(volume.geometry.size == out.geometry.size)) return absl::InvalidArgumentError("out: not of the volume's size");
  return INTRAWARP_DISPATCH(ctx, BinarizeMask, volume, out);
}

}  // namespace intrawarp
