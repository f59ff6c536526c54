// SPDX-License-Identifier: Apache-2.0
// The sums of the affine objective's NGF (ngf.h, affine_objective.h) over a brick of the fixed grid on the CPU, for the
// vector target that includes this.
//
// Three planes of warped rows roll through the brick. With u = g(T) / |g(T)|_eta and v = g(R) / |g(R)|_eta, what is
// needed of a voxel are products of c . du/dW with fixed vectors c: v for the gradient, and for the Hessian two vectors
// of length |v| that span the plane across v, since |v x du|^2 is the sum of their squares. Such a product is, row r of
// W and q of the voxel,
//   sum_a c'_a (P_a + -M_a)[r] (q, 1)  +  c'_a delta_a (P_a + M_a)[r] e_a,     c' = (I - u u^T) c / (|g(T)|_eta 2 h_a),
// with P_a, M_a the moving image's derivatives at the two neighbours along axis a, h_a the spacing, and delta_a the
// step of q_a. The 12-vectors of the Hessian are buffered for a few vectors of voxels, and then multiplied by their
// transpose in tiles of 4 x 4 sums that stay in registers.
#if defined(INTRAWARP_ENGINE_METRIC_NGF_AFFINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_NGF_AFFINE_INL_H_
#undef INTRAWARP_ENGINE_METRIC_NGF_AFFINE_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_NGF_AFFINE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "engine/metric/affine_plan.h"
#include "engine/metric/row_sampler-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

HWY_INLINE VF Inverse(VF v) {
#if HWY_ARCH_X86
  const VF y = hn::ApproximateReciprocal(v);
  return y * hn::NegMulAdd(v, y, Splat(2.0f));
#else
  return hn::Div(Splat(1.0f), v);
#endif
}

HWY_INLINE VF Dot3(const VF a[3], const VF b[3]) { return hn::MulAdd(a[0], b[0], hn::MulAdd(a[1], b[1], a[2] * b[2])); }

// Sums in float32 lanes, moved to float64 every few hundred voxels.
class AffineNgfSums {
 public:
  AffineNgfSums() { Clear(); }

  HWY_INLINE void AddGradient(int i, VF v) { Accumulate(gradient_[i], v); }
  HWY_INLINE void AddValue(VF value, VF weight) {
    Accumulate(value_, value);
    Accumulate(weight_, weight);
  }

  // Adds j j^T of `count` 12-vectors of lanes.
  HWY_INLINE void AddSquares(const float* j, int count) {
    Tile<0, 0>(j, count);
    Tile<0, 4>(j, count);
    Tile<0, 8>(j, count);
    Tile<4, 4>(j, count);
    Tile<4, 8>(j, count);
    Tile<8, 8>(j, count);
  }

  // Counts voxels, and moves the sums to float64 when there were enough.
  void Counted(double samples, int voxels) {
    total_.samples += samples;
    pending_ += voxels;
    if (pending_ >= kRun) Flush();
  }

  void Finish(NormalEquations* sums) {
    Flush();
    *sums = total_;
  }

 private:
  static constexpr int kRun = 1024;

  static HWY_INLINE void Accumulate(float* lanes, VF v) { hn::Store(hn::Load(DF(), lanes) + v, DF(), lanes); }

  // Four sums of a row, in registers: named, because arrays of vectors end up on the stack. Those before kFirst are not
  // used.
  template <int kFirst>
  struct Quad {
    explicit HWY_INLINE Quad(const float* lanes) {
      if (kFirst <= 0) a = hn::Load(DF(), lanes);
      if (kFirst <= 1) b = hn::Load(DF(), lanes + kLanes);
      if (kFirst <= 2) c = hn::Load(DF(), lanes + 2 * kLanes);
      d = hn::Load(DF(), lanes + 3 * kLanes);
    }
    HWY_INLINE void MulAdd(VF factor, const Quad<0>& column) {
      if (kFirst <= 0) a = hn::MulAdd(factor, column.a, a);
      if (kFirst <= 1) b = hn::MulAdd(factor, column.b, b);
      if (kFirst <= 2) c = hn::MulAdd(factor, column.c, c);
      d = hn::MulAdd(factor, column.d, d);
    }
    HWY_INLINE void Store(float* lanes) const {
      if (kFirst <= 0) hn::Store(a, DF(), lanes);
      if (kFirst <= 1) hn::Store(b, DF(), lanes + kLanes);
      if (kFirst <= 2) hn::Store(c, DF(), lanes + 2 * kLanes);
      hn::Store(d, DF(), lanes + 3 * kLanes);
    }
    VF a, b, c, d;
  };

