// SPDX-License-Identifier: Apache-2.0
// The moving image along a row of the fixed grid, for the vector target that includes this (Highway's foreach_target):
// value and exact trilinear derivative at base + x * step, as engine/image/sample.h defines them.
//
// Along a row the index into the moving image is an affine function of x, so the voxels that map inside are one range, as
// are those that need no clamping. Corners are fetched by lookups in consecutive voxels where the row stays in few rows of
// the moving image (small rotations), and otherwise gathered, two neighbours along x at a time.
#if defined(INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_
#undef INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/image/sample.h"
#include "engine/metric/affine_plan.h"
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

HWY_INLINE VF Splat(float v) { return hn::Set(DF(), v); }
HWY_INLINE VF Zeros() { return hn::Zero(DF()); }
HWY_INLINE VF Ramp(int x) { return hn::Iota(DF(), static_cast<float>(x)); }

// Lanes of the voxels x, x + 1, ... that are in the range.
HWY_INLINE MF InRange(int x, Range range) {
  const VF i = Ramp(x);
  return hn::And(hn::Ge(i, Splat(static_cast<float>(range.begin))), hn::Lt(i, Splat(static_cast<float>(range.end))));
}

// row[x], row[x + 1], ... of a row of n voxels, 0 beyond it.
HWY_INLINE VF LoadRow(const float* row, int x, int n) {
  if (HWY_LIKELY(x >= 0 && x + kLanes <= n)) return hn::LoadU(DF(), row + x);
  HWY_ALIGN float lanes[kLanes] = {};
  for (int i = std::max(0, -x); i < std::min(kLanes, n - x); ++i) lanes[i] = row[x + i];
  return hn::Load(DF(), lanes);
}

// A warped row in scratch memory: pointers to x = 0, aligned; a vector before and one after the row may be read.
struct WarpedRow {
  float* value;
  float* gradient[3];
  // 1 where the moving mask is set, 0 elsewhere; null without a moving mask.
  float* in_mask;
  // The voxels that map inside; nothing is known of the others.
  Range inside;
};

// Floats of scratch for one row of n voxels.
inline size_t WarpedRowFloats(int n) { return size_t{5} * ((n + kLanes - 1) / kLanes * kLanes + 2 * kLanes); }

inline WarpedRow MakeWarpedRow(float* scratch, int n, bool with_mask) {
  const size_t stride = WarpedRowFloats(n) / 5;
  float* first = scratch + kLanes;
  return {first, {first + stride, first + 2 * stride, first + 3 * stride}, with_mask ? first + 4 * stride : nullptr, {}};
}

class RowSampler {
 public:
  explicit RowSampler(const AffinePlan& plan)
      : plan_(plan),
        data_(plan.objective.moving.data),
        mask_(plan.objective.moving_mask.data),
        size_(plan.objective.moving.geometry.size),
        voxels_(plan.objective.moving.geometry.voxels()),
        row_(size_.y > 1 ? size_.x : 0),
        plane_(size_.z > 1 ? int64_t{size_.x} * size_.y : 0),
        plain_(size_.x == 1 || voxels_ > std::numeric_limits<int32_t>::max()) {
    for (int a = 0; a < 3; ++a) {
      step_[a] = static_cast<float>(Snap(plan.to_moving.m[a][0], kStepScale));
      // An axis of one voxel has index 0 wherever it is inside.
      cell_step_[a] = size_[a] > 1 ? step_[a] : 0;
      inside_low_[a] = -0.5f;
      inside_high_[a] = size_[a] - 0.5f;
      interior_low_[a] = size_[a] > 1 ? 0.0f : -0.5f;
      interior_high_[a] = size_[a] > 1 ? std::nextafter(size_[a] - 1.0f, 0.0f) : 0.5f;
    }
    const float across = std::abs(cell_step_[1]) + std::abs(cell_step_[2]);
    lookup_ = kHasLookup && std::abs(step_[0]) * (kLanes - 1) < 2 * kLanes - 3 && across * kLanes < kMaxRuns;
  }

