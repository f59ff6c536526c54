// SPDX-License-Identifier: Apache-2.0
// The two versions of the landmarks' force, and the arithmetic that they share. Internal.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_LANDMARK_FORCE_KERNELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_LANDMARK_FORCE_KERNELS_H_

#include <cmath>

#include "engine/image/sample.h"
#include "engine/registration/methods/landmark_force.h"

namespace intrawarp {

// A point goes along the velocity in steps of at most this many voxels, of which there are kMostFlowSteps at most.
inline constexpr float kFlowStep = 0.5f;
inline constexpr int kMostFlowSteps = 256;

struct LandmarkForceTask {
  LandmarkForce landmarks;
  const float* velocity = nullptr;
  Int3 size;
  FieldLayout layout;
  float weight = 1;
  float* force = nullptr;
};

// The velocity at an index, trilinear; clamped to the outermost voxels.
INTRAWARP_HD inline Vec3f VelocityAt(const LandmarkForceTask& t, Vec3f at) {
  const LinearAxis x = MakeLinearAxis(at.x, t.size.x), y = MakeLinearAxis(at.y, t.size.y),
                   z = MakeLinearAxis(at.z, t.size.z);
  Vec3f sum{0, 0, 0};
  for (int corner = 0; corner < 8; ++corner) {
    const bool high_x = corner & 1, high_y = corner & 2, high_z = corner & 4;
    const int64_t row = int64_t{high_z ? z.upper : z.lower} * t.size.y + (high_y ? y.upper : y.lower);
    const float* voxel = t.velocity + t.layout.voxel_step * (row * t.size.x + (high_x ? x.upper : x.lower));
    const float weight =
        (high_x ? x.weight : 1 - x.weight) * (high_y ? y.weight : 1 - y.weight) * (high_z ? z.weight : 1 - z.weight);
    for (int c = 0; c < 3; ++c) sum[c] += weight * voxel[c * t.layout.component_step];
  }
  return sum;
}

// exp(sign * v)(at), by the midpoint rule.
INTRAWARP_HD inline Vec3f Flow(const LandmarkForceTask& t, Vec3f at, float sign, float largest) {
  const float wanted = ceilf(largest / kFlowStep);
  const int steps = wanted < 1 ? 1 : wanted < kMostFlowSteps ? static_cast<int>(wanted) : kMostFlowSteps;
  const float step = sign / static_cast<float>(steps);
  for (int i = 0; i < steps; ++i) at = at + step * VelocityAt(t, at + (0.5f * step) * VelocityAt(t, at));
  return at;
}

// No longer than the longest step.
INTRAWARP_HD inline Vec3f Shortened(const LandmarkForce& landmarks, Vec3f residual) {
  float length2 = 0;
  for (int a = 0; a < 3; ++a) length2 += residual[a] * residual[a] * landmarks.sides[a] * landmarks.sides[a];
  const float most = landmarks.max_step;
  return length2 > most * most ? (most / sqrtf(length2)) * residual : residual;
}

// Writes both residuals of landmark `i`; returns its term.
INTRAWARP_HD inline double FollowLandmark(const LandmarkForceTask& t, int i, float largest) {
  const LandmarkForce& all = t.landmarks;
  const LevelLandmark& at = all.placed[i];
  const Vec3f residual = at.target - Flow(t, at.fixed, 1, largest);
  const Vec3f forward = Shortened(all, residual);
  const Vec3f backward = Shortened(all, at.fixed - Flow(t, at.target, -1, largest));
  for (int a = 0; a < 3; ++a) {
    all.residuals[3 * i + a] = forward[a];
    all.residuals[3 * (all.count + i) + a] = backward[a];
  }
  const Vec3d mm = all.to_mm.Linear({residual.x, residual.y, residual.z});
  return at.weight * Dot(mm, mm);
}

// Adds the pulls of all landmarks to voxel `index`, the `place`th.
INTRAWARP_HD inline void PullVoxel(const LandmarkForceTask& t, Int3 index, int64_t place) {
  const LandmarkForce& all = t.landmarks;
  const bool is_second = t.weight < 0;
  const int64_t voxels = int64_t{t.size.x} * t.size.y * t.size.z;
  for (int i = 0; i < all.count; ++i) {
    const Vec3f center = is_second ? all.placed[i].target : all.placed[i].fixed;
    float near = 1;
    for (int a = 0; a < 3; ++a) {
      const float away = static_cast<float>(index[a]) - center[a];
      near -= away * away * all.falloff[a];
    }
    if (!(near > 0)) continue;
    const float certainty = near * near * near * all.placed[i].certainty;
    const float* residual = all.residuals + 3 * (is_second ? all.count + i : i);
    float* const numerator = t.force + t.layout.voxel_step * place;
    for (int c = 0; c < 3; ++c) numerator[c * t.layout.component_step] += t.weight * certainty * residual[c];
    t.force[3 * voxels + place] += fabsf(t.weight) * certainty;
  }
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status FollowLandmarks(const ExecContext& ctx, const LandmarkForceTask& task,
                                                          DemonsState* state);
                             absl::Status AddLandmarkForce(const ExecContext& ctx, const LandmarkForceTask& task,
                                                           const DemonsState* state);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_LANDMARK_FORCE_KERNELS_H_