  // The 4 x 4 block of sums at (kRow, kColumn); of one on the diagonal, the upper triangle.
  template <int kRow, int kColumn>
  HWY_NOINLINE void Tile(const float* j, int count) {
    constexpr int kTriangle = kRow == kColumn ? 1 : 0;
    float* const rows[4] = {Sums(kRow, kColumn), Sums(kRow + 1, kColumn), Sums(kRow + 2, kColumn),
                            Sums(kRow + 3, kColumn)};
    Quad<0> sums0(rows[0]);
    Quad<1 * kTriangle> sums1(rows[1]);
    Quad<2 * kTriangle> sums2(rows[2]);
    Quad<3 * kTriangle> sums3(rows[3]);
    for (int i = 0; i < count; ++i, j += kAffineParameters * kLanes) {
      const Quad<0> column(j + kColumn * kLanes), row(j + kRow * kLanes);
      sums0.MulAdd(row.a, column);
      sums1.MulAdd(row.b, column);
      sums2.MulAdd(row.c, column);
      sums3.MulAdd(row.d, column);
    }
    sums0.Store(rows[0]);
    sums1.Store(rows[1]);
    sums2.Store(rows[2]);
    sums3.Store(rows[3]);
  }

  // The place at which row r of the triangle would have column c.
  HWY_INLINE float* Sums(int r, int c) { return hessian_[0] + HessianEntry(r, c) * kLanes; }

  static double Total(const float* lanes) { return hn::GetLane(hn::SumOfLanes(DF(), hn::Load(DF(), lanes))); }

  void Flush() {
    for (int i = 0; i < kAffineHessianEntries; ++i) total_.hessian[i] += Total(hessian_[i]);
    for (int i = 0; i < kAffineParameters; ++i) total_.gradient[i] += Total(gradient_[i]);
    total_.value += Total(value_);
    total_.weight += Total(weight_);
    Clear();
  }

  void Clear() {
    for (auto& lanes : hessian_) hn::Store(Zeros(), DF(), lanes);
    for (auto& lanes : gradient_) hn::Store(Zeros(), DF(), lanes);
    hn::Store(Zeros(), DF(), value_);
    hn::Store(Zeros(), DF(), weight_);
    pending_ = 0;
  }

  HWY_ALIGN float hessian_[kAffineHessianEntries][kLanes];
  HWY_ALIGN float gradient_[kAffineParameters][kLanes];
  HWY_ALIGN float value_[kLanes];
  HWY_ALIGN float weight_[kLanes];
  NormalEquations total_;
  int pending_ = 0;
};

class AffineNgfBrick {
 public:
  // Floats of scratch for bricks of `rows` x any number of planes.
  static size_t ScratchFloats(int n, int rows) {
    return 3 * static_cast<size_t>(rows + 2) * WarpedRowFloats(n) + n + 2 * kLanes;
  }

  AffineNgfBrick(const AffinePlan& plan, Range y, Range z, float* scratch)
      : plan_(plan),
        masking_(plan.masking()),
        sampler_(plan),
        fixed_(ReaderOf(plan.objective.fixed)),
        y_(y),
        z_(z),
        rows_(y.end - y.begin + 2),
        scratch_(scratch),
        counts_(scratch + 3 * rows_ * WarpedRowFloats(plan.size.x)) {
    for (int a = 0; a < 3; ++a) {
      active_[a] = plan.size[a] > 1;
      difference_[a] = active_[a] ? static_cast<float>(0.5 / plan.objective.fixed.geometry.spacing[a]) : 0;
      delta_[a] = static_cast<float>(plan.normalize.m[a][a]);
    }
    const double moving_edge = plan.objective.moving_edge, fixed_edge = plan.objective.fixed_edge;
    moving_edge_squared_ = static_cast<float>(std::max(moving_edge * moving_edge, double{kTiny}));
    fixed_edge_squared_ = static_cast<float>(std::max(fixed_edge * fixed_edge, double{kTiny}));
  }

  void Evaluate(NormalEquations* sums) {
    const Range inner_y = Inner(1, y_), inner_z = Inner(2, z_);
    if (inner_y.empty() || inner_z.empty()) return sums_.Finish(sums);
    for (int z = inner_z.begin - active_[2]; z < inner_z.begin + active_[2]; ++z) SamplePlane(z);
    for (int z = inner_z.begin; z < inner_z.end; ++z) {
      SamplePlane(z + active_[2]);
      for (int y = inner_y.begin; y < inner_y.end; ++y) AddRow(y, z);
    }
    sums_.Finish(sums);
  }

