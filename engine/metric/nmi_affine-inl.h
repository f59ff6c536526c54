// SPDX-License-Identifier: Apache-2.0
// The two passes of NMI (nmi.h) in the affine objective on the CPU, for the vector target that includes this: the first
// counts the joint histogram, the second takes derivative and curvature of a sample from it.
#if defined(INTRAWARP_ENGINE_METRIC_NMI_AFFINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_NMI_AFFINE_INL_H_
#undef INTRAWARP_ENGINE_METRIC_NMI_AFFINE_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_NMI_AFFINE_INL_H_
#endif

#include <cstdint>

#include "engine/metric/affine_plan.h"
#include "engine/metric/affine_rows-inl.h"
#include "engine/metric/affine_terms.h"
#include "engine/metric/nmi-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// The bins of the fixed image along a row.
class FixedBins {
 public:
  explicit FixedBins(const AffinePlan& plan)
      : plan_(plan), reader_(ReaderOf(plan.objective.fixed)), scale_(FixedScale(plan.objective)) {}

  void BeginRow(int y, int z) { row_ = plan_.FixedRow(y, z); }
  // The begin of the rows of the lanes' bins in a table of bins by bins; as NmiFixedBin.
  HWY_INLINE VI Rows(int x) const {
    const VF p = (reader_.Load(row_ + x) - Splat(scale_.minimum)) * Splat(scale_.scale);
    const VF bin = hn::Min(hn::Max(p, Zeros()), Splat(static_cast<float>(kNmiBins - 1)));
    return hn::ShiftLeft<6>(Truncate(bin));
  }

 private:
  static_assert(kNmiBins == 64);
  const AffinePlan& plan_;
  ImageReader reader_;
  NmiScale scale_;
  const float* row_ = nullptr;
};

// Counts rows into a joint histogram. `scratch`: WarpedRowFloats.
class NmiCountRows {
 public:
  NmiCountRows(const AffinePlan& plan, const HistogramTask& task, float* scratch)
      : plan_(plan),
        masking_(plan.masking()),
        sampler_(plan),
        bins_(plan),
        counter_(MovingScale(plan.objective), task),
        row_(MakeWarpedRow(scratch, plan.size.x, plan.objective.moving_mask.data != nullptr)) {}

  void Add(int y, int z) {
    sampler_.Sample(y, z, &row_);
    if (row_.inside.empty()) return;
    bins_.BeginRow(y, z);
    counter_.BeginRow(RoundUp(plan_.size.x));
    CountRow(plan_.FixedMaskRow(y, z));
    counter_.EndRow();
  }
  void Finish() { counter_.Flush(); }
  // Under weights, which the histogram holds the sum of.
  int64_t samples() const { return samples_; }

 private:
  void CountRow(const uint8_t* fixed_mask) {
    switch (masking_) {
      case Masking::kNone:
        return Count<Masking::kNone>(fixed_mask);
      case Masking::kBinary:
        return Count<Masking::kBinary>(fixed_mask);
      case Masking::kWeighted:
        return Count<Masking::kWeighted>(fixed_mask);
    }
  }

  template <Masking kMasking>
  void Count(const uint8_t* fixed_mask) {
    for (int x = row_.inside.begin / kLanes * kLanes; x < row_.inside.end; x += kLanes) {
      const MF counts = CountingLanes<kMasking != Masking::kNone>(plan_, row_, x, row_.inside, fixed_mask);
      const VF value = hn::Load(DF(), row_.value + x);
      if constexpr (kMasking == Masking::kWeighted) {
        counter_.Add(bins_.Rows(x), value, counts, SampleWeights(plan_, row_, x, counts, fixed_mask));
        samples_ += static_cast<int64_t>(hn::CountTrue(DF(), counts));
      } else {
        counter_.Add(bins_.Rows(x), value, counts);
      }
    }
  }

  const AffinePlan& plan_;
  const Masking masking_;
  const RowSampler sampler_;
  FixedBins bins_;
  WindowCounter counter_;
  WarpedRow row_;
  int64_t samples_ = 0;
};

// From the polynomials of MakeNmiPolynomials.
class NmiTerm {
 public:
  static constexpr bool kIsSquare = false;

  NmiTerm(const AffinePlan& plan, const float* polynomials)
      : bins_(plan), scale_(MovingScale(plan.objective)), polynomials_(polynomials) {}

  VF Scale() const { return Splat(1.0f); }
  void BeginRow(int y, int z) { bins_.BeginRow(y, z); }
  HWY_INLINE LaneTerm At(int x, VF value, MF counts) const {
    const NmiLanes lanes = LookUpNmi<true>(scale_, polynomials_, bins_.Rows(x), value, counts);
    return {lanes.derivative, lanes.curvature};
  }

 private:
  FixedBins bins_;
  NmiScale scale_;
  const float* polynomials_;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_NMI_AFFINE_INL_H_