  // Samples row (y, z) of the fixed grid into *out.
  void Sample(int y, int z, WarpedRow* out) const {
    Line line;
    for (int a = 0; a < 3; ++a) {
      const double start = plan_.to_moving.m[a][1] * y + plan_.to_moving.m[a][2] * z + plan_.to_moving.m[a][3];
      line.base[a] = static_cast<float>(Snap(start, kBaseScale));
    }
    out->inside = Clip(line, inside_low_, inside_high_);
    if (out->inside.empty()) return;
    if (plain_) {
      SamplePlain(line, out);
    } else if (size_.z == 1) {
      SampleBlocks<true>(line, out);
    } else {
      SampleBlocks<false>(line, out);
    }
    if (mask_ != nullptr) SampleMask(line, out);
  }

 private:
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  static constexpr bool kHasLookup = true;
#else
  static constexpr bool kHasLookup = false;
#endif
  // Rows of the moving image that a vector may cross before gathering is faster.
  static constexpr float kMaxRuns = 2.5f;
  // Indices are rounded to these fractions of a voxel, so that a map that is the identity but for rounding lands on
  // voxel centres and not just outside the outermost of them.
  static constexpr double kBaseScale = 1 << 20;
  static constexpr double kStepScale = int64_t{1} << 34;
  static double Snap(double v, double scale) { return std::nearbyint(v * scale) / scale; }

  struct Line {
    float base[3];
  };

  // The four pairs of neighbours along x around a point: [z][y].
  struct Corners {
    VF low[2][2], high[2][2];
  };

  // The index of voxel x along one axis, exactly as the lanes compute it.
  HWY_INLINE float IndexAt(const Line& line, int axis, int x) const {
    const hn::CappedTag<float, 1> d;
    return hn::GetLane(hn::MulAdd(hn::Set(d, static_cast<float>(x)), hn::Set(d, step_[axis]), hn::Set(d, line.base[axis])));
  }

  HWY_INLINE bool Within(const Line& line, int x, const float low[3], const float high[3]) const {
    const float i = IndexAt(line, 0, x), j = IndexAt(line, 1, x), k = IndexAt(line, 2, x);
    return i >= low[0] && i <= high[0] && j >= low[1] && j <= high[1] && k >= low[2] && k <= high[2];
  }

  // The voxels whose index is within the bounds. The index is monotone in x along each axis, rounding included, so they
  // are one range; its ends are solved for, and then moved to where rounding puts them.
  Range Clip(const Line& line, const float low[3], const float high[3]) const {
    const int n = plan_.size.x;
    if (Within(line, 0, low, high) && Within(line, n - 1, low, high)) return {0, n};
    double first = 0, last = n - 1;
    for (int a = 0; a < 3; ++a) {
      if (!std::isfinite(line.base[a]) || !std::isfinite(step_[a])) return {};
      if (step_[a] == 0) continue;
      const double t0 = (double{low[a]} - line.base[a]) / step_[a], t1 = (double{high[a]} - line.base[a]) / step_[a];
      first = std::max(first, std::min(t0, t1));
      last = std::min(last, std::max(t0, t1));
    }
    constexpr double kMargin = 0.01;
    if (!(first - kMargin <= last + kMargin)) return {};
    Range range{std::max(0, static_cast<int>(std::ceil(first - kMargin))),
                std::min(n, static_cast<int>(std::floor(last + kMargin)) + 1)};
    while (!range.empty() && !Within(line, range.begin, low, high)) ++range.begin;
    while (!range.empty() && !Within(line, range.end - 1, low, high)) --range.end;
    if (range.empty()) return {};
    while (range.begin > 0 && Within(line, range.begin - 1, low, high)) --range.begin;
    while (range.end < n && Within(line, range.end, low, high)) ++range.end;
    return range;
  }

  void SamplePlain(const Line& line, WarpedRow* out) const {
    for (int x = out->inside.begin; x < out->inside.end; ++x) {
      Vec3f gradient;
      out->value[x] = SampleLinearGradient(
          data_, size_, {IndexAt(line, 0, x), IndexAt(line, 1, x), IndexAt(line, 2, x)}, &gradient);
      for (int a = 0; a < 3; ++a) out->gradient[a][x] = gradient[a];
    }
  }

