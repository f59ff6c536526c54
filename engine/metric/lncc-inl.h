// SPDX-License-Identifier: Apache-2.0
// The passes of LNCC over stored images on the CPU (lncc.h), for the vector target that includes this. The formulas
// stand in lncc_kernels.h.
//
// A task marches through a column of boxes in z, a run of planes at a time. For each plane, the sums of a few rows of
// boxes lie in a ring; four rows at a time are summed along y out of that ring, and then along x into a ring of planes,
// out of which a run is summed along z.
#if defined(INTRAWARP_ENGINE_METRIC_LNCC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_LNCC_INL_H_
#undef INTRAWARP_ENGINE_METRIC_LNCC_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_LNCC_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/base/simd-inl.h"
#include "engine/metric/lncc_plan.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// out[o][x] = sum over i < inputs of weight(i, o) value(i, o, x), vectors of lanes, for four rows o and x in [0,
// count), a multiple of kLanes. The sums stay in registers: named, because arrays of vectors end up on the stack.
template <typename Weight, typename Value>
HWY_INLINE void SumFourRows(int inputs, int count, const Weight& weight, const Value& value, float* const* out) {
  const DF d;
  int x = 0;
  for (; x + 2 * kLanes <= count; x += 2 * kLanes) {
    VF a0 = Zeros(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, e0 = a0, e1 = a0;
    for (int i = 0; i < inputs; ++i) {
      const VF w0 = weight(i, 0), w1 = weight(i, 1), w2 = weight(i, 2), w3 = weight(i, 3);
      a0 = hn::MulAdd(w0, value(i, 0, x), a0);
      a1 = hn::MulAdd(w0, value(i, 0, x + kLanes), a1);
      b0 = hn::MulAdd(w1, value(i, 1, x), b0);
      b1 = hn::MulAdd(w1, value(i, 1, x + kLanes), b1);
      c0 = hn::MulAdd(w2, value(i, 2, x), c0);
      c1 = hn::MulAdd(w2, value(i, 2, x + kLanes), c1);
      e0 = hn::MulAdd(w3, value(i, 3, x), e0);
      e1 = hn::MulAdd(w3, value(i, 3, x + kLanes), e1);
    }
    hn::StoreU(a0, d, out[0] + x);
    hn::StoreU(a1, d, out[0] + x + kLanes);
    hn::StoreU(b0, d, out[1] + x);
    hn::StoreU(b1, d, out[1] + x + kLanes);
    hn::StoreU(c0, d, out[2] + x);
    hn::StoreU(c1, d, out[2] + x + kLanes);
    hn::StoreU(e0, d, out[3] + x);
    hn::StoreU(e1, d, out[3] + x + kLanes);
  }
  for (; x < count; x += kLanes) {
    VF a = Zeros(), b = a, c = a, e = a;
    for (int i = 0; i < inputs; ++i) {
      a = hn::MulAdd(weight(i, 0), value(i, 0, x), a);
      b = hn::MulAdd(weight(i, 1), value(i, 1, x), b);
      c = hn::MulAdd(weight(i, 2), value(i, 2, x), c);
      e = hn::MulAdd(weight(i, 3), value(i, 3, x), e);
    }
    hn::StoreU(a, d, out[0] + x);
    hn::StoreU(b, d, out[1] + x);
    hn::StoreU(c, d, out[2] + x);
    hn::StoreU(e, d, out[3] + x);
  }
}

// out[o][x] = sum over i of weight(i - o) rows[i][x], for o in [0, 4), i in [0, 2 radius + 4) and x in [0, count), a
// multiple of kLanes.
HWY_INLINE void SumAcross(const float* const* rows, const LnccTaps& taps, int count, float* const* out) {
  static_assert(kLnccRows == 4);
  const float* const padded = taps.padded;
  SumFourRows(
      2 * taps.radius + kLnccRows, count,
      [padded](int i, int o) HWY_ATTR { return Splat(padded[i + kLnccRows - 1 - o]); },
      [rows](int i, int, int x) HWY_ATTR { return hn::LoadU(DF(), rows[i] + x); }, out);
}

// out[o][x] = sum over k in [0, 2 radius] of weight(k) in[o][x + k], for four rows; `count` is a multiple of kLanes.
HWY_INLINE void SumAlong(float* const* in, const LnccTaps& taps, int count, float* const* out) {
  const float* const padded = taps.padded;
  const float *in0 = in[0], *in1 = in[1], *in2 = in[2], *in3 = in[3];
  SumFourRows(
      2 * taps.radius + 1, count, [padded](int k, int) HWY_ATTR { return Splat(padded[kLnccRows - 1 + k]); },
      [in0, in1, in2, in3](int k, int o, int x) HWY_ATTR {
        return hn::LoadU(DF(), (o == 0 ? in0 : o == 1 ? in1 : o == 2 ? in2 : in3) + x + k);
      },
      out);
}

// Copies the row's voxels from `begin` on into `count` floats, `fill` where the row (n voxels) has none.
HWY_INLINE void CopyRow(const float* row, int n, int begin, int count, float fill, float* out) {
  const int low = std::clamp(-begin, 0, count), high = std::clamp(n - begin, low, count);
  std::fill(out, out + low, fill);
  if (high > low) std::memcpy(out + low, row + begin + low, (high - low) * sizeof(float));
  std::fill(out + high, out + count, fill);
}

// Hands out the floats of a task's scratch memory.
class FloatStack {
 public:
  explicit FloatStack(float* begin) : next_(begin) {}
  float* Take(size_t count) {
    float* p = next_;
    next_ += (count + kLanes - 1) / kLanes * kLanes;
    return p;
  }

 private:
  float* next_;
};

// The sums over x and y of kChannels images over plane z of a column. load(y, padded, rows) writes `padded` voxels from
// x = x0 - radius on of each channel's row y. Row y0 + i of channel c goes to out + (c kRows + i) width.
template <int kChannels, int kRows, typename Load>
HWY_INLINE void SumPlane(const LnccPlan& plan, const LnccColumn& column, FloatStack scratch, const Load& load,
                         float* out) {
  const int r = plan.taps.radius, depth = 2 * r + kLnccRows, width = RoundUp(column.x1 - column.x0);
  const int padded = RoundUp(width + 2 * r);
  float* ring = scratch.Take(size_t{kChannels} * depth * padded);
  float *across[kLnccRows], *unused = scratch.Take(width);
  for (float*& row : across) row = scratch.Take(padded);
  const int first = column.y0 - r;
  const auto slot = [&](int c, int y) { return ring + size_t{1} * (c * depth + (y - first) % depth) * padded; };
  int loaded = first;
  for (int y = column.y0; y < column.y1; y += kLnccRows) {
    for (; loaded < y + r + kLnccRows; ++loaded) {
      float* rows[kChannels];
      for (int c = 0; c < kChannels; ++c) rows[c] = slot(c, loaded);
      if (loaded >= 0 && loaded < plan.size().y) {
        load(loaded, padded, rows);
      } else {
        for (float* row : rows) std::fill(row, row + padded, 0.0f);
      }
    }
    for (int c = 0; c < kChannels; ++c) {
      const float* rows[2 * kMaxLnccRadius + kLnccRows];
      for (int i = 0; i < depth; ++i) rows[i] = slot(c, y - r + i);
      SumAcross(rows, plan.taps, padded, across);
      float* along[kLnccRows];
      for (int o = 0; o < kLnccRows; ++o) {
        along[o] = y + o < column.y1 ? out + size_t{1} * (c * kRows + y + o - column.y0) * width : unused;
      }
      SumAlong(across, plan.taps, width, along);
    }
  }
}

constexpr int kMaxDepth = LnccPlan::kRun + 2 * kMaxLnccRadius;

// The sums over x and y of the planes that a run of LnccPlan::kRun planes needs, in a ring. Moves through a column from
// run to run.
template <int kChannels, int kRows>
class PlaneRing {
 public:
  PlaneRing(const LnccPlan& plan, const LnccColumn& column, FloatStack* scratch)
      : plan_(plan),
        radius_(plan.taps.radius),
        depth_(LnccPlan::kRun + 2 * radius_),
        width_(RoundUp(column.x1 - column.x0)),
        first_(column.z0 - radius_),
        next_(first_),
        planes_(scratch->Take(size_t{1} * depth_ * PlaneFloats())),
        zeros_(scratch->Take(width_)) {
    std::fill(zeros_, zeros_ + width_, 0.0f);
  }

  // make(z, out) makes a plane of the image.
  template <typename Make>
  HWY_INLINE void MoveTo(int z0, const Make& make) {
    for (; next_ < z0 + LnccPlan::kRun + radius_; ++next_) {
      if (InImage(next_)) make(next_, Plane(next_));
    }
  }

  bool InImage(int z) const { return z >= 0 && z < plan_.size().z; }
  float* Plane(int z) const { return planes_ + (z - first_) % depth_ * PlaneFloats(); }
  float* Row(int channel, int row, int z) const { return Plane(z) + size_t{1} * (channel * kRows + row) * width_; }
  size_t PlaneFloats() const { return size_t{1} * kChannels * kRows * width_; }

  int depth() const { return depth_; }
  // A channel's row of the depth() planes from z0 - radius on.
  HWY_INLINE void Rows(int channel, int row, int z0, const float** rows) const {
    for (int i = 0; i < depth_; ++i) {
      const int z = z0 - radius_ + i;
      rows[i] = InImage(z) ? Row(channel, row, z) : zeros_;
    }
  }
  // The sums over z of such rows, for `planes` planes from z0 on; to rows of `width` floats.
  HWY_INLINE void SumRun(const float* const* rows, int planes, float* out) const {
    for (int z = 0; z < planes; z += kLnccRows) {
      float* outs[kLnccRows];
      for (int o = 0; o < kLnccRows; ++o) outs[o] = out + size_t{1} * (z + o) * width_;
      SumAcross(rows + z, plan_.taps, width_, outs);
    }
  }

 private:
  const LnccPlan& plan_;
  const int radius_, depth_, width_, first_;
  int next_;
  float* const planes_;
  float* const zeros_;
};

using ImageRing = PlaneRing<kLnccChannels, LnccPlan::kTileY>;

// A row of the six sums, with constants added to the images that they are of: f by df, m by dm.
HWY_INLINE void ChangeShift(const float* const* from, float df, float dm, int count, float* const* to) {
  const DF d;
  const VF vf = Splat(df), vm = Splat(dm);
  for (int x = 0; x < count; x += kLanes) {
    const VF w = hn::LoadU(d, from[0] + x), f = hn::LoadU(d, from[1] + x), m = hn::LoadU(d, from[2] + x);
    const VF new_f = hn::MulAdd(vf, w, f), new_m = hn::MulAdd(vm, w, m);
    hn::StoreU(w, d, to[0] + x);
    hn::StoreU(new_f, d, to[1] + x);
    hn::StoreU(new_m, d, to[2] + x);
    hn::StoreU(hn::MulAdd(vf, hn::Add(f, new_f), hn::LoadU(d, from[3] + x)), d, to[3] + x);
    hn::StoreU(hn::MulAdd(vm, hn::Add(m, new_m), hn::LoadU(d, from[4] + x)), d, to[4] + x);
    hn::StoreU(hn::MulAdd(vf, m, hn::MulAdd(vm, new_f, hn::LoadU(d, from[5] + x))), d, to[5] + x);
  }
}

// The sums over z of the run at z0, relative to the run's shift. `changed` holds kLnccChannels depth() rows.
HWY_INLINE void SumRunOfImages(const LnccPlan& plan, const LnccColumn& column, const ImageRing& ring, int row, int z0,
                               int planes, int count, float* changed, float* sums) {
  const float* rows[kLnccChannels][kMaxDepth];
  for (int c = 0; c < kLnccChannels; ++c) ring.Rows(c, row, z0, rows[c]);
  const float* shift = plan.Shift(column, z0);
  for (int i = 0; i < ring.depth(); ++i) {
    const int z = z0 - plan.taps.radius + i;
    if (!ring.InImage(z) || plan.Shift(column, z) == shift) continue;
    const float *own = plan.Shift(column, z), *from[kLnccChannels];
    float* to[kLnccChannels];
    for (int c = 0; c < kLnccChannels; ++c) {
      from[c] = rows[c][i];
      rows[c][i] = to[c] = changed + size_t{1} * (c * ring.depth() + i) * count;
    }
    ChangeShift(from, own[0] - shift[0], own[1] - shift[1], count, to);
  }
  for (int c = 0; c < kLnccChannels; ++c) {
    ring.SumRun(rows[c], planes, sums + size_t{1} * c * LnccPlan::kRun * count);
  }
}

// The voxels of both images in the four rows of a row of boxes, `count` a row, a multiple of 2 kLanes. kWeighted: and
// their weights.
template <bool kWeighted>
struct VoxelRows {
  VoxelRows(FloatStack* scratch, int count) {
    for (int r = 0; r < 4; ++r) {
      fixed[r] = scratch->Take(count);
      warped[r] = scratch->Take(count);
      if (kWeighted) weights[r] = scratch->Take(count);
    }
  }
  // From the voxel `begin` on; `warped` is NaN where there is none.
  HWY_INLINE void Load(const LnccPlan& plan, int y, int z, int begin, int count) {
    const Int3 n = plan.task.size;
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    for (int r = 0; r < 4; ++r) {
      const int vy = 2 * y + r % 2, vz = 2 * z + r / 2;
      const bool is_there = vy < n.y && vz < n.z;
      const int64_t row = is_there ? plan.VoxelRow(vy, vz) : 0;
      CopyRow(plan.task.fixed + row, is_there ? n.x : 0, begin, count, 0.0f, fixed[r]);
      CopyRow(plan.task.warped + row, is_there ? n.x : 0, begin, count, kNone, warped[r]);
      if (kWeighted) CopyRow(plan.task.weights + row, is_there ? n.x : 0, begin, count, 0.0f, weights[r]);
    }
  }

  float *fixed[4], *warped[4], *weights[4];
};

// The six sums over four rows of voxels, kLanes columns from `x` on.
template <bool kWeighted>
HWY_INLINE void SumFourVoxelRows(const VoxelRows<kWeighted>& rows, int x, VF fixed_shift, VF moving_shift, VF* sums) {
  const DF d;
  VF w = Zeros(), f = w, m = w, ff = w, mm = w, fm = w;
  for (int r = 0; r < 4; ++r) {
    const VF raw = hn::LoadU(d, rows.warped[r] + x);
    const MF valid = hn::Eq(raw, raw);
    const VF a = hn::IfThenElseZero(valid, hn::Sub(hn::LoadU(d, rows.fixed[r] + x), fixed_shift));
    const VF b = hn::IfThenElseZero(valid, hn::Sub(raw, moving_shift));
    if constexpr (kWeighted) {
      const VF weight = hn::IfThenElseZero(valid, hn::LoadU(d, rows.weights[r] + x));
      const VF wa = hn::Mul(weight, a), wb = hn::Mul(weight, b);
      w = hn::Add(w, weight);
      f = hn::Add(f, wa);
      m = hn::Add(m, wb);
      ff = hn::MulAdd(wa, a, ff);
      mm = hn::MulAdd(wb, b, mm);
      fm = hn::MulAdd(wa, b, fm);
    } else {
      w = hn::Add(w, hn::IfThenElseZero(valid, Splat(1.0f)));
      f = hn::Add(f, a);
      m = hn::Add(m, b);
      ff = hn::MulAdd(a, a, ff);
      mm = hn::MulAdd(b, b, mm);
      fm = hn::MulAdd(a, b, fm);
    }
  }
  sums[0] = w, sums[1] = f, sums[2] = m, sums[3] = ff, sums[4] = mm, sums[5] = fm;
}

// The sums of both voxels of each box, from 2 kLanes columns.
HWY_INLINE VF AddPairs(VF low, VF high) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Add(low, high);
#else
  const DF d;
  return hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
#endif
}

