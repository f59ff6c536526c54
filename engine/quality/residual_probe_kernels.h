// SPDX-License-Identifier: Apache-2.0
// Sampling both images on the grid of the probe: the two versions, and the arithmetic that they share. Internal to this
// room.
#ifndef INTRAWARP_ENGINE_QUALITY_RESIDUAL_PROBE_KERNELS_H_
#define INTRAWARP_ENGINE_QUALITY_RESIDUAL_PROBE_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/image/sample.h"
#include "engine/transform/displacement.h"

namespace intrawarp {

// An image at the level of its pyramid that the probe samples, with the mask (or null) of its finest level.
struct ProbedImage {
  const float* data = nullptr;
  Int3 size;
  // From the point that is sampled to the index of the level, and to that of the mask.
  AffineMap to_level, to_mask;
  const uint8_t* mask = nullptr;
  Int3 mask_size;

  // The value at a point, outside the image that of its nearest face, so that a face makes no structure.
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
};

struct ProbeSampling {
  Int3 size;
  // Node of the probe to LPS mm, and to the moving point in LPS mm.
  AffineMap to_physical;
  ForwardMap to_moving;
  ProbedImage fixed, moving;
};

// One a node each: values of both images, and whether both count there.
struct ProbeSamples {
  float* fixed = nullptr;
  float* moving = nullptr;
  uint8_t* valid = nullptr;
};

INTRAWARP_HD inline void SampleNode(const ProbeSampling& in, int64_t place, Int3 node, const ProbeSamples& out) {
  const Vec3d index = ToVec3d(node), fixed = in.to_physical(index);
  Vec3d moving;
  in.to_moving(index, &moving);
  out.fixed[place] = in.fixed.Value(fixed);
  out.moving[place] = in.moving.Value(moving);
  out.valid[place] = in.fixed.Allows(fixed) && in.moving.Allows(moving);
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status SampleProbe(const ExecContext& ctx, const ProbeSampling& in,
                                                      const ProbeSamples& out);)

// Samples both images on `grid`, which is that of a probe; the samples stay taken from the arena. Stream-ordered.
absl::StatusOr<ProbeSamples> SampleImages(const ExecContext& ctx, const PreparedImage& fixed,
                                          const PreparedImage& moving, ConstMaskView fixed_mask,
                                          ConstMaskView moving_mask, const Transform& transform, const Geometry& grid);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_RESIDUAL_PROBE_KERNELS_H_
