// SPDX-License-Identifier: Apache-2.0
// The passes of the FFD objective over a brick (see FfdBrick) that belong to no metric, for the vector target that
// includes this. Those of a metric stand in ssd_ffd-inl.h and nmi_ffd-inl.h.
#if defined(INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_
#undef INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/metric/ffd_bricks.h"
#include "engine/metric/trilinear-inl.h"
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

// Stores the warped image, NaN where there is no sample, and with kWithWeights the samples' weights, 0 where there is
// none.
template <bool kWithWeights>
class WarpPass {
 public:
  static constexpr bool kForces = false, kWeighted = kWithWeights;

  WarpPass(const FfdRows& rows, float* warped, float* weights)
      : warped_(warped), weights_(weights), mask_(rows), n_(rows.size.x) {}

  void BeginRow(int64_t offset) {
    row_ = warped_ + offset;
    if (kWithWeights) weight_row_ = weights_ + offset;
    mask_.BeginRow(offset);
  }
  HWY_INLINE MF Select(int x, MF in) const { return mask_.Select(x, in); }
  HWY_INLINE VF Add(int x, VF value, MF samples, VF weights) {
    StorePart(hn::IfThenElse(samples, value, NaN()), row_, x, n_);
    if (kWithWeights) StorePart(weights, weight_row_, x, n_);
    return value;
  }
  HWY_INLINE void Skip(int x) {
    StorePart(NaN(), row_, x, n_);
    if (kWithWeights) StorePart(Zeros(), weight_row_, x, n_);
  }
  void EndRow() {}

 private:
  static HWY_INLINE VF NaN() { return Splat(std::numeric_limits<float>::quiet_NaN()); }

  float *warped_, *weights_;
  float *row_ = nullptr, *weight_row_ = nullptr;
  MaskRow mask_;
  int n_;
};

// Forces from a stored derivative of the metric by each warped value.
class VoxelGradientPass {
 public:
  static constexpr bool kForces = true, kWeighted = false;

  VoxelGradientPass(const FfdRows& rows, const float* voxel_gradient)
      : gradient_(voxel_gradient), reader_(voxel_gradient, rows.objective.fixed.geometry.voxels()) {}

  void BeginRow(int64_t offset) { row_ = gradient_ + offset; }
  HWY_INLINE MF Select(int x, MF in) const { return hn::And(in, hn::Ne(reader_.Load(row_ + x), Zeros())); }
  HWY_INLINE VF Add(int x, VF, MF, VF) { return reader_.Load(row_ + x); }
  HWY_INLINE void Skip(int) {}
  void EndRow() {}

 private:
  const float* gradient_;
  const float* row_ = nullptr;
  ImageReader reader_;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_FFD_PASSES_INL_H_