 private:
  // Below this a squared gradient is nothing.
  static constexpr float kTiny = 1e-30f;
  static constexpr float kTinyLength = 1e-15f;
  // Vectors of voxels that are buffered for the Hessian.
  static constexpr int kBuffered = 8;
  static constexpr int kCoefficients = 9;
  static constexpr float kRoot2 = 1.41421356f;

  // A vector of voxels: the two gradients, 1 / |.|_eta of each, <u, v>, and the arguments of Across for g(R).
  struct Normals {
    HWY_ALIGN float gt[3][kLanes];
    HWY_ALIGN float gr[3][kLanes];
    HWY_ALIGN float inverse_t[kLanes];
    HWY_ALIGN float inverse_r[kLanes];
    HWY_ALIGN float cosine[kLanes];
    HWY_ALIGN float length[kLanes];
    HWY_ALIGN float inverse_sum[kLanes];
    // Only with weights.
    HWY_ALIGN float weight[kLanes];
  };

  // The rows around a voxel; along an axis of one voxel the row itself.
  struct Stencil {
    const WarpedRow *center, *plus[3], *minus[3];
    const float *fixed, *fixed_plus[3], *fixed_minus[3];
    // From x to its neighbours.
    int step;
    float qy, qz;
  };

  // The part of a range that has both neighbours.
  Range Inner(int axis, Range range) const {
    const int margin = active_[axis];
    return {std::max(range.begin, margin), std::min(range.end, plan_.size[axis] - margin)};
  }

  // Rows y_.begin - 1 to y_.end of the planes z - 1 to z + 1 are held.
  WarpedRow& Row(int y, int z) { return held_[(z + 1) % 3][y - y_.begin + 1]; }
  const WarpedRow& Row(int y, int z) const { return held_[(z + 1) % 3][y - y_.begin + 1]; }

  void SamplePlane(int z) {
    const size_t row_floats = WarpedRowFloats(plan_.size.x);
    const bool with_mask = plan_.objective.moving_mask.data != nullptr;
    const int begin = std::max(y_.begin - 1, 0), end = std::min(y_.end + 1, plan_.size.y);
    for (int y = begin; y < end; ++y) {
      float* row = scratch_ + ((z + 1) % 3 * rows_ + y - y_.begin + 1) * row_floats;
      Row(y, z) = MakeWarpedRow(row, plan_.size.x, with_mask);
      sampler_.Sample(y, z, &Row(y, z));
    }
  }

  Stencil MakeStencil(int y, int z) const {
    const int dy = active_[1], dz = active_[2];
    Stencil s;
    s.center = s.plus[0] = s.minus[0] = &Row(y, z);
    s.plus[1] = &Row(y + dy, z);
    s.minus[1] = &Row(y - dy, z);
    s.plus[2] = &Row(y, z + dz);
    s.minus[2] = &Row(y, z - dz);
    s.fixed = s.fixed_plus[0] = s.fixed_minus[0] = plan_.FixedRow(y, z);
    s.fixed_plus[1] = plan_.FixedRow(y + dy, z);
    s.fixed_minus[1] = plan_.FixedRow(y - dy, z);
    s.fixed_plus[2] = plan_.FixedRow(y, z + dz);
    s.fixed_minus[2] = plan_.FixedRow(y, z - dz);
    s.step = active_[0];
    s.qy = static_cast<float>(plan_.Q(1, y));
    s.qz = static_cast<float>(plan_.Q(2, z));
    return s;
  }

  // The voxels all of whose points map inside.
  Range Inside(const Stencil& s) const {
    Range range{s.center->inside.begin + s.step, s.center->inside.end - s.step};
    for (int a = 1; a < 3; ++a) {
      range.begin = std::max({range.begin, s.plus[a]->inside.begin, s.minus[a]->inside.begin});
      range.end = std::min({range.end, s.plus[a]->inside.end, s.minus[a]->inside.end});
    }
    return range;
  }

  void AddRow(int y, int z) {
    const Stencil s = MakeStencil(y, z);
    const Range range = Inside(s);
    if (range.empty()) return;
    if (masking_ != Masking::kNone) CountMasks(s, range, plan_.FixedMaskRow(y, z));
    active_[2] ? SumRow<false>(s, range) : SumRow<true>(s, range);
  }

