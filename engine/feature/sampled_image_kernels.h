// SPDX-License-Identifier: Apache-2.0
// The two versions of SampleImage. Internal to this room.
#ifndef INTRAWARP_ENGINE_FEATURE_SAMPLED_IMAGE_KERNELS_H_
#define INTRAWARP_ENGINE_FEATURE_SAMPLED_IMAGE_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/feature/sampled_image.h"

namespace intrawarp {

struct ImageSampling {
  Int3 size;
  // Index of a sample to the point in the image, LPS mm.
  ForwardMap to_point;
  SampledImage image;
};

INTRAWARP_HD inline void SampleVoxel(const ImageSampling& in, int64_t place, Int3 voxel, float* values,
                                     uint8_t* valid) {
  Vec3d point;
  in.to_point(ToVec3d(voxel), &point);
  values[place] = in.image.Value(point);
  valid[place] = in.image.Mark(point);
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status SampleImage(const ExecContext& ctx, const ImageSampling& in, float* values,
                                                      uint8_t* valid);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_SAMPLED_IMAGE_KERNELS_H_
