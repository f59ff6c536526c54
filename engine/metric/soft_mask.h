// SPDX-License-Identifier: Apache-2.0
// Masks whose bytes are weights (engine/image/volume.h), as the metrics see them. A sample weighs by the product of its
// weights in both masks, the moving one's at the nearest voxel.
#ifndef INTRAWARP_ENGINE_METRIC_SOFT_MASK_H_
#define INTRAWARP_ENGINE_METRIC_SOFT_MASK_H_

#include "engine/image/volume.h"

namespace intrawarp {

// Whether voxels that count can weigh less than 1.
inline bool IsSoft(const ConstMaskView& mask) { return mask.data != nullptr && mask.weight_per_unit < 1; }

// Whether there are masks, and whether a voxel of them counts or does not, or counts by its weight.
enum class Masking { kNone, kBinary, kWeighted };
inline Masking MaskingOf(const ConstMaskView& fixed, const ConstMaskView& moving) {
  if (fixed.data == nullptr && moving.data == nullptr) return Masking::kNone;
  return IsSoft(fixed) || IsSoft(moving) ? Masking::kWeighted : Masking::kBinary;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_SOFT_MASK_H_
