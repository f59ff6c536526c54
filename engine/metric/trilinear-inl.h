// SPDX-License-Identifier: Apache-2.0
// Vectors of trilinear samples of a volume, for the vector target that includes this (Highway's foreach_target): the
// parts that the samplers of affine rows and of free-form rows are composed of. Semantics: engine/image/sample.h.
#if defined(INTRAWARP_ENGINE_METRIC_TRILINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_TRILINEAR_INL_H_
#undef INTRAWARP_ENGINE_METRIC_TRILINEAR_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_TRILINEAR_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/base/simd-inl.h"
#include "engine/image/volume.h"
#include "engine/metric/affine_plan.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// Lanes of the voxels x, x + 1, ... that are in the range.
HWY_INLINE MF InRange(int x, Range range) {
  const VF i = Ramp(x);
  return hn::And(hn::Ge(i, Splat(static_cast<float>(range.begin))), hn::Lt(i, Splat(static_cast<float>(range.end))));
}

// To integers, towards 0; for values that fit, so without ConvertTo's care for others.
HWY_INLINE VI Truncate(VF v) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  using Integers = int32_t __attribute__((vector_size(sizeof(v.raw))));
  return VI{reinterpret_cast<decltype(VI().raw)>(__builtin_convertvector(v.raw, Integers))};
#else
  return hn::ConvertTo(DI(), v);
#endif
}

inline ImageReader ReaderOf(const ConstVolumeView& image) { return {image.data, image.geometry.voxels()}; }

// The four pairs of neighbours along x around a point: [z][y].
struct Corners {
  VF low[2][2], high[2][2];
};

// kPlanar: of an image with one plane.
template <bool kPlanar>
HWY_INLINE VF Interpolate(const Corners& c, VF wx, VF wy, VF wz, VF gradient[3]) {
  VF value[2], dx[2], dy[2];
  for (int z = 0; z < (kPlanar ? 1 : 2); ++z) {
    const VF d0 = c.high[z][0] - c.low[z][0], d1 = c.high[z][1] - c.low[z][1];
    const VF v0 = hn::MulAdd(wx, d0, c.low[z][0]), v1 = hn::MulAdd(wx, d1, c.low[z][1]);
    dx[z] = hn::MulAdd(wy, d1 - d0, d0);
    dy[z] = v1 - v0;
    value[z] = hn::MulAdd(wy, dy[z], v0);
  }
  if (kPlanar) {
    gradient[0] = dx[0];
    gradient[1] = dy[0];
    gradient[2] = Zeros();
    return value[0];
  }
  gradient[0] = hn::MulAdd(wz, dx[1] - dx[0], dx[0]);
  gradient[1] = hn::MulAdd(wz, dy[1] - dy[0], dy[0]);
  gradient[2] = value[1] - value[0];
  return hn::MulAdd(wz, gradient[2], value[0]);
}

// Fetches corners of an image with less than 2^31 voxels and at least two along x. Lanes: the lower voxel on each axis
// (x at most size.x - 2, y and z at most size - 2 or 0).
class CornerReader {
 public:
  explicit CornerReader(const ConstVolumeView& image)
      : data_(image.data),
        voxels_(image.geometry.voxels()),
        row_(image.geometry.size.y > 1 ? image.geometry.size.x : 0),
        plane_(image.geometry.size.z > 1 ? int64_t{image.geometry.size.x} * image.geometry.size.y : 0) {}

  const float* data() const { return data_; }
  int64_t voxels() const { return voxels_; }
  // From a voxel to its neighbours along y and z; 0 along an axis of one voxel.
  int64_t row() const { return row_; }
  int64_t plane() const { return plane_; }

  HWY_INLINE VI RowOffset(VI y, VI z) const {
    return hn::Add(hn::Mul(y, hn::Set(DI(), static_cast<int32_t>(row_))),
                   hn::Mul(z, hn::Set(DI(), static_cast<int32_t>(plane_))));
  }
  HWY_INLINE VI Offset(VI x, VI y, VI z) const { return hn::Add(x, RowOffset(y, z)); }

  // For the next row of the fixed grid, which is likely to need the next row of the moving image.
  HWY_INLINE void PrefetchNextRow(int64_t offset) const {
    hwy::Prefetch(data_ + std::min(offset + plane_ + 2 * row_, voxels_ - 1));
  }

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  static constexpr bool kHasLookup = true;

  // Two neighbours make one 64-bit load.
  template <bool kPlanar>
  HWY_INLINE void Gather(VI offset, Corners* c) const {
    using DPair = hn::Repartition<int64_t, DF>;
    using VPair = hn::Vec<DPair>;
    const hn::Half<DI> half;
    const VPair first = hn::ShiftLeft<2>(hn::PromoteTo(DPair(), hn::LowerHalf(half, offset)));
    const VPair second = hn::ShiftLeft<2>(hn::PromoteTo(DPair(), hn::UpperHalf(half, offset)));
    for (int z = 0; z < (kPlanar ? 1 : 2); ++z) {
      for (int y = 0; y < 2; ++y) {
        const int64_t* base = reinterpret_cast<const int64_t*>(data_ + z * plane_ + y * row_);
        const VF a = hn::BitCast(DF(), hn::GatherOffset(DPair(), base, first));
        const VF b = hn::BitCast(DF(), hn::GatherOffset(DPair(), base, second));
        c->low[z][y] = hn::ConcatEven(DF(), b, a);
        c->high[z][y] = hn::ConcatOdd(DF(), b, a);
      }
    }
  }

  // All corners from the 2 * kLanes voxels at p in each row; lanes: the places in it of both neighbours.
  template <bool kPlanar>
  HWY_INLINE void LookUp(const float* p, VI low, VI high, Corners* c) const {
    for (int z = 0; z < (kPlanar ? 1 : 2); ++z) {
      for (int y = 0; y < 2; ++y) {
        const float* row = p + z * plane_ + y * row_;
        const VF first = hn::LoadU(DF(), row), second = hn::LoadU(DF(), row + kLanes);
        c->low[z][y] = LookUpLanes(first, second, low);
        c->high[z][y] = LookUpLanes(first, second, high);
      }
    }
  }

 private:
  // Lane i of the result is element index[i] of the 2 * kLanes elements of first and second.
  static HWY_INLINE VF LookUpLanes(VF first, VF second, VI index) {
#if HWY_TARGET <= HWY_AVX3
    return VF{_mm512_permutex2var_ps(first.raw, index.raw, second.raw)};
#else
    const auto lanes = hn::IndicesFromVec(DF(), hn::And(index, hn::Set(DI(), kLanes - 1)));
    const MF in_second = hn::RebindMask(DF(), hn::Gt(index, hn::Set(DI(), kLanes - 1)));
    return hn::IfThenElse(in_second, hn::TableLookupLanes(second, lanes), hn::TableLookupLanes(first, lanes));
#endif
  }
#else
  static constexpr bool kHasLookup = false;

  template <bool kPlanar>
  HWY_INLINE void Gather(VI offset, Corners* c) const {
    for (int z = 0; z < (kPlanar ? 1 : 2); ++z) {
      for (int y = 0; y < 2; ++y) {
        const float* base = data_ + z * plane_ + y * row_;
        c->low[z][y] = hn::GatherIndex(DF(), base, offset);
        c->high[z][y] = hn::GatherIndex(DF(), base + 1, offset);
      }
    }
  }

  // Never called.
  template <bool kPlanar>
  HWY_INLINE void LookUp(const float*, VI, VI, Corners*) const {}

 private:
#endif

  const float* data_;
  int64_t voxels_;
  int64_t row_, plane_;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_TRILINEAR_INL_H_
