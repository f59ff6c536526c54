// SPDX-License-Identifier: Apache-2.0
// Sampling both images on the grid of the probe: the two versions, and the arithmetic that they share. Internal to this
// room.
#ifndef INTRAWARP_ENGINE_QUALITY_RESIDUAL_PROBE_KERNELS_H_
#define INTRAWARP_ENGINE_QUALITY_RESIDUAL_PROBE_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/feature/sampled_image.h"
#include "engine/image/pyramid.h"
#include "engine/transform/displacement.h"

namespace intrawarp {

struct ProbeSampling {
  Int3 size;
  // Node of the probe to LPS mm, and to the moving point in LPS mm.
  AffineMap to_physical;
  ForwardMap to_moving;
  SampledImage fixed, moving;
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
