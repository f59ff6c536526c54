// SPDX-License-Identifier: Apache-2.0
// Vectors of float32 for the vector target that includes this (Highway's foreach_target): the types and the small
// helpers that the SIMD loops of the CPU operators are composed of.
#if defined(INTRAWARP_ENGINE_BASE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_BASE_SIMD_INL_H_
#undef INTRAWARP_ENGINE_BASE_SIMD_INL_H_
#else
#define INTRAWARP_ENGINE_BASE_SIMD_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using MF = hn::Mask<DF>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));

// The smallest multiple of kLanes that is not below n.
constexpr int RoundUp(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

HWY_INLINE VF Splat(float v) { return hn::Set(DF(), v); }
HWY_INLINE VF Zeros() { return hn::Zero(DF()); }
// x, x + 1, ...
HWY_INLINE VF Ramp(int x) { return hn::Iota(DF(), static_cast<float>(x)); }
HWY_INLINE double Total(VF v) { return hn::GetLane(hn::SumOfLanes(DF(), v)); }

// 1 / sqrt(v) to nearly all of float32's digits.
HWY_INLINE VF InverseSqrt(VF v) {
#if HWY_ARCH_X86
  const VF y = hn::ApproximateReciprocalSqrt(v);
  return hn::Mul(y, hn::NegMulAdd(hn::Mul(hn::Mul(Splat(0.5f), v), y), y, Splat(1.5f)));
#else
  return hn::Div(Splat(1.0f), hn::Sqrt(v));
#endif
}

// Vectors of an image, from anywhere in it. Lanes beyond a row hold the voxels of the rows beside it, and lanes beyond
// the image hold 0.
class ImageReader {
 public:
  ImageReader(const float* data, int64_t voxels) : begin_(data), end_(data + voxels) {}

  HWY_INLINE VF Load(const float* p) const {
    return HWY_LIKELY(p >= begin_ && p + kLanes <= end_) ? hn::LoadU(DF(), p) : LoadPart(p);
  }

 private:
  HWY_NOINLINE VF LoadPart(const float* p) const {
    HWY_ALIGN float lanes[kLanes] = {};
    for (int i = 0; i < kLanes; ++i) {
      if (p + i >= begin_ && p + i < end_) lanes[i] = p[i];
    }
    return hn::Load(DF(), lanes);
  }

  const float* begin_;
  const float* end_;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_BASE_SIMD_INL_H_
