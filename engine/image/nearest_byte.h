// SPDX-License-Identifier: Apache-2.0
// Masks between their voxels, for host and device.
#ifndef INTRAWARP_ENGINE_IMAGE_NEAREST_BYTE_H_
#define INTRAWARP_ENGINE_IMAGE_NEAREST_BYTE_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/image/sample.h"

namespace intrawarp {

// The byte of the voxel nearest to an index, 0 outside the domain.
INTRAWARP_HD inline uint8_t NearestByte(const uint8_t* data, Int3 size, Vec3f index) {
  return IsInside(size, index) ? data[NearestOffset(size, index)] : 0;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_NEAREST_BYTE_H_
