// SPDX-License-Identifier: Apache-2.0
// The windows of NMI (nmi.h) in lanes on the CPU, and the count of them in a joint histogram, for the vector target
// that includes this.
#if defined(INTRAWARP_ENGINE_METRIC_NMI_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_NMI_INL_H_
#undef INTRAWARP_ENGINE_METRIC_NMI_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_NMI_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "engine/metric/nmi_plan.h"
#include "engine/metric/trilinear-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// The windows of the moving values of lanes, as MakeNmiWindow.
struct LaneWindow {
  VI cell;
  VF t;
  MF inside;
};
HWY_INLINE LaneWindow MakeLaneWindow(NmiScale s, VF value) {
  const VF raw = (value - Splat(s.minimum)) * Splat(s.scale);
  const VF p = hn::Min(hn::Max(raw, Zeros()), Splat(static_cast<float>(kNmiWindowCells)));
  const VI cell = hn::Min(Truncate(p), hn::Set(DI(), kNmiWindowCells - 1));
  return {cell, p - hn::ConvertTo(DF(), cell), hn::Eq(p, raw)};
}

// Counts moving values into a joint histogram, row by row.
class WindowCounter {
 public:
  WindowCounter(NmiScale scale, const HistogramTask& task) : scale_(scale), task_(task) {}

  // A row of at most `voxels` voxels follows.
  void BeginRow(int voxels) {
    if (pending_ + voxels > kHistogramRoom) Flush();
    pending_ += voxels;
    count_ = 0;
  }
  // `rows`: the begin of the rows of the lanes' fixed bins in the histogram.
  HWY_INLINE void Add(VI rows, VF value, MF samples) {
    const LaneWindow window = MakeLaneWindow(scale_, value);
    VF w[4];
    LaneWeights(window.t, w);
    Put(rows, window.cell, FixedPoint(w[0]), FixedPoint(w[1]), FixedPoint(w[3]), hn::Set(DI(), kNmiOne), samples);
  }
  // The same of samples that weigh `weights`, from 0 to 1.
  HWY_INLINE void Add(VI rows, VF value, MF samples, VF weights) {
    const LaneWindow window = MakeLaneWindow(scale_, value);
    VF w[4];
    LaneWeights(window.t, w);
    Put(rows, window.cell, FixedPoint(weights * w[0]), FixedPoint(weights * w[1]), FixedPoint(weights * w[3]),
        FixedPoint(weights), samples);
  }
  void EndRow() {
    const int32_t* places = task_.places;
    for (int i = 0; i < count_; i += kStep) {
      for (int k = 0; k < kStep; ++k) {
        AddWindow(task_.windows + 4 * (i + k), task_.counts + k % kHistogramCopies * kHistogramCells + places[i + k]);
      }
    }
  }

  // Moves what the copies hold into the totals.
  void Flush() {
    for (int copy = 0; copy < kHistogramCopies; ++copy) {
      uint32_t* counts = task_.counts + copy * kHistogramCells;
      for (int i = 0; i < kHistogramCells; ++i) task_.totals[i] += counts[i];
      std::fill_n(counts, kHistogramCells, 0u);
    }
    pending_ = 0;
  }

 private:
  // The counts of the windows but for the third, which takes what is left of `all`.
  HWY_INLINE void Put(VI rows, VI cell, VI c0, VI c1, VI c3, VI all, MF samples) {
    const VI c2 = hn::Sub(all, hn::Add(c0, hn::Add(c1, c3)));
    // Lanes that don't count add 0 to cell 0.
    const auto counts = hn::RebindMask(DI(), samples);
    int32_t* places = task_.places + count_;
    uint16_t* windows = task_.windows + 4 * count_;
    hn::Store(hn::IfThenElseZero(counts, hn::Add(rows, cell)), DI(), places);
    StoreWindows(hn::IfThenElseZero(counts, hn::Or(c0, hn::ShiftLeft<16>(c1))),
                 hn::IfThenElseZero(counts, hn::Or(c2, hn::ShiftLeft<16>(c3))), windows);
    count_ += kLanes;
  }
  static HWY_INLINE void LaneWeights(VF t, VF w[4]) {
    const VF s = Splat(1) - t, sixth = Splat(1.0f / 6), two_thirds = Splat(4.0f / 6), half = Splat(0.5f);
    w[0] = s * s * s * sixth;
    w[1] = hn::MulAdd(t * t, half * t - Splat(1), two_thirds);
    w[3] = t * t * t * sixth;
  }
  static constexpr int kStep = std::min(kLanes, 8);

  // This is NmiFixedPoint.
  static HWY_INLINE VI FixedPoint(VF weight) {
    return hn::Sub(hn::BitCast(DI(), hn::MulAdd(weight, Splat(static_cast<float>(kNmiOne)), Splat(8388608.0f))),
                   hn::Set(DI(), 0x4b000000));
  }
  // Lane by lane the two counts of c01, then those of c23.
  static HWY_INLINE void StoreWindows(VI c01, VI c23, uint16_t* windows) {
    hn::StoreInterleaved2(c01, c23, DI(), reinterpret_cast<int32_t*>(windows));
  }
  static HWY_INLINE void AddWindow(const uint16_t* window, uint32_t* cell) {
    const hn::CappedTag<uint32_t, 4> d4;
    const hn::Rebind<uint16_t, decltype(d4)> d16;
    for (int k = 0; k < 4; k += static_cast<int>(hn::MaxLanes(d4))) {
      hn::StoreU(hn::Add(hn::LoadU(d4, cell + k), hn::PromoteTo(d4, hn::LoadU(d16, window + k))), d4, cell + k);
    }
  }

  NmiScale scale_;
  HistogramTask task_;
  int count_ = 0;
  int64_t pending_ = 0;
};

// The derivative by the moving values, and the curvature, from the polynomials of MakeNmiPolynomials.
struct NmiLanes {
  VF derivative, curvature;
};
// `rows` as in WindowCounter::Add.
template <bool kCurvature>
HWY_INLINE NmiLanes LookUpNmi(NmiScale scale, const float* polynomials, VI rows, VF value, MF samples) {
  const LaneWindow window = MakeLaneWindow(scale, value);
  const auto counts = hn::RebindMask(DI(), samples);
  const VI place = hn::ShiftLeft<2>(hn::IfThenElseZero(counts, hn::Add(rows, window.cell)));
  const VF a0 = hn::GatherIndex(DF(), polynomials, place), a1 = hn::GatherIndex(DF(), polynomials + 1, place);
  const VF a2 = hn::GatherIndex(DF(), polynomials + 2, place);
  const VF derivative = hn::IfThenElseZero(window.inside, hn::MulAdd(window.t, hn::MulAdd(window.t, a2, a1), a0));
  return {derivative, kCurvature ? hn::GatherIndex(DF(), polynomials + 3, place) : Zeros()};
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_NMI_INL_H_
