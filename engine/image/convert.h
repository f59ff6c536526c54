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

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_CONVERT_H_
