// SPDX-License-Identifier: Apache-2.0
// Tables and limits of NMI's passes on the CPU, of the FFD objective and of the affine one. Internal.
#ifndef INTRAWARP_ENGINE_METRIC_NMI_PLAN_H_
#define INTRAWARP_ENGINE_METRIC_NMI_PLAN_H_

#include <cstdint>

#include "engine/metric/ffd_objective.h"
#include "engine/metric/nmi.h"

namespace intrawarp::cpu {

inline constexpr int kHistogramCells = kNmiBins * kNmiBins;
// A thread counts in several histograms, so that neighbours in one bin don't wait for each other.
inline constexpr int kHistogramCopies = 2;
// Samples that a copy can take before it may overflow.
inline constexpr int64_t kHistogramRoom = (int64_t{1} << 32) / kNmiOne - 1;

// The memory that a thread counts in.
struct HistogramTask {
  // kHistogramCopies * kHistogramCells, all 0 before and after.
  uint32_t* counts;
  // The first cell of each voxel of a row, and the four counts to add there. HistogramStride voxels.
  int32_t* places;
  uint16_t* windows;
  // kHistogramCells, which the counts are added to.
  int64_t* totals;
};

// A row of n voxels is counted in whole vectors.
inline int HistogramStride(int n) { return (n + 31) / 16 * 16; }

inline NmiScale MovingScale(const FfdObjective& o) { return NmiMovingScale(o.moving_minimum, o.moving_maximum); }

// Each place of a window has its derivative as a0 + t (a1 + t a2), from the table of NmiFromHistogram, and the
// curvature of its fixed bin (0 where `curvature` is null). `polynomials`: a0 a1 a2 h of each, 4 * kHistogramCells
// floats.
inline void MakeNmiPolynomials(const float* derivative, const float* curvature, float* polynomials) {
  for (int fixed = 0; fixed < kNmiBins; ++fixed) {
    for (int cell = 0; cell < kNmiWindowCells; ++cell) {
      const float* d = derivative + fixed * kNmiBins + cell;
      float* p = polynomials + 4 * (fixed * kNmiBins + cell);
      p[0] = 0.5f * (d[2] - d[0]);
      p[1] = d[0] - 2 * d[1] + d[2];
      p[2] = 0.5f * (d[3] - d[0]) + 1.5f * (d[1] - d[2]);
      p[3] = curvature == nullptr ? 0 : curvature[fixed];
    }
  }
}

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_METRIC_NMI_PLAN_H_
