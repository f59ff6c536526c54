// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/landmark_penalty_kernels.h"

namespace intrawarp::cpu {
namespace {

void AddPull(const LandmarkPenaltyTask& t, int i) {
  const SplineTaps& taps = t.placed[i].taps;
  Int3 most{};
  for (int a = 0; a < 3; ++a) most[a] = taps.base[a] + 3 * taps.stride[a];
  Int3 node{};
  for (node.z = taps.base[2]; node.z <= most.z; ++node.z) {
    for (node.y = taps.base[1]; node.y <= most.y; ++node.y) {
      for (node.x = taps.base[0]; node.x <= most.x; ++node.x) {
        const int64_t place = (int64_t{node.z} * t.size.y + node.y) * t.size.x + node.x;
        const float weight = WeightAt(taps, node);
        for (int c = 0; c < 3; ++c) t.gradient[3 * place + c] += weight * t.pulls[3 * i + c];
      }
    }
  }
}

}  // namespace

absl::Status AddLandmarkPenalty(const ExecContext&, const LandmarkPenaltyTask& t) {
  if (t.skip != nullptr && *t.skip != 0) return absl::OkStatus();
  for (int i = 0; i < t.count; ++i) {
    *t.value += PullOf(t, i);
    AddPull(t, i);
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
