// SPDX-License-Identifier: Apache-2.0
// SSD (ssd.h) as a pass of the FFD objective over a brick on the CPU, for the vector target that includes this.
#if defined(INTRAWARP_ENGINE_METRIC_SSD_FFD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_SSD_FFD_INL_H_
#undef INTRAWARP_ENGINE_METRIC_SSD_FFD_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_SSD_FFD_INL_H_
#endif

#include <cstdint>

#include "engine/metric/ffd_passes-inl.h"
#include "engine/metric/ssd.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// Sums w (m - f)^2, with w = 1 unless kWithWeights. A sample's force is w (m - f).
template <bool kWithForces, bool kWithWeights>
class SsdPass {
 public:
  static constexpr bool kForces = kWithForces, kWeighted = kWithWeights;

  explicit SsdPass(const FfdRows& rows)
      : fixed_(rows.objective.fixed.data), reader_(ReaderOf(rows.objective.fixed)), mask_(rows) {}

  void BeginRow(int64_t offset) {
    row_ = fixed_ + offset;
    mask_.BeginRow(offset);
    lanes_ = weight_lanes_ = Zeros();
  }
  HWY_INLINE MF Select(int x, MF in) const { return mask_.Select(x, in); }
  HWY_INLINE VF Add(int x, VF value, MF samples, VF weights) {
    const VF difference = hn::IfThenElseZero(samples, value - reader_.Load(row_ + x));
    const VF weighted = kWithWeights ? weights * difference : difference;
    lanes_ = hn::MulAdd(weighted, difference, lanes_);
    if (kWithWeights) weight_lanes_ = weight_lanes_ + weights;
    samples_ += static_cast<int64_t>(hn::CountTrue(DF(), samples));
    return weighted;
  }
  HWY_INLINE void Skip(int) {}
  void EndRow() {
    value_ += Total(lanes_);
    if (kWithWeights) weight_ += Total(weight_lanes_);
  }

  SsdSums Sums() const {
    const auto samples = static_cast<double>(samples_);
    return {value_, kWithWeights ? weight_ : samples, samples};
  }

 private:
  const float* fixed_;
  const float* row_ = nullptr;
  ImageReader reader_;
  MaskRow mask_;
  VF lanes_ = Zeros(), weight_lanes_ = Zeros();
  double value_ = 0, weight_ = 0;
  int64_t samples_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_SSD_FFD_INL_H_