// A plane of the six sums, of intensities relative to the shift of its tile.
template <bool kWeighted>
HWY_INLINE void SumImages(const LnccPlan& plan, const LnccColumn& column, int z, FloatStack scratch, float* out) {
  const DF d;
  const float* shift = plan.Shift(column, z);
  const VF fixed_shift = Splat(shift[0]), moving_shift = Splat(shift[1]);
  const int begin = column.x0 - plan.taps.radius;
  VoxelRows<kWeighted> voxels(&scratch, 2 * RoundUp(RoundUp(column.x1 - column.x0) + 2 * plan.taps.radius));
  const auto load = [&](int y, int padded, float* const* rows) HWY_ATTR {
    voxels.Load(plan, y, z, 2 * begin, 2 * padded);
    for (int x = 0; x < padded; x += kLanes) {
      VF low[kLnccChannels], high[kLnccChannels];
      SumFourVoxelRows(voxels, 2 * x, fixed_shift, moving_shift, low);
      SumFourVoxelRows(voxels, 2 * x + kLanes, fixed_shift, moving_shift, high);
      for (int c = 0; c < kLnccChannels; ++c) hn::StoreU(AddPairs(low[c], high[c]), d, rows[c] + x);
    }
    if (y < column.y0 || y >= column.y1 || z < column.z0 || z >= column.z1) return;
    std::memcpy(plan.counts + plan.Row(y, z) + column.x0, rows[0] + plan.taps.radius,
                (column.x1 - column.x0) * sizeof(float));
  };
  SumPlane<kLnccChannels, LnccPlan::kTileY>(plan, column, scratch, load, out);
}

