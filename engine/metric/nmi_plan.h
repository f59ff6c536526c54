// SPDX-License-Identifier: Apache-2.0
// Tables and limits of NMI's passes of the FFD objective on the CPU. Internal.
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
  // The first cell of each voxel of a row, and the four counts to add there. RowStride voxels.
  int32_t* places;
  uint16_t* windows;
  // kHistogramCells, which the counts are added to.
  int64_t* totals;
};

inline NmiScale MovingScale(const FfdObjective& o) { return NmiMovingScale(o.moving_minimum, o.moving_maximum); }

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_METRIC_NMI_PLAN_H_
