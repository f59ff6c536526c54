// SPDX-License-Identifier: Apache-2.0
// The moving image along a row of the fixed grid, for the vector target that includes this (Highway's foreach_target):
// value and exact trilinear derivative at base + x * step, as engine/image/sample.h defines them.
//
// Along a row the index into the moving image is an affine function of x, so the voxels that map inside are one range,
// as are those that need no clamping. Corners are fetched by lookups in consecutive voxels where the row stays in few
// rows of the moving image (small rotations), and otherwise gathered, two neighbours along x at a time.
#if defined(INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_
#undef INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/image/sample.h"
#include "engine/metric/affine_plan.h"
#include "engine/metric/trilinear-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// A warped row in scratch memory: pointers to x = 0, aligned; a vector before and one after the row may be read.
struct WarpedRow {
  float* value;
  float* gradient[3];
  // The weights of the moving mask: 1 where a binary one is set, 0 where a mask is 0; null without a moving mask.
  float* in_mask;
  // The voxels that map inside; nothing is known of the others.
  Range inside;
};

// Floats of scratch for one row of n voxels.
inline size_t WarpedRowFloats(int n) { return size_t{5} * ((n + kLanes - 1) / kLanes * kLanes + 2 * kLanes); }

inline WarpedRow MakeWarpedRow(float* scratch, int n, bool with_mask) {
  const size_t stride = WarpedRowFloats(n) / 5;
  float* first = scratch + kLanes;
  return {
      first, {first + stride, first + 2 * stride, first + 3 * stride}, with_mask ? first + 4 * stride : nullptr, {}};
}

// MaskWeight of bytes, in lanes.
HWY_INLINE VF MaskWeights(VF bytes, float weight_per_unit) {
  return hn::Min(bytes * Splat(weight_per_unit), Splat(1.0f));
}

class RowSampler {
 public:
  explicit RowSampler(const AffinePlan& plan)
      : plan_(plan),
        corners_(plan.objective.moving),
        mask_(plan.objective.moving_mask.data),
        weight_per_unit_(plan.objective.moving_mask.weight_per_unit),
        size_(plan.objective.moving.geometry.size),
        plain_(size_.x == 1 || corners_.voxels() > std::numeric_limits<int32_t>::max()) {
    for (int a = 0; a < 3; ++a) {
      step_[a] = static_cast<float>(Snap(plan.to_moving.m[a][0], kStepScale));
      inverse_step_[a] = 1.0 / step_[a];
      // An axis of one voxel has index 0 wherever it is inside.
      cell_step_[a] = size_[a] > 1 ? step_[a] : 0;
      inside_.low[a] = -0.5f;
      inside_.high[a] = size_[a] - 0.5f;
      interior_.low[a] = size_[a] > 1 ? 0.0f : -0.5f;
      interior_.high[a] = size_[a] > 1 ? std::nextafter(size_[a] - 1.0f, 0.0f) : 0.5f;
    }
    const float across = std::abs(cell_step_[1]) + std::abs(cell_step_[2]);
    lookup_ =
        CornerReader::kHasLookup && std::abs(step_[0]) * (kLanes - 1) < 2 * kLanes - 3 && across * kLanes < kMaxRuns;
  }

