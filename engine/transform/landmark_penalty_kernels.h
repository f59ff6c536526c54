// SPDX-License-Identifier: Apache-2.0
// The two versions of AddLandmarkPenalty, and the arithmetic that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_TRANSFORM_LANDMARK_PENALTY_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_LANDMARK_PENALTY_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/transform/displacement.h"
#include "engine/transform/landmark_penalty.h"

namespace intrawarp {

// A landmark of which u(f) is the sum of its neighbours: T(f) - m = rest + A u(f).
struct PlacedLandmark {
  SplineTaps taps;
  Vec3d rest;
  // kLandmarkWeight / sigma^2.
  double weight = 0;
};

struct LandmarkPenaltyTask {
  const PlacedLandmark* placed = nullptr;
  float* pulls = nullptr;
  int count = 0;
  AffineMap affine;
  const float* grid = nullptr;
  Int3 size;
  const int* skip = nullptr;
  float* gradient = nullptr;
  double* value = nullptr;

  INTRAWARP_HD int64_t nodes() const { return int64_t{size.x} * size.y * size.z; }
};

// The term of landmark `i`; writes its derivative by u(f) to the pulls.
INTRAWARP_HD inline double PullOf(const LandmarkPenaltyTask& t, int i) {
  const PlacedLandmark& at = t.placed[i];
  const SplineTaps& taps = at.taps;
  const Vec3f u = ContractTaps(t.grid, t.size, taps, taps.weight[0], taps.weight[1], taps.weight[2]);
  const Vec3d residual = at.rest + t.affine.Linear({u.x, u.y, u.z});
  for (int c = 0; c < 3; ++c) {
    const double turned = t.affine.m[0][c] * residual.x + t.affine.m[1][c] * residual.y + t.affine.m[2][c] * residual.z;
    t.pulls[3 * i + c] = static_cast<float>(2 * at.weight * turned);
  }
  return at.weight * Dot(residual, residual);
}

// The weight of a control point in u(f); 0 for one that is not among the neighbours.
INTRAWARP_HD inline float WeightAt(const SplineTaps& taps, Int3 node) {
  float weight = 1;
  for (int a = 0; a < 3; ++a) {
    const int k = node[a] - taps.base[a];
    if (k < 0 || k > 3) return 0;
    weight *= taps.weight[a][k];
  }
  return weight;
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status AddLandmarkPenalty(const ExecContext& ctx, const LandmarkPenaltyTask& task);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_LANDMARK_PENALTY_KERNELS_H_
