// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/device/parallel.h"
#include "engine/registration/methods/sliding_kernels.h"

namespace intrawarp::cpu {
namespace {

template <typename Body>
void ForEach(int64_t count, const Body& body) {
  constexpr int64_t kAtOnce = 4096;
  ParallelFor((count + kAtOnce - 1) / kAtOnce, [&](int64_t piece) {
    const int64_t end = std::min(count, (piece + 1) * kAtOnce);
    for (int64_t i = piece * kAtOnce; i < end; ++i) body(i);
  });
}

}  // namespace

absl::Status MeasureLeastResiduals(const ExecContext&, const LayerImages& t, float* out) {
  ForEach(t.voxels, [&](int64_t i) { out[i] = LeastResidual(t, i); });
  return absl::OkStatus();
}

absl::Status MakeLayerCosts(const ExecContext&, const LayerCosts& t) {
  ForEach(t.images.voxels, [&](int64_t i) { t.out[i] = LayerCost(t, i); });
  return absl::OkStatus();
}

absl::Status MakeLayerMask(const ExecContext&, const LayerMask& t) {
  ForEach(t.voxels, [&](int64_t i) { t.out[i] = LayerMaskByte(t, i); });
  return absl::OkStatus();
}

absl::Status MergeLayers(const ExecContext&, const LayerMerge& t) {
  ForEach(t.count(), [&](int64_t i) { MergeNode(t, i); });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