  // Samples row (y, z) of the fixed grid into *out.
  void Sample(int y, int z, WarpedRow* out) const {
    Line line;
    for (int a = 0; a < 3; ++a) {
      const double start = plan_.to_moving.m[a][1] * y + plan_.to_moving.m[a][2] * z + plan_.to_moving.m[a][3];
      line.base[a] = static_cast<float>(Snap(start, kBaseScale));
    }
    out->inside = Clip(line, inside_, {0, plan_.size.x});
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
  // Rows of the moving image that a vector may cross before gathering is faster.
  static constexpr float kMaxRuns = 0.4f;
  // Indices are rounded to these fractions of a voxel, so that a map that is the identity but for rounding lands on
  // voxel centres and not just outside the outermost of them.
  static constexpr double kBaseScale = 1 << 20;
  static constexpr double kStepScale = int64_t{1} << 34;
  static double Snap(double v, double scale) { return std::nearbyint(v * scale) / scale; }

  // Three axes and one that is always 0, so that they make a vector.
  using DAxes = hn::CappedTag<float, 4>;
  struct Line {
    HWY_ALIGN float base[4] = {};
  };
  struct Bounds {
    HWY_ALIGN float low[4] = {};
    HWY_ALIGN float high[4] = {};
  };

  // The index of voxel x along one axis, exactly as the lanes compute it.
  HWY_INLINE float IndexAt(const Line& line, int axis, int x) const {
    const hn::CappedTag<float, 1> d;
    return hn::GetLane(
        hn::MulAdd(hn::Set(d, static_cast<float>(x)), hn::Set(d, step_[axis]), hn::Set(d, line.base[axis])));
  }

  HWY_INLINE bool Within(const Line& line, int x, const Bounds& bounds) const {
    if (hn::MaxLanes(DAxes()) < 3) {
      for (int a = 0; a < 3; ++a) {
        const float index = IndexAt(line, a, x);
        if (!(index >= bounds.low[a] && index <= bounds.high[a])) return false;
      }
      return true;
    }
    const DAxes d;
    const auto index = hn::MulAdd(hn::Set(d, static_cast<float>(x)), hn::Load(d, step_), hn::Load(d, line.base));
    return hn::AllTrue(d, hn::And(hn::Ge(index, hn::Load(d, bounds.low)), hn::Le(index, hn::Load(d, bounds.high))));
  }

  // The voxels of `from`, which is not empty, whose index is within the bounds. The index is monotone in x along each
  // axis, rounding included, so they are one range; its ends are solved for, and then moved to where rounding puts
  // them.
  Range Clip(const Line& line, const Bounds& bounds, Range from) const {
    if (Within(line, from.begin, bounds) && Within(line, from.end - 1, bounds)) return from;
    double first = from.begin, last = from.end - 1;
    for (int a = 0; a < 3; ++a) {
      if (!std::isfinite(line.base[a]) || !std::isfinite(step_[a])) return {};
      if (step_[a] == 0) continue;
      const double t0 = (double{bounds.low[a]} - line.base[a]) * inverse_step_[a];
      const double t1 = (double{bounds.high[a]} - line.base[a]) * inverse_step_[a];
      first = std::max(first, std::min(t0, t1));
      last = std::min(last, std::max(t0, t1));
    }
    constexpr double kMargin = 0.01;
    if (!(first - kMargin <= last + kMargin)) return {};
    Range range{std::max(from.begin, static_cast<int>(first - kMargin)),
                std::min(from.end, static_cast<int>(last + kMargin) + 1)};
    while (!range.empty() && !Within(line, range.begin, bounds)) ++range.begin;
    while (!range.empty() && !Within(line, range.end - 1, bounds)) --range.end;
    if (range.empty()) return {};
    while (range.begin > from.begin && Within(line, range.begin - 1, bounds)) --range.begin;
    while (range.end < from.end && Within(line, range.end, bounds)) ++range.end;
    return range;
  }

  void SamplePlain(const Line& line, WarpedRow* out) const {
    for (int x = out->inside.begin; x < out->inside.end; ++x) {
      Vec3f gradient;
      out->value[x] = SampleLinearGradient(corners_.data(), size_,
                                           {IndexAt(line, 0, x), IndexAt(line, 1, x), IndexAt(line, 2, x)}, &gradient);
      for (int a = 0; a < 3; ++a) out->gradient[a][x] = gradient[a];
    }
  }

  void SampleMask(const Line& line, WarpedRow* out) const {
    if (plain_) return SampleMaskPlain(line, out);
    for (int x = out->inside.begin / kLanes * kLanes; x < out->inside.end; x += kLanes) {
      VI nearest[3];
      for (int a = 0; a < 3; ++a) {
        const VF index = CellIndex(line, a, Ramp(x)) + Splat(0.5f);
        nearest[a] = Truncate(hn::Min(hn::Max(index, Zeros()), Splat(size_[a] - 1.0f)));
      }
      HWY_ALIGN int32_t offsets[kLanes];
      HWY_ALIGN float bytes[kLanes];
      hn::Store(corners_.Offset(nearest[0], nearest[1], nearest[2]), DI(), offsets);
      for (int i = 0; i < kLanes; ++i) bytes[i] = mask_[offsets[i]];
      hn::Store(MaskWeights(hn::Load(DF(), bytes), weight_per_unit_), DF(), out->in_mask + x);
    }
  }

  void SampleMaskPlain(const Line& line, WarpedRow* out) const {
    for (int x = out->inside.begin; x < out->inside.end; ++x) {
      const size_t nearest = NearestOffset(size_, {IndexAt(line, 0, x), IndexAt(line, 1, x), IndexAt(line, 2, x)});
      out->in_mask[x] = MaskWeight(mask_[nearest], weight_per_unit_);
    }
  }

  template <bool kPlanar>
  HWY_INLINE void SampleBlocks(const Line& line, WarpedRow* out) const {
    const Range interior = Clip(line, interior_, out->inside);
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
    const VI lx = Truncate(fx), ly = Truncate(fy), lz = Truncate(fz);
    Corners corners;
    Fetch<kPlanar>(line, x, lx, ly, lz, &corners);
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
      lower[a] = hn::Min(Truncate(clamped), hn::Set(DI(), std::max(size_[a] - 2, 0)));
      weight[a] = clamped - hn::ConvertTo(DF(), lower[a]);
      interior[a] = hn::Eq(clamped, index);
    }
    Corners corners;
    Fetch<kPlanar>(line, x, lower[0], lower[1], lower[2], &corners);
    VF gradient[3];
    hn::Store(Interpolate<kPlanar>(corners, weight[0], weight[1], weight[2], gradient), DF(), out->value + x);
    for (int a = 0; a < 3; ++a) hn::Store(hn::IfThenElseZero(interior[a], gradient[a]), DF(), out->gradient[a] + x);
  }

