// SPDX-License-Identifier: Apache-2.0
// From stored pixels to the float32 volumes that the engine works on.
#ifndef INTRAWARP_ENGINE_IMAGE_CONVERT_H_
#define INTRAWARP_ENGINE_IMAGE_CONVERT_H_

#include "absl/status/status.h"
#include "engine/base/pixel_type.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// out = pixels * slope + intercept, computed in float64 and rounded once. `pixels` lies in device memory, dense, x
// fastest, little-endian; out.geometry gives the number of voxels. Stream-ordered.
absl::Status ConvertPixels(const ExecContext& ctx, const void* pixels, PixelType type, double slope, double intercept,
                           VolumeView out);

// out[i] = volume[i] != 0. Stream-ordered.
absl::Status BinarizeMask(const ExecContext& ctx, ConstVolumeView volume, MaskView out);

// out[i] = 255 * weights[i], rounded, but at least 1 where the weight is above 0, and 0 where `mask` is 0: the bytes of
// a mask with weight_per_unit = kWeightPerUnit. Weights are 0 to 1; a mask without data is 0 nowhere. Stream-ordered.
absl::Status QuantizeWeights(const ExecContext& ctx, ConstVolumeView weights, ConstVolumeView mask, MaskView out);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_CONVERT_H_
