// SPDX-License-Identifier: Apache-2.0
// The term of landmarks (transform/landmark.h) for log-demons. A landmark is an observation of the displacement beside
// the pulls of the images: around its fixed point f it adds to the force's numerator N and denominator D
// (demons_step.h)
//
//   N += w g c r,   D += |w| g c,   r = y - exp(v)(f), |r| <= max_step,   c = min(1, kLandmarkCertainty (h / s)^2)
//
// with y the moving point before the affine part, w the weight of the pass, h the mean voxel side, s the landmark's
// sigma, and g = (1 - (d / reach)^2)^3 at a distance d within the reach. D has the unit of the images' D: c is the
// certainty of a displacement known to s where intensities differ by a fifth of their deviation. The second pass of a
// symmetric force pulls y to f through exp(-v). The value of an evaluation has the landmarks' term.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_LANDMARK_FORCE_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_LANDMARK_FORCE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/registration/methods/demons_step.h"
#include "engine/transform/landmark.h"

namespace intrawarp {

inline constexpr double kLandmarkCertainty = 0.04;

// A landmark at a level, in index units.
struct LevelLandmark {
  Vec3f fixed;   // f
  Vec3f target;  // y
  float certainty = 0;
  // kLandmarkWeight / sigma^2.
  double weight = 0;
};

// The landmarks of a level, in device memory of the arena. A plain value.
struct LandmarkForce {
  const LevelLandmark* placed = nullptr;
  // r of the first pass, then of the second, three float32 each for each landmark; scratch.
  float* residuals = nullptr;
  int count = 0;
  // An index difference to mm of the moving image (linear part).
  AffineMap to_mm = AffineMap::Identity();
  // 1 / reach^2 by axis, in index units.
  Vec3f falloff;
  // Voxel sides over the geometric mean of the level's, and the longest r in that unit.
  Vec3f sides{1, 1, 1};
  float max_step = 2;
};

// For the level on `fixed`, a level of the fixed image, with its velocity on the grid of `velocity_size`, the level's
// or a coarser one over the same domain, whose index units the landmarks are in. The memory, LandmarkForceBytes, stays
// taken from the arena. Waits for the stream.
absl::StatusOr<LandmarkForce> PlaceLandmarkForce(const ExecContext& ctx, absl::Span<const Landmark> landmarks,
                                                 const AffineMap& affine, const Geometry& fixed, Int3 velocity_size,
                                                 float max_step);
int64_t LandmarkForceBytes(int64_t landmarks);

// How the components of a field lie: component c of voxel i is data[voxel_step * i + component_step * c].
struct FieldLayout {
  int64_t voxel_step = 3, component_step = 1;

  static FieldLayout Interleaved() { return {3, 1}; }
  static FieldLayout Planes(Int3 size) { return {1, int64_t{size.x} * size.y * size.z}; }
};

// Writes the residuals at the velocity, and the term to state->landmarks. Reads state->largest. Nothing happens once
// state->done, or without landmarks. Stream-ordered.
absl::Status FollowLandmarks(const ExecContext& ctx, const LandmarkForce& landmarks, const float* velocity, Int3 size,
                             FieldLayout layout, DemonsState* state);

// Adds the pulls to `force`, N in `layout` and D behind it, with a weight whose sign tells the pass: the second of a
// symmetric force is negative. Otherwise as FollowLandmarks.
absl::Status AddLandmarkForce(const ExecContext& ctx, const LandmarkForce& landmarks, float weight, Int3 size,
                              FieldLayout layout, float* force, const DemonsState* state);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_LANDMARK_FORCE_H_