  void SampleMask(const Line& line, WarpedRow* out) const {
    for (int x = out->inside.begin; x < out->inside.end; ++x) {
      const size_t nearest = NearestOffset(size_, {IndexAt(line, 0, x), IndexAt(line, 1, x), IndexAt(line, 2, x)});
      out->in_mask[x] = mask_[nearest] != 0 ? 1.0f : 0.0f;
    }
  }

  template <bool kPlanar>
  HWY_INLINE void SampleBlocks(const Line& line, WarpedRow* out) const {
    const Range interior = Clip(line, interior_low_, interior_high_);
    for (int x = out->inside.begin / kLanes * kLanes; x < out->inside.end; x += kLanes) {
      if (HWY_LIKELY(x >= interior.begin && x + kLanes <= interior.end)) {
        SampleInterior<kPlanar>(line, x, out);
      } else {
        SampleClamped<kPlanar>(line, x, out);
      }
    }
  }

  HWY_INLINE VF CellIndex(const Line& line, int axis, VF ramp) const {
    return hn::MulAdd(ramp, Splat(cell_step_[axis]), Splat(size_[axis] > 1 ? line.base[axis] : 0.0f));
  }

  // A vector of voxels none of which needs clamping.
  template <bool kPlanar>
  HWY_INLINE void SampleInterior(const Line& line, int x, WarpedRow* out) const {
    const VF ramp = Ramp(x);
    const VF fx = CellIndex(line, 0, ramp), fy = CellIndex(line, 1, ramp), fz = CellIndex(line, 2, ramp);
    const VI lx = hn::ConvertTo(DI(), fx), ly = hn::ConvertTo(DI(), fy), lz = hn::ConvertTo(DI(), fz);
    Corners corners;
    if (!lookup_ || !LookUp<kPlanar>(line, x, lx, ly, lz, &corners)) Gather<kPlanar>(lx, ly, lz, &corners);
    VF gradient[3];
    const VF value = Interpolate<kPlanar>(corners, fx - hn::ConvertTo(DF(), lx), fy - hn::ConvertTo(DF(), ly),
                                          fz - hn::ConvertTo(DF(), lz), gradient);
    hn::Store(value, DF(), out->value + x);
    for (int a = 0; a < 3; ++a) hn::Store(gradient[a], DF(), out->gradient[a] + x);
  }

  // Any vector of voxels; lanes that map outside get something finite from within the image.
  template <bool kPlanar>
  HWY_INLINE void SampleClamped(const Line& line, int x, WarpedRow* out) const {
    VF weight[3];
    VI lower[3];
    MF interior[3];
    for (int a = 0; a < 3; ++a) {
      const VF index = CellIndex(line, a, Ramp(x));
      const VF clamped = hn::Min(hn::Max(index, Zeros()), Splat(size_[a] - 1.0f));
      lower[a] = hn::Min(hn::ConvertTo(DI(), clamped), hn::Set(DI(), std::max(size_[a] - 2, 0)));
      weight[a] = clamped - hn::ConvertTo(DF(), lower[a]);
      interior[a] = hn::Eq(clamped, index);
    }
    Corners corners;
    Gather<kPlanar>(lower[0], lower[1], lower[2], &corners);
    VF gradient[3];
    hn::Store(Interpolate<kPlanar>(corners, weight[0], weight[1], weight[2], gradient), DF(), out->value + x);
    for (int a = 0; a < 3; ++a) hn::Store(hn::IfThenElseZero(interior[a], gradient[a]), DF(), out->gradient[a] + x);
  }

