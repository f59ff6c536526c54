// SPDX-License-Identifier: Apache-2.0
// An image as descriptors see it: sampled between its voxels at the level of its pyramid that suits the samples'
// distance, with the mask of its finest level. For host and device; a plain value that points to device memory.
#ifndef INTRAWARP_ENGINE_FEATURE_SAMPLED_IMAGE_H_
#define INTRAWARP_ENGINE_FEATURE_SAMPLED_IMAGE_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/image/pyramid.h"
#include "engine/image/sample.h"
#include "engine/image/volume.h"
#include "engine/transform/displacement.h"

namespace intrawarp {

struct SampledImage {
  const float* data = nullptr;
  Int3 size;
  // LPS mm to the index of the level, and to the index of the mask.
  AffineMap to_level, to_mask;
  // Null: every voxel counts.
  const uint8_t* mask = nullptr;
  Int3 mask_size;
  float weight_per_unit = 1;

  // The value at a point, or outside the image the value of its nearest face, so that a face makes no structure.
  INTRAWARP_HD float Value(Vec3d point) const {
    Vec3d index = to_level(point);
    // A map that is not finite has no place in the image: Allows says so.
    for (int a = 0; a < 3; ++a) index[a] = index[a] == index[a] ? fmin(fmax(index[a], -0.5), size[a] - 0.5) : 0.0;
    return SampleLinear(data, size, ToVec3f(index));
  }
  // The point lies in the image, and the mask allows it.
  INTRAWARP_HD bool Allows(Vec3d point) const {
    if (!IsInside(size, ToVec3f(to_level(point)))) return false;
    if (mask == nullptr) return true;
    const Vec3f index = ToVec3f(to_mask(point));
    return IsInside(mask_size, index) && mask[NearestOffset(mask_size, index)] != 0;
  }
  // 0 where the mask does not allow the point. Where the mask has weights, the point's in steps of 1/255, at least 1;
  // otherwise 1.
  INTRAWARP_HD uint8_t Mark(Vec3d point) const {
    if (!Allows(point)) return 0;
    if (mask == nullptr || !(weight_per_unit < 1)) return 1;
    const uint8_t byte = mask[NearestOffset(mask_size, ToVec3f(to_mask(point)))];
    const int mark = static_cast<int>(255 * MaskWeight(byte, weight_per_unit) + 0.5f);
    return static_cast<uint8_t>(mark > 1 ? mark : 1);
  }
};

// The image at the coarsest level whose smallest spacing is at most 1.1 times `sample_mm`, or at its finest one.
SampledImage MakeSampledImage(const PreparedImage& image, ConstMaskView mask, double sample_mm);

// values[i] and valid[i] for voxel i of `grid`: the image at T(p), p the voxel's centre, and whether it is allowed
// there (0 or 1, or its weight: SampledImage::Mark). The level suits the grid's smallest spacing. Stream-ordered.
absl::Status SampleImage(const ExecContext& ctx, const PreparedImage& image, ConstMaskView mask,
                         const Transform& transform, const Geometry& grid, float* values, uint8_t* valid);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_SAMPLED_IMAGE_H_
