// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/optimise/affine_pull.h"

namespace intrawarp {

AffinePull MakeAffinePull(absl::Span<const Landmark> landmarks, const AffineMap& to_normalized,
                          const AffineMap& to_moving) {
  AffinePull pull;
  if (landmarks.empty()) return pull;
  pull.is_active = true;
  const AffineMap from_moving = Inverse(to_moving);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) {
      for (int i = 0; i < 3; ++i) pull.g[r][c] += from_moving.m[i][r] * from_moving.m[i][c];
    }
  }
  for (const Landmark& landmark : landmarks) {
    const Vec3d t = to_moving(landmark.moving);
    for (int r = 0; r < 3; ++r) pull.center[r] += t[r] / static_cast<double>(landmarks.size());
  }
  for (const Landmark& landmark : landmarks) {
    const Vec3d q = to_normalized(landmark.fixed), t = to_moving(landmark.moving);
    const double weight = kLandmarkWeight / (landmark.sigma_mm * landmark.sigma_mm);
    const double place[4] = {q.x, q.y, q.z, 1};
    const double target[3] = {t.x - pull.center[0], t.y - pull.center[1], t.z - pull.center[2]};
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 4; ++b) pull.s[a][b] += weight * place[a] * place[b];
      for (int r = 0; r < 3; ++r) pull.c[r][a] += weight * target[r] * place[a];
    }
    for (int r = 0; r < 3; ++r) {
      for (int p = 0; p < 3; ++p) pull.k += weight * target[r] * pull.g[r][p] * target[p];
    }
  }
  return pull;
}

}  // namespace intrawarp