// A, B and C of a row from its sums (channels `stride` apart) and the weights of its boxes, into results[0..2]; adds to
// *value and *total.
HWY_INLINE void MakeCoefficients(const LnccPlan& plan, const float* shift, const float* sums, int64_t stride,
                                 const float* counts, int count, float* const* results, VF* value, VF* total) {
  const DF d;
  const VF fixed_floor = Splat(static_cast<float>(plan.task.fixed_floor));
  const VF moving_floor = Splat(static_cast<float>(plan.task.moving_floor));
  const VF resolution = Splat(kLnccResolution), one = Splat(1.0f);
  const VF fixed_offset = Splat(shift[0] - plan.fixed_mean), moving_offset = Splat(shift[1] - plan.moving_mean);
  for (int x = 0; x < count; x += kLanes) {
    const float* s = sums + x;
    const VF weight = hn::LoadU(d, counts + x);
    const MF valid = hn::Gt(weight, Zeros());
    const VF inverse = hn::Div(one, hn::LoadU(d, s));
    const VF f = hn::Mul(inverse, hn::LoadU(d, s + stride)), m = hn::Mul(inverse, hn::LoadU(d, s + 2 * stride));
    const VF squares_f = hn::Mul(inverse, hn::LoadU(d, s + 3 * stride));
    const VF squares_m = hn::Mul(inverse, hn::LoadU(d, s + 4 * stride));
    const VF ff = hn::NegMulAdd(f, f, squares_f), mm = hn::NegMulAdd(m, m, squares_m);
    const VF fm = hn::NegMulAdd(f, m, hn::Mul(inverse, hn::LoadU(d, s + 5 * stride)));
    const MF is_structured = hn::And(valid, hn::And(hn::Gt(ff, hn::Max(fixed_floor, hn::Mul(resolution, squares_f))),
                                                    hn::Gt(mm, hn::Max(moving_floor, hn::Mul(resolution, squares_m)))));
    const VF by_f = hn::Div(fm, ff), inverse_m = hn::Div(one, mm), by_m = hn::Mul(fm, inverse_m);
    *value = hn::Add(*value, hn::IfThenElseZero(is_structured, hn::Mul(weight, hn::Mul(by_f, by_m))));
    *total = hn::Add(*total, weight);
    const VF twice = hn::Mul(hn::Add(weight, weight), by_f);
    const VF a = hn::IfThenElseZero(is_structured, hn::Mul(hn::Mul(twice, inverse_m), inverse));
    const VF b = hn::IfThenElseZero(is_structured, hn::Neg(hn::Mul(a, by_m)));
    const VF c = hn::NegMulAdd(a, hn::Add(f, fixed_offset), hn::Neg(hn::Mul(b, hn::Add(m, moving_offset))));
    hn::StoreU(a, d, results[0] + x);
    hn::StoreU(b, d, results[1] + x);
    hn::StoreU(hn::IfThenElseZero(is_structured, c), d, results[2] + x);
  }
}

