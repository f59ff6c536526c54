// SPDX-License-Identifier: Apache-2.0
// The passes of LNCC (lncc.h) in the affine objective on the CPU, for the vector target that includes this: the first
// stores the warped image, the last takes derivative and curvature by each of its voxels from memory.
#if defined(INTRAWARP_ENGINE_METRIC_LNCC_AFFINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_LNCC_AFFINE_INL_H_
#undef INTRAWARP_ENGINE_METRIC_LNCC_AFFINE_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_LNCC_AFFINE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/metric/affine_plan.h"
#include "engine/metric/affine_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// Stores rows of the warped image, NaN where there is no sample, and, unless `weights` is null, rows of the
// samples' weights, 0 where there is no sample. `scratch`: WarpedRowFloats.
class WarpRows {
 public:
  WarpRows(const AffinePlan& plan, float* warped, float* weights, float* scratch)
      : plan_(plan),
        sampler_(plan),
        warped_(warped),
        weights_(weights),
        row_(MakeWarpedRow(scratch, plan.size.x, plan.objective.moving_mask.data != nullptr)) {}

  void Add(int y, int z) {
    sampler_.Sample(y, z, &row_);
    float* const out = warped_ + plan_.RowOffset(y, z);
    std::fill_n(out, plan_.size.x, std::numeric_limits<float>::quiet_NaN());
    if (weights_ != nullptr) StoreWeights(y, z);
    if (row_.inside.empty()) return;
    if (plan_.masked()) BlankMasked(plan_.FixedMaskRow(y, z));
    std::copy(row_.value + row_.inside.begin, row_.value + row_.inside.end, out + row_.inside.begin);
  }

 private:
  // By way of the row's derivative, which nothing else needs here.
  void StoreWeights(int y, int z) {
    float* const out = weights_ + plan_.RowOffset(y, z);
    std::fill_n(out, plan_.size.x, 0.0f);
    const uint8_t* fixed_mask = plan_.FixedMaskRow(y, z);
    float* const lanes = row_.gradient[0];
    for (int x = row_.inside.begin / kLanes * kLanes; x < row_.inside.end; x += kLanes) {
      const MF counts = CountingLanes<true>(plan_, row_, x, row_.inside, fixed_mask);
      hn::Store(SampleWeights(plan_, row_, x, counts, fixed_mask), DF(), lanes + x);
    }
    if (!row_.inside.empty()) std::copy(lanes + row_.inside.begin, lanes + row_.inside.end, out + row_.inside.begin);
  }

  void BlankMasked(const uint8_t* fixed_mask) {
    const VF blank = Splat(std::numeric_limits<float>::quiet_NaN());
    for (int x = row_.inside.begin / kLanes * kLanes; x < row_.inside.end; x += kLanes) {
      const MF counts = CountingLanes<true>(plan_, row_, x, row_.inside, fixed_mask);
      hn::Store(hn::IfThenElse(counts, hn::Load(DF(), row_.value + x), blank), DF(), row_.value + x);
    }
  }

  const AffinePlan& plan_;
  const RowSampler sampler_;
  float *warped_, *weights_;
  WarpedRow row_;
};

// Stored images on the fixed grid: the derivative of the metric by each voxel of the warped image, and its curvature.
class StoredTerm {
 public:
  static constexpr bool kIsSquare = false;

  StoredTerm(const AffinePlan& plan, const float* derivative, const float* curvature)
      : plan_(plan),
        derivative_(derivative),
        curvature_(curvature),
        derivative_reader_(derivative, plan.objective.fixed.geometry.voxels()),
        curvature_reader_(curvature, plan.objective.fixed.geometry.voxels()) {}

  VF Scale() const { return Splat(1.0f); }
  void BeginRow(int y, int z) { row_ = plan_.RowOffset(y, z); }
  HWY_INLINE LaneTerm At(int x, VF, MF) const {
    return {derivative_reader_.Load(derivative_ + row_ + x), curvature_reader_.Load(curvature_ + row_ + x)};
  }

 private:
  const AffinePlan& plan_;
  const float *derivative_, *curvature_;
  ImageReader derivative_reader_, curvature_reader_;
  int64_t row_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_LNCC_AFFINE_INL_H_