  template <bool kPlanar>
  void SumRow(const Stencil& s, Range range) {
    switch (masking_) {
      case Masking::kNone:
        return Sum<kPlanar, Masking::kNone>(s, range);
      case Masking::kBinary:
        return Sum<kPlanar, Masking::kBinary>(s, range);
      case Masking::kWeighted:
        return Sum<kPlanar, Masking::kWeighted>(s, range);
    }
  }

  // counts_[x] = the weight of the voxel where the masks of it and of all its points are set, and 0 elsewhere.
  void CountMasks(const Stencil& s, Range range, const uint8_t* fixed_mask) {
    const float unit = plan_.objective.fixed_mask.weight_per_unit;
    for (int x = range.begin; x < range.end; ++x)
      counts_[x] = fixed_mask == nullptr ? 1.0f : MaskWeight(fixed_mask[x], unit);
    if (s.center->in_mask == nullptr) return;
    for (int x = range.begin; x < range.end; ++x) counts_[x] *= s.center->in_mask[x];
    for (int a = 0; a < 3; ++a) {
      const float *plus = s.plus[a]->in_mask + (a == 0 ? s.step : 0),
                  *minus = s.minus[a]->in_mask - (a == 0 ? s.step : 0);
      for (int x = range.begin; x < range.end; ++x) counts_[x] = plus[x] * minus[x] != 0 ? counts_[x] : 0.0f;
    }
  }

  // In passes over a few vectors of voxels at a time: one vector alone would wait for each of its inverse roots.
  template <bool kPlanar, Masking kMasking>
  void Sum(const Stencil& s, Range range) {
    constexpr bool kMasked = kMasking != Masking::kNone, kWeighted = kMasking == Masking::kWeighted;
    constexpr int kVectors = kPlanar ? 1 : 2;
    for (int begin = range.begin / kLanes * kLanes; begin < range.end; begin += kBuffered * kLanes) {
      const int count = std::min(kBuffered, (range.end - begin + kLanes - 1) / kLanes);
      double samples = 0;
      for (int i = 0; i < count; ++i) {
        const int x = begin + i * kLanes;
        const MF counts = Counts<kMasked>(x, range);
        if (IsFull<kMasked>(x, range)) {
          samples += kLanes;
          Gradients<kPlanar, false, false>(s, x, counts, &normals_[i]);
        } else {
          samples += static_cast<double>(hn::CountTrue(DF(), counts));
          Gradients<kPlanar, true, kWeighted>(s, x, counts, &normals_[i]);
        }
      }
      for (int i = 0; i < count; ++i) Coefficients<kPlanar, kWeighted>(normals_[i], coefficients_[i]);
      for (int i = 0; i < count; ++i) {
        const int x = begin + i * kLanes;
        float* out = squares_ + i * kVectors * kAffineParameters * kLanes;
        if (IsFull<kMasked>(x, range)) {
          Products<kPlanar, false>(s, x, Counts<kMasked>(x, range), coefficients_[i], out);
        } else {
          Products<kPlanar, true>(s, x, Counts<kMasked>(x, range), coefficients_[i], out);
        }
      }
      sums_.AddSquares(squares_, count * kVectors);
      sums_.Counted(samples, count * kLanes);
    }
  }

  template <bool kMasked>
  static HWY_INLINE bool IsFull(int x, Range range) {
    return !kMasked && HWY_LIKELY(x >= range.begin && x + kLanes <= range.end);
  }

  template <bool kMasked>
  HWY_INLINE MF Counts(int x, Range range) const {
    const MF in_range = InRange(x, range);
    return kMasked ? hn::And(in_range, hn::Ne(hn::LoadU(DF(), counts_ + x), Zeros())) : in_range;
  }

