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
#include "engine/metric/nmi-inl.h"
#include "engine/metric/nmi_plan.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

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

// Counts into the joint histogram, with kWithWeights each sample by its weight.
template <bool kWithWeights>
class HistogramPass {
 public:
  static constexpr bool kForces = false, kWeighted = kWithWeights;

  HistogramPass(const FfdRows& rows, const uint8_t* bins, const HistogramTask& task)
      : bins_(bins), counter_(MovingScale(rows.objective), task), n_(rows.size.x) {}

  void BeginRow(int64_t offset) {
    bins_.BeginRow(offset);
    counter_.BeginRow(n_);
  }
  HWY_INLINE MF Select(int x, MF in) const { return bins_.Select(x, in); }
  HWY_INLINE VF Add(int x, VF value, MF samples, VF weights) {
    if constexpr (kWithWeights) {
      counter_.Add(bins_.Places(x), value, samples, weights);
      samples_ += static_cast<int64_t>(hn::CountTrue(DF(), samples));
    } else {
      counter_.Add(bins_.Places(x), value, samples);
    }
    return value;
  }
  HWY_INLINE void Skip(int) {}
  void EndRow() { counter_.EndRow(); }
  // Moves what was counted into the task's totals.
  void Flush() { counter_.Flush(); }
  // With kWithWeights.
  int64_t samples() const { return samples_; }

 private:
  BinRow bins_;
  WindowCounter counter_;
  int64_t samples_ = 0;
  int n_;
};

// Forces of NMI from the polynomials of MakeNmiPolynomials, with kWithWeights times the samples' weights.
template <bool kWithWeights>
class NmiPass {
 public:
  static constexpr bool kForces = true, kWeighted = kWithWeights;

  NmiPass(const FfdRows& rows, const uint8_t* bins, const float* polynomials)
      : bins_(bins), scale_(MovingScale(rows.objective)), polynomials_(polynomials) {}

  void BeginRow(int64_t offset) { bins_.BeginRow(offset); }
  HWY_INLINE MF Select(int x, MF in) const { return bins_.Select(x, in); }
  HWY_INLINE VF Add(int x, VF value, MF samples, VF weights) {
    const VF derivative = LookUpNmi<false>(scale_, polynomials_, bins_.Places(x), value, samples).derivative;
    return kWithWeights ? weights * derivative : derivative;
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
