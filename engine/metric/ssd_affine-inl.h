// SPDX-License-Identifier: Apache-2.0
// The term of SSD (ssd.h) in the affine objective on the CPU, for the vector target that includes this.
#if defined(INTRAWARP_ENGINE_METRIC_SSD_AFFINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_SSD_AFFINE_INL_H_
#undef INTRAWARP_ENGINE_METRIC_SSD_AFFINE_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_SSD_AFFINE_INL_H_
#endif

#include "engine/metric/affine_plan.h"
#include "engine/metric/affine_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

class SsdTerm {
 public:
  static constexpr bool kIsSquare = true;

  explicit SsdTerm(const AffinePlan& plan)
      : plan_(plan),
        reader_(ReaderOf(plan.objective.fixed)),
        scale_(static_cast<float>(plan.objective.intensity_scale)) {}

  VF Scale() const { return Splat(scale_); }
  void BeginRow(int y, int z) { row_ = plan_.FixedRow(y, z); }
  HWY_INLINE LaneTerm At(int x, VF value, MF) const {
    return {Splat(scale_) * (value - reader_.Load(row_ + x)), Zeros()};
  }

 private:
  const AffinePlan& plan_;
  ImageReader reader_;
  float scale_;
  const float* row_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_SSD_AFFINE_INL_H_
