// SPDX-License-Identifier: Apache-2.0
// Regions of a coarse grid in the masks of images.
#ifndef INTRAWARP_ENGINE_IMAGE_REGION_H_
#define INTRAWARP_ENGINE_IMAGE_REGION_H_

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// mask[i] = 0 where the voxel of `region` nearest to voxel i is not 0; voxels outside the region's domain stay. Both
// lie in device memory, on any grids. Stream-ordered.
absl::Status ClearRegion(const ExecContext& ctx, ConstMaskView region, MaskView mask);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_REGION_H_
