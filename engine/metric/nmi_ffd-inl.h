// SPDX-License-Identifier: Apache-2.0
// The two passes of NMI (nmi.h) over a brick of the FFD objective on the CPU, for the vector target that includes this:
// the first counts the joint histogram, the second gives forces from its derivative.
#if defined(INTRAWARP_ENGINE_METRIC_NMI_FFD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_NMI_FFD_INL_H_
#undef INTRAWARP_ENGINE_METRIC_NMI_FFD_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_NMI_FFD_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "engine/metric/ffd_passes-inl.h"
#include "engine/metric/nmi_plan.h"
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

// The bins of the fixed image along a row.
class BinRow {
 public:
  explicit BinRow(const uint8_t* bins) : data_(bins) {}
  void BeginRow(int64_t offset) { row_ = data_ + offset; }
  HWY_INLINE MF Select(int x, MF in) const { return hn::And(in, hn::RebindMask(DF(), hn::Ne(Load(x), NoBin()))); }
  // The begin of the rows of the lanes' bins in a table of bins by bins.
  HWY_INLINE VI Places(int x) const { return hn::ShiftLeft<6>(Load(x)); }

 private:
  static_assert(kNmiBins == 64);
  static HWY_INLINE VI NoBin() { return hn::Set(DI(), kNmiNoBin); }
  HWY_INLINE VI Load(int x) const {
    // Beyond the image there are kRowPadding more bytes.
    return hn::PromoteTo(DI(), hn::LoadU(DBytes(), row_ + x));
  }
  const uint8_t* data_;
  const uint8_t* row_ = nullptr;
};

// Counts into the joint histogram.
class HistogramPass {
 public:
  static constexpr bool kForces = false;

  HistogramPass(const FfdRows& rows, const uint8_t* bins, const HistogramTask& task)
      : bins_(bins), scale_(MovingScale(rows.objective)), task_(task), n_(rows.size.x) {}

  void BeginRow(int64_t offset) {
    bins_.BeginRow(offset);
    if (pending_ + n_ > kHistogramRoom) Flush();
    pending_ += n_;
    count_ = 0;
  }
  HWY_INLINE MF Select(int x, MF in) const { return bins_.Select(x, in); }
  HWY_INLINE VF Add(int x, VF value, MF samples) {
    const LaneWindow window = MakeLaneWindow(scale_, value);
    VF w[4];
    LaneWeights(window.t, w);
    const VI c0 = FixedPoint(w[0]), c1 = FixedPoint(w[1]), c3 = FixedPoint(w[3]);
    const VI c2 = hn::Sub(hn::Set(DI(), kNmiOne), hn::Add(c0, hn::Add(c1, c3)));
    // Lanes that don't count add 0 to cell 0.
    const auto counts = hn::RebindMask(DI(), samples);
    int32_t* places = task_.places + count_;
    uint16_t* windows = task_.windows + 4 * count_;
    hn::Store(hn::IfThenElseZero(counts, hn::Add(bins_.Places(x), window.cell)), DI(), places);
    StoreWindows(hn::IfThenElseZero(counts, hn::Or(c0, hn::ShiftLeft<16>(c1))),
                 hn::IfThenElseZero(counts, hn::Or(c2, hn::ShiftLeft<16>(c3))), windows);
    count_ += kLanes;
    return value;
  }
  HWY_INLINE void Skip(int) {}
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
  static HWY_INLINE void LaneWeights(VF t, VF w[4]) {
    const VF s = Splat(1) - t, sixth = Splat(1.0f / 6), two_thirds = Splat(4.0f / 6), half = Splat(0.5f);
    w[0] = s * s * s * sixth;
    w[1] = hn::MulAdd(t * t, half * t - Splat(1), two_thirds);
    w[3] = t * t * t * sixth;
  }
  static constexpr int kStep = std::min(kLanes, 8);

  // As NmiFixedPoint.
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

  BinRow bins_;
  NmiScale scale_;
  HistogramTask task_;
  int n_;
  int count_ = 0;
  int64_t pending_ = 0;
};

// Forces of NMI from polynomials: for each place of a window, four floats a0 a1 a2 0 with the derivative
// a0 + t (a1 + t a2).
class NmiPass {
 public:
  static constexpr bool kForces = true;

  NmiPass(const FfdRows& rows, const uint8_t* bins, const float* polynomials)
      : bins_(bins), scale_(MovingScale(rows.objective)), polynomials_(polynomials) {}

  void BeginRow(int64_t offset) { bins_.BeginRow(offset); }
  HWY_INLINE MF Select(int x, MF in) const { return bins_.Select(x, in); }
  HWY_INLINE VF Add(int x, VF value, MF samples) {
    const LaneWindow window = MakeLaneWindow(scale_, value);
    const auto counts = hn::RebindMask(DI(), samples);
    const VI place = hn::ShiftLeft<2>(hn::IfThenElseZero(counts, hn::Add(bins_.Places(x), window.cell)));
    const VF a0 = hn::GatherIndex(DF(), polynomials_, place), a1 = hn::GatherIndex(DF(), polynomials_ + 1, place);
    const VF a2 = hn::GatherIndex(DF(), polynomials_ + 2, place);
    return hn::IfThenElseZero(window.inside, hn::MulAdd(window.t, hn::MulAdd(window.t, a2, a1), a0));
  }
  HWY_INLINE void Skip(int) {}
  void EndRow() {}

 private:
  BinRow bins_;
  NmiScale scale_;
  const float* polynomials_;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_NMI_FFD_INL_H_
