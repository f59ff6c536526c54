// SPDX-License-Identifier: Apache-2.0
// The passes of the FFD objective over a brick (see FfdBrick), for the vector target that includes this.
#if defined(INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_
#undef INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/metric/ffd_rows.h"
#include "engine/metric/trilinear-inl.h"
#include "engine/image/bspline.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

using DBytes = hn::Rebind<uint8_t, DI>;

// Bytes x, x + 1, ... of a row of n, as integers; 0 beyond it.
HWY_INLINE VI LoadBytes(const uint8_t* row, int x, int n) {
  if (HWY_LIKELY(x + kLanes <= n)) return hn::PromoteTo(DI(), hn::LoadU(DBytes(), row + x));
  HWY_ALIGN int32_t lanes[kLanes] = {};
  for (int i = 0; i < n - x; ++i) lanes[i] = row[x + i];
  return hn::Load(DI(), lanes);
}

// Stores what belongs to a row of n.
HWY_INLINE void StorePart(VF v, float* row, int x, int n) {
  if (HWY_LIKELY(x + kLanes <= n)) return hn::StoreU(v, DF(), row + x);
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, DF(), lanes);
  std::copy_n(lanes, n - x, row + x);
}

// The fixed mask along a row.
class MaskRow {
 public:
  explicit MaskRow(const FfdRows& rows) : data_(rows.objective.fixed_mask.data), n_(rows.size.x) {}
  void BeginRow(int64_t offset) { row_ = data_ + offset; }
  HWY_INLINE MF Select(int x, MF in) const {
    if (data_ == nullptr) return in;
    return hn::And(in, hn::RebindMask(DF(), hn::Ne(LoadBytes(row_, x, n_), hn::Zero(DI()))));
  }

 private:
  const uint8_t* data_;
  const uint8_t* row_ = nullptr;
  int n_;
};

// Sums (m - f)^2; forces m - f.
template <bool kWithForces>
class SsdPass {
 public:
  static constexpr bool kForces = kWithForces;

  explicit SsdPass(const FfdRows& rows)
      : fixed_(rows.objective.fixed.data), reader_(rows.objective.fixed), mask_(rows) {}

  void BeginRow(int64_t offset) {
    row_ = fixed_ + offset;
    mask_.BeginRow(offset);
    lanes_ = Zeros();
  }
  HWY_INLINE MF Select(int x, MF in) const { return mask_.Select(x, in); }
  HWY_INLINE VF Add(int x, VF value, MF samples) {
    const VF difference = hn::IfThenElseZero(samples, value - reader_.Load(row_ + x));
    lanes_ = hn::MulAdd(difference, difference, lanes_);
    samples_ += static_cast<int64_t>(hn::CountTrue(DF(), samples));
    return difference;
  }
  HWY_INLINE void Skip(int) {}
  void EndRow() { value_ += hn::GetLane(hn::SumOfLanes(DF(), lanes_)); }

  FfdValue Sums() const { return {value_, static_cast<double>(samples_)}; }

 private:
  const float* fixed_;
  const float* row_ = nullptr;
  ImageReader reader_;
  MaskRow mask_;
  VF lanes_ = Zeros();
  double value_ = 0;
  int64_t samples_ = 0;
};

// Where the moving values of lanes lie among the bins; as MakeNmiWindow.
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
  // Where the rows of the lanes' bins begin in a table of bins by bins.
  HWY_INLINE VI Places(int x) const { return hn::ShiftLeft<6>(Load(x)); }

 private:
  static_assert(kNmiBins == 64);
  static HWY_INLINE VI NoBin() { return hn::Set(DI(), kNoBin); }
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
      : bins_(bins), scale_(NmiMovingScale(rows.objective)), task_(task), n_(rows.size.x) {}

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
      : bins_(bins), scale_(NmiMovingScale(rows.objective)), polynomials_(polynomials) {}

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

// Stores the warped image, NaN where there is no sample.
class WarpPass {
 public:
  static constexpr bool kForces = false;

  WarpPass(const FfdRows& rows, float* warped) : warped_(warped), mask_(rows), n_(rows.size.x) {}

  void BeginRow(int64_t offset) {
    row_ = warped_ + offset;
    mask_.BeginRow(offset);
  }
  HWY_INLINE MF Select(int x, MF in) const { return mask_.Select(x, in); }
  HWY_INLINE VF Add(int x, VF value, MF samples) {
    StorePart(hn::IfThenElse(samples, value, NaN()), row_, x, n_);
    return value;
  }
  HWY_INLINE void Skip(int x) { StorePart(NaN(), row_, x, n_); }
  void EndRow() {}

 private:
  static HWY_INLINE VF NaN() { return Splat(std::numeric_limits<float>::quiet_NaN()); }

  float* warped_;
  float* row_ = nullptr;
  MaskRow mask_;
  int n_;
};

// Forces from a stored derivative of the metric by each warped value.
class ResidualPass {
 public:
  static constexpr bool kForces = true;

  ResidualPass(const FfdRows& rows, const float* residual)
      : residual_(residual), reader_(ConstVolumeView{residual, rows.objective.fixed.geometry}) {}

  void BeginRow(int64_t offset) { row_ = residual_ + offset; }
  HWY_INLINE MF Select(int x, MF in) const { return hn::And(in, hn::Ne(reader_.Load(row_ + x), Zeros())); }
  HWY_INLINE VF Add(int x, VF, MF) { return reader_.Load(row_ + x); }
  HWY_INLINE void Skip(int) {}
  void EndRow() {}

 private:
  const float* residual_;
  const float* row_ = nullptr;
  ImageReader reader_;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_