  template <bool kPlanar>
  HWY_INLINE void Fetch(const Line& line, int x, VI lx, VI ly, VI lz, Corners* c) const {
    if constexpr (CornerReader::kHasLookup) {
      if (lookup_ && LookUp<kPlanar>(line, x, lx, ly, lz, c)) return;
    }
    const VI offset = corners_.Offset(lx, ly, lz);
    corners_.PrefetchNextRow(hn::GetLane(offset));
    corners_.Gather<kPlanar>(offset, c);
  }

  // Takes the lanes run by run, a run being the lanes in one cell row; false near the end of the image's memory.
  template <bool kPlanar>
  HWY_INLINE bool LookUp(const Line& line, int x, VI lx, VI ly, VI lz, Corners* c) const {
    const int64_t row = corners_.row(), plane = corners_.plane();
    const float first = IndexAt(line, 0, step_[0] >= 0 ? x : x + kLanes - 1);
    const int first_x = static_cast<int>(std::min(std::max(first, 0.0f), size_.x - 2.0f));
    const int64_t reach = corners_.voxels() - plane - row - first_x - 2 * kLanes;
    const VI low = hn::Sub(lx, hn::Set(DI(), first_x)), high = hn::Add(low, hn::Set(DI(), 1));
    const VI key = hn::Or(ly, hn::ShiftLeft<16>(lz));
    HWY_ALIGN int32_t keys[kLanes];
    hn::Store(key, DI(), keys);
    int64_t offset = (keys[0] >> 16) * plane + (keys[0] & 0xffff) * row;
    if (HWY_UNLIKELY(offset > reach)) return false;
    corners_.PrefetchNextRow(offset + first_x);
    corners_.LookUp<kPlanar>(corners_.data() + offset + first_x, low, high, c);
    auto rest = hn::Ne(key, hn::Set(DI(), keys[0]));
    for (intptr_t lane = hn::FindFirstTrue(DI(), rest); lane >= 0; lane = hn::FindFirstTrue(DI(), rest)) {
      offset = (keys[lane] >> 16) * plane + (keys[lane] & 0xffff) * row;
      if (HWY_UNLIKELY(offset > reach)) return false;
      Corners run;
      corners_.LookUp<kPlanar>(corners_.data() + offset + first_x, low, high, &run);
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

  const AffinePlan& plan_;
  const CornerReader corners_;
  const uint8_t* mask_;
  float weight_per_unit_;
  Int3 size_;
  // Sampled voxel by voxel: what the vectors have no index for.
  bool plain_;
  bool lookup_;
  HWY_ALIGN float step_[4] = {};
  double inverse_step_[3];
  float cell_step_[3];
  Bounds inside_, interior_;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_ROW_SAMPLER_INL_H_