// A, B and C of a column, and its part of the value.
template <bool kWeighted>
void SumColumn(const LnccPlan& plan, int64_t index, float* scratch_floats, LnccSums* total) {
  constexpr int kRun = LnccPlan::kRun;
  const LnccColumn column = plan.Column(index, LnccPlan::kTileY);
  const int width = column.x1 - column.x0, count = RoundUp(width);
  FloatStack scratch(scratch_floats);
  ImageRing ring(plan, column, &scratch);
  float* sums = scratch.Take(size_t{kLnccChannels} * kRun * count);
  float* changed = scratch.Take(size_t{1} * kLnccChannels * ring.depth() * count);
  float *counts = scratch.Take(count), *results[3];
  for (float*& row : results) row = scratch.Take(count);
  for (int z0 = column.z0; z0 < column.z1; z0 += kRun) {
    ring.MoveTo(z0, [&](int z, float* out) HWY_ATTR { SumImages<kWeighted>(plan, column, z, scratch, out); });
    const int planes = std::min(kRun, column.z1 - z0);
    const float* shift = plan.Shift(column, z0);
    for (int y = column.y0; y < column.y1; ++y) {
      SumRunOfImages(plan, column, ring, y - column.y0, z0, planes, count, changed, sums);
      VF value = Zeros(), weight = Zeros();
      for (int p = 0; p < planes; ++p) {
        const int64_t row = plan.Row(y, z0 + p) + column.x0;
        CopyRow(plan.counts + row, width, 0, count, 0.0f, counts);
        MakeCoefficients(plan, shift, sums + size_t{1} * p * count, int64_t{kRun} * count, counts, count, results,
                         &value, &weight);
        for (int c = 0; c < 3 && plan.voxel_gradient != nullptr; ++c) {
          std::memcpy(plan.CoefficientRow(c, y, z0 + p) + column.x0, results[c], width * sizeof(float));
        }
      }
      total->value += Total(value);
      total->weight += Total(weight);
    }
  }
}

