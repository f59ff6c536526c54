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

absl::Status QuantizeWeights(const ExecContext& ctx, ConstVolumeView weights, ConstVolumeView mask, MaskView out) {
  const Int3 size = out.geometry.size;
  if (!(weights.geometry.size == size)) return absl::InvalidArgumentError("out: not of the size of the weights");
  if (mask.data != nullptr && !(mask.geometry.size == size)) {
    return absl::InvalidArgumentError("mask: not of the size of the weights");
  }
  return INTRAWARP_DISPATCH(ctx, QuantizeWeights, weights, mask, out);
}

}  // namespace intrawarp
