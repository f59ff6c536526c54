// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>

#include "engine/device/parallel.h"
#include "engine/transform/fold_smoothing_kernels.h"

namespace intrawarp::cpu {

absl::Status SmoothFoldsOnce(const ExecContext&, const FoldSmoothing& t) {
  std::memset(t.moves, 0, t.nodes());
  const int64_t plane = int64_t{t.x.voxels} * t.y.voxels;
  *t.folded = OrderedReduce<unsigned long long>(
      t.z.voxels, 0,
      [&](int64_t z) {
        unsigned long long folded = 0;
        for (int64_t voxel = z * plane; voxel < (z + 1) * plane; ++voxel) {
          // Written so that NaN folds.
          if (t.determinant[voxel] >= kFoldMargin) continue;
          folded += !(t.determinant[voxel] > 0);
          // Planes share control points.
          ForNodesInReach(t, voxel, [&](int64_t node) {
            std::atomic_ref<uint8_t>(t.moves[node]).store(1, std::memory_order_relaxed);
          });
        }
        return folded;
      },
      [](unsigned long long& total, unsigned long long part) { total += part; });
  const int64_t nodes = int64_t{t.x.nodes} * t.y.nodes;
  ParallelFor(t.z.nodes, [&](int64_t z) {
    for (int64_t node = z * nodes; node < (z + 1) * nodes; ++node)
      for (int c = 0; c < 3; ++c) t.out[3 * node + c] = Smoothed(t, node, c);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