void MarchImages(const LnccPlan& plan, int64_t index, float* scratch_floats, LnccSums* total) {
  if (plan.task.weights != nullptr) return SumColumn<true>(plan, index, scratch_floats, total);
  SumColumn<false>(plan, index, scratch_floats, total);
}

// Each of `count` floats twice.
HWY_INLINE void Twice(const float* in, int count, float* out) {
  for (int x = 0; x < count; ++x) out[2 * x] = out[2 * x + 1] = in[x];
}

// r and h of a row of `count` voxels, from the rows T of A, B and C at its voxels.
HWY_INLINE void StoreVoxels(const LnccPlan& plan, int64_t row, int count, const float* const* t) {
  const float *fixed = plan.task.fixed + row, *warped = plan.task.warped + row;
  for (int x = 0; x < count; ++x) {
    const float f = fixed[x] - plan.fixed_mean, m = warped[x] - plan.moving_mean;
    const float r = plan.scale * (f * t[0][x] + (m * t[1][x] + t[2][x]));
    plan.voxel_gradient[row + x] = m == m ? r : 0.0f;
  }
  if (plan.task.curvature == nullptr) return;
  for (int x = 0; x < count; ++x) {
    plan.task.curvature[row + x] = warped[x] == warped[x] ? plan.scale * t[1][x] : 0.0f;
  }
}