  // Adds the values of a vector of voxels, and writes what their coefficients are made from.
  template <bool kPlanar, bool kPartial, bool kWeighted>
  HWY_INLINE void Gradients(const Stencil& s, int x, MF counts, Normals* out) {
    constexpr int kAxes = kPlanar ? 2 : 3;
    VF gt[3], gr[3];
    gt[2] = gr[2] = Zeros();
    for (int a = 0; a < kAxes; ++a) {
      const int step = a == 0 ? s.step : 0;
      const VF f = Splat(difference_[a]);
      gt[a] = f * (hn::LoadU(DF(), s.plus[a]->value + x + step) - hn::LoadU(DF(), s.minus[a]->value + x - step));
      gr[a] = f * (fixed_.Load(s.fixed_plus[a] + x + step) - fixed_.Load(s.fixed_minus[a] + x - step));
      if (kPartial) {
        gt[a] = hn::IfThenElseZero(counts, gt[a]);
        gr[a] = hn::IfThenElseZero(counts, gr[a]);
      }
      hn::Store(gt[a], DF(), out->gt[a]);
      hn::Store(gr[a], DF(), out->gr[a]);
    }
    const VF squared = Dot3(gr, gr);
    const VF inverse_t = InverseSqrt(Dot3(gt, gt) + Splat(moving_edge_squared_));
    const VF inverse_r = InverseSqrt(squared + Splat(fixed_edge_squared_));
    const VF both = inverse_t * inverse_r;
    const VF cosine = Dot3(gt, gr) * both;
    // |v|^2 - <u, v>^2 without its cancellation: |u x v|^2 + |v|^2 (1 - |u|^2). Where `counts` is off, v is 0.
    const VF weight = squared * inverse_r * inverse_r;
    const VF short_of_one = Splat(moving_edge_squared_) * inverse_t * inverse_t;
    VF value = weight * short_of_one;
    for (int a = kPlanar ? 2 : 0; a < 3; ++a) {
      const int b = (a + 1) % 3, c = (a + 2) % 3;
      const VF cross = both * (gt[b] * gr[c] - gt[c] * gr[b]);
      value = hn::MulAdd(cross, cross, value);
    }
    if (kWeighted) {
      const VF of_masks = hn::IfThenElseZero(counts, hn::LoadU(DF(), counts_ + x));
      sums_.AddValue(of_masks * value, of_masks * weight);
      hn::Store(of_masks, DF(), out->weight);
    } else {
      sums_.AddValue(value, weight);
    }
    hn::Store(inverse_t, DF(), out->inverse_t);
    hn::Store(inverse_r, DF(), out->inverse_r);
    hn::Store(cosine, DF(), out->cosine);
    if (kPlanar) return;
    const VF length = squared * InverseSqrt(hn::Max(squared, Splat(kTiny)));
    hn::Store(length, DF(), out->length);
    hn::Store(Inverse(hn::Max(length + hn::Abs(gr[2]), Splat(kTinyLength))), DF(), out->inverse_sum);
  }

  // Writes c', three for each of the three c, the gradient's c last; with weights each is multiplied by the weight,
  // or by its root for the Hessian.
  template <bool kPlanar, bool kWeighted>
  HWY_INLINE void Coefficients(const Normals& in, float* out) const {
    constexpr int kAxes = kPlanar ? 2 : 3;
    VF gt[3], gr[3];
    gt[2] = gr[2] = Zeros();
    for (int a = 0; a < kAxes; ++a) {
      gt[a] = hn::Load(DF(), in.gt[a]);
      gr[a] = hn::Load(DF(), in.gr[a]);
    }
    const VF inverse_t = hn::Load(DF(), in.inverse_t), inverse_r = hn::Load(DF(), in.inverse_r);
    const VF cosine = hn::Load(DF(), in.cosine);
    const VF squared_t = inverse_t * inverse_t, both = inverse_t * inverse_r;
    // -2 <u, v> (v - <u, v> u) / |g(T)|
    VF of_r = Splat(-2.0f) * cosine * both, of_t = Splat(2.0f) * cosine * cosine * squared_t;
    // The factor of e, which is as long as g(R): sqrt(2) |<u, v>| / (|g(R)| |g(T)|_eta).
    VF of_e = Splat(kRoot2) * inverse_t * hn::Abs(cosine) * InverseSqrt(hn::Max(Dot3(gr, gr), Splat(kTiny)));
    if (kWeighted) {
      const VF weight = hn::Load(DF(), in.weight);
      of_r = weight * of_r;
      of_t = weight * of_t;
      of_e = hn::Sqrt(weight) * of_e;
    }
    VF scale[3];
    for (int a = 0; a < kAxes; ++a) {
      const VF f = Splat(difference_[a]);
      hn::Store(f * hn::MulAdd(of_r, gr[a], of_t * gt[a]), DF(), out + (6 + a) * kLanes);
      scale[a] = f * of_e;
    }
    VF e[2][3];
    if (kPlanar) {
      e[0][0] = hn::Neg(gr[1]);
      e[0][1] = gr[0];
      e[0][2] = Zeros();
    } else {
      Across(gr, hn::Load(DF(), in.length), hn::Load(DF(), in.inverse_sum), e[0], e[1]);
    }
    for (int k = 0; k < (kPlanar ? 1 : 2); ++k) {
      const VF along = Dot3(e[k], gt) * squared_t;
      for (int a = 0; a < kAxes; ++a) {
        hn::Store(scale[a] * hn::NegMulAdd(along, gt[a], e[k][a]), DF(), out + (3 * k + a) * kLanes);
      }
    }
  }