  template <bool kPlanar>
  static HWY_INLINE VF Interpolate(const Corners& c, VF wx, VF wy, VF wz, VF gradient[3]) {
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

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  using DPair = hn::Repartition<int64_t, DF>;
  using VPair = hn::Vec<DPair>;

  // Two neighbours make one 64-bit load.
  template <bool kPlanar>
  HWY_INLINE void Gather(VI lx, VI ly, VI lz, Corners* c) const {
    const VI offset = hn::Add(lx, hn::Add(hn::Mul(ly, hn::Set(DI(), static_cast<int32_t>(row_))),
                                          hn::Mul(lz, hn::Set(DI(), static_cast<int32_t>(plane_)))));
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

  template <bool kPlanar>
  HWY_INLINE void LookUpRun(const float* p, VI low, VI high, Corners* c) const {
    for (int z = 0; z < (kPlanar ? 1 : 2); ++z) {
      for (int y = 0; y < 2; ++y) {
        const float* row = p + z * plane_ + y * row_;
        const VF first = hn::LoadU(DF(), row), second = hn::LoadU(DF(), row + kLanes);
        c->low[z][y] = LookUpLanes(first, second, low);
        c->high[z][y] = LookUpLanes(first, second, high);
      }
    }
  }

  // Takes the lanes run by run, a run being the lanes in one cell row; false near the end of the image's memory.
  template <bool kPlanar>
  HWY_INLINE bool LookUp(const Line& line, int x, VI lx, VI ly, VI lz, Corners* c) const {
    const int first_x = static_cast<int>(IndexAt(line, 0, step_[0] >= 0 ? x : x + kLanes - 1));
    const int64_t reach = voxels_ - plane_ - row_ - first_x - 2 * kLanes;
    const VI low = hn::Sub(lx, hn::Set(DI(), first_x)), high = hn::Add(low, hn::Set(DI(), 1));
    const VI key = hn::Or(ly, hn::ShiftLeft<16>(lz));
    HWY_ALIGN int32_t keys[kLanes];
    hn::Store(key, DI(), keys);
    int64_t offset = (keys[0] >> 16) * plane_ + (keys[0] & 0xffff) * row_;
    if (HWY_UNLIKELY(offset > reach)) return false;
    LookUpRun<kPlanar>(data_ + offset + first_x, low, high, c);
    auto rest = hn::Ne(key, hn::Set(DI(), keys[0]));
    for (intptr_t lane = hn::FindFirstTrue(DI(), rest); lane >= 0; lane = hn::FindFirstTrue(DI(), rest)) {
      offset = (keys[lane] >> 16) * plane_ + (keys[lane] & 0xffff) * row_;
      if (HWY_UNLIKELY(offset > reach)) return false;
      Corners run;
      LookUpRun<kPlanar>(data_ + offset + first_x, low, high, &run);
      // Later lanes are overwritten by later runs.
      const MF later = hn::RebindMask(DF(), rest);
      for (int z = 0; z < (kPlanar ? 1 : 2); ++z) {
        for (int y = 0; y < 2; ++y) {
          c->low[z][y] = hn::IfThenElse(later, run.low[z][y], c->low[z][y]);
          c->high[z][y] = hn::IfThenElse(later, run.high[z][y], c->high[z][y]);
        }
      }
      rest = hn::And(rest, hn::Ne(key, hn::Set(DI(), keys[lane])));
    }
    return true;
  }
#else
  template <bool kPlanar>
  HWY_INLINE void Gather(VI lx, VI ly, VI lz, Corners* c) const {
    const VI offset = hn::Add(lx, hn::Add(hn::Mul(ly, hn::Set(DI(), static_cast<int32_t>(row_))),
                                          hn::Mul(lz, hn::Set(DI(), static_cast<int32_t>(plane_)))));
    for (int z = 0; z < (kPlanar ? 1 : 2); ++z) {
      for (int y = 0; y < 2; ++y) {
        const float* base = data_ + z * plane_ + y * row_;
        c->low[z][y] = hn::GatherIndex(DF(), base, offset);
        c->high[z][y] = hn::GatherIndex(DF(), base + 1, offset);
      }
    }
  }

  template <bool kPlanar>
  HWY_INLINE bool LookUp(const Line&, int, VI, VI, VI, Corners*) const {
    return false;
  }
#endif

  const AffinePlan& plan_;
  const float* data_;
  const uint8_t* mask_;
  Int3 size_;
  int64_t voxels_;
  // From a voxel to its neighbours along y and z; 0 along an axis of one voxel.
  int64_t row_, plane_;
  // Sampled voxel by voxel: what the vectors have no index for.
  bool plain_;
  bool lookup_;
  float step_[3], cell_step_[3];
  float inside_low_[3], inside_high_[3], interior_low_[3], interior_high_[3];
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_