// The same of weighted voxels. The weights may lie where r is stored.
HWY_INLINE void StoreWeightedVoxels(const LnccPlan& plan, int64_t row, int count, const float* const* t) {
  const float *fixed = plan.task.fixed + row, *warped = plan.task.warped + row, *weights = plan.task.weights + row;
  for (int x = 0; x < count && plan.task.curvature != nullptr; ++x) {
    plan.task.curvature[row + x] = warped[x] == warped[x] ? plan.scale * t[1][x] * weights[x] : 0.0f;
  }
  for (int x = 0; x < count; ++x) {
    const float f = fixed[x] - plan.fixed_mean, m = warped[x] - plan.moving_mean;
    const float r = plan.scale * (f * t[0][x] + (m * t[1][x] + t[2][x])) * weights[x];
    plan.voxel_gradient[row + x] = m == m ? r : 0.0f;
  }
}

// The voxel_gradient of a column.
void MarchCoefficients(const LnccPlan& plan, int64_t index, float* scratch_floats) {
  constexpr int kRun = LnccPlan::kRun;
  const LnccColumn column = plan.Column(index, LnccPlan::kCoefficientTileY);
  const int width = column.x1 - column.x0, count = RoundUp(width);
  const int voxels = std::min(2 * width, plan.task.size.x - 2 * column.x0);
  FloatStack scratch(scratch_floats);
  PlaneRing<3, LnccPlan::kCoefficientTileY> ring(plan, column, &scratch);
  float *sums = scratch.Take(size_t{3} * kRun * count), *at_voxels[3];
  for (float*& row : at_voxels) row = scratch.Take(2 * count);
  for (int z0 = column.z0; z0 < column.z1; z0 += kRun) {
    ring.MoveTo(z0, [&](int z, float* out) HWY_ATTR {
      const auto load = [&](int y, int padded, float* const* rows) HWY_ATTR {
        for (int c = 0; c < 3; ++c) {
          CopyRow(plan.CoefficientRow(c, y, z), plan.size().x, column.x0 - plan.taps.radius, padded, 0.0f, rows[c]);
        }
      };
      SumPlane<3, LnccPlan::kCoefficientTileY>(plan, column, scratch, load, out);
    });
    const int planes = std::min(kRun, column.z1 - z0);
    for (int y = column.y0; y < column.y1; ++y) {
      for (int c = 0; c < 3; ++c) {
        const float* rows[kMaxDepth];
        ring.Rows(c, y - column.y0, z0, rows);
        ring.SumRun(rows, planes, sums + int64_t{c} * kRun * count);
      }
      for (int p = 0; p < planes; ++p) {
        for (int c = 0; c < 3; ++c) Twice(sums + (int64_t{c} * kRun + p) * count, width, at_voxels[c]);
        for (int r = 0; r < 4; ++r) {
          const int vy = 2 * y + r % 2, vz = 2 * (z0 + p) + r / 2;
          if (vy >= plan.task.size.y || vz >= plan.task.size.z) continue;
          const int64_t row = plan.VoxelRow(vy, vz) + 2 * column.x0;
          if (plan.task.weights != nullptr) {
            StoreWeightedVoxels(plan, row, voxels, at_voxels);
          } else {
            StoreVoxels(plan, row, voxels, at_voxels);
          }
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_LNCC_INL_H_