  // Adds the gradient of a vector of voxels, and writes its one or two 12-vectors for the Hessian.
  template <bool kPlanar, bool kPartial>
  HWY_INLINE void Products(const Stencil& s, int x, MF counts, const float* coefficients, float* out) {
    constexpr int kAxes = kPlanar ? 2 : 3;
    VF c[3][3];
    for (int k = 0; k < 3; ++k) {
      for (int a = 0; a < kAxes; ++a) {
        if (!kPlanar || k != 1) c[k][a] = hn::Load(DF(), coefficients + (3 * k + a) * kLanes);
      }
    }
    const VF q[3] = {hn::MulAdd(Ramp(x), Splat(delta_[0]), Splat(static_cast<float>(plan_.normalize.m[0][3]))),
                     Splat(s.qy), Splat(s.qz)};
    for (int r = 0; r < 3; ++r) {
      VF difference[3], sum[3];
      for (int a = 0; a < kAxes; ++a) {
        const int step = a == 0 ? s.step : 0;
        const VF plus = hn::LoadU(DF(), s.plus[a]->gradient[r] + x + step);
        const VF minus = hn::LoadU(DF(), s.minus[a]->gradient[r] + x - step);
        difference[a] = plus - minus;
        sum[a] = Splat(delta_[a]) * (plus + minus);
        if (kPartial) {
          difference[a] = hn::IfThenElseZero(counts, difference[a]);
          sum[a] = hn::IfThenElseZero(counts, sum[a]);
        }
      }
      for (int k = 0; k < 3; ++k) {
        if (kPlanar && k == 1) continue;
        VF d = hn::MulAdd(c[k][0], difference[0], c[k][1] * difference[1]);
        if (!kPlanar) d = hn::MulAdd(c[k][2], difference[2], d);
        for (int b = 0; b < 4; ++b) {
          const VF entry = b == 3 ? d : b == 2 && kPlanar ? Zeros() : hn::MulAdd(c[k][b], sum[b], d * q[b]);
          if (k < 2) {
            hn::Store(entry, DF(), out + ((k * 3 + r) * 4 + b) * kLanes);
          } else {
            sums_.AddGradient(4 * r + b, entry);
          }
        }
      }
    }
  }

  // Two vectors that are orthogonal to v and to each other, and as long: the basis of Duff et al., "Building an
  // Orthonormal Basis, Revisited" (JCGT 2017), scaled. inverse_sum = 1 / (length + |v[2]|).
  static HWY_INLINE void Across(const VF v[3], VF length, VF inverse_sum, VF e1[3], VF e2[3]) {
    const VF kx = inverse_sum * v[0], ky = inverse_sum * v[1];
    const VF minus_sign = hn::CopySign(Splat(1.0f), hn::Neg(v[2]));
    e1[0] = hn::NegMulAdd(kx, v[0], length);
    e1[1] = e2[0] = hn::Neg(kx * v[1]);
    e1[2] = minus_sign * v[0];
    e2[1] = hn::NegMulAdd(ky, v[1], length);
    e2[2] = minus_sign * v[1];
  }

  const AffinePlan& plan_;
  const Masking masking_;
  const RowSampler sampler_;
  const ImageReader fixed_;
  const Range y_, z_;
  const size_t rows_;
  float* scratch_;
  float* counts_;
  int active_[3];
  // 1 / (2 spacing), and the step of q; 0 for the first along an axis of one voxel.
  float difference_[3], delta_[3];
  float moving_edge_squared_, fixed_edge_squared_;
  WarpedRow held_[3][kBrick + 2];
  AffineNgfSums sums_;
  Normals normals_[kBuffered];
  HWY_ALIGN float coefficients_[kBuffered][kCoefficients * kLanes];
  HWY_ALIGN float squares_[2 * kBuffered * kAffineParameters * kLanes];
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_NGF_AFFINE_INL_H_
