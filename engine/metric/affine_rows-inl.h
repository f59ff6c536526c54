// SPDX-License-Identifier: Apache-2.0
// The sums of the affine objective over rows of the fixed grid on the CPU, for a metric whose derivative by a voxel's
// moving value and whose curvature in it are known voxel by voxel, and for the vector target that includes this.
//
// With g the derivative by the moving index, h the curvature and q the normalised coordinates, the Hessian is the sum
// of h (g g^T) (x) (q,1)(q,1)^T. Along a row only qx varies: float32 lanes sum the products of g times 1, qx, qx^2, and
// what is left, products with qy and qz, is done once a row in float64.
#if defined(INTRAWARP_ENGINE_METRIC_AFFINE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_AFFINE_ROWS_INL_H_
#undef INTRAWARP_ENGINE_METRIC_AFFINE_ROWS_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_AFFINE_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "engine/metric/affine_plan.h"
#include "engine/metric/row_sampler-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// The bytes x, x + 1, ... of a row of the fixed mask; beyond the row's end they may be 0.
HWY_INLINE VI MaskBytes(const AffinePlan& plan, int x, const uint8_t* fixed_mask) {
  if (HWY_LIKELY(x + kLanes <= plan.size.x)) {
    return hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<uint8_t, DI>(), fixed_mask + x));
  }
  HWY_ALIGN int32_t bytes[kLanes] = {};
  for (int i = 0; i < std::min(kLanes, plan.size.x - x); ++i) bytes[i] = fixed_mask[x + i];
  return hn::Load(DI(), bytes);
}

// The lanes x, x + 1, ... of a row whose masks are set, of those in the range.
template <bool kMasked>
HWY_INLINE MF CountingLanes(const AffinePlan& plan, const WarpedRow& row, int x, Range range,
                            const uint8_t* fixed_mask) {
  MF counts = InRange(x, range);
  if (!kMasked) return counts;
  if (row.in_mask != nullptr) counts = hn::And(counts, hn::Ne(hn::Load(DF(), row.in_mask + x), Zeros()));
  if (fixed_mask == nullptr) return counts;
  const VI set = MaskBytes(plan, x, fixed_mask);
  return hn::And(counts, hn::RebindMask(DF(), hn::Ne(set, hn::Zero(DI()))));
}

// The weights of lanes that count; the others have 0.
HWY_INLINE VF SampleWeights(const AffinePlan& plan, const WarpedRow& row, int x, MF counts, const uint8_t* fixed_mask) {
  VF weights = Splat(1.0f);
  if (row.in_mask != nullptr) weights = hn::Load(DF(), row.in_mask + x);
  if (fixed_mask != nullptr) {
    const VF bytes = hn::ConvertTo(DF(), MaskBytes(plan, x, fixed_mask));
    weights = weights * MaskWeights(bytes, plan.objective.fixed_mask.weight_per_unit);
  }
  return hn::IfThenElseZero(counts, weights);
}

// The derivative of the metric by the moving values of lanes, and its curvature in them.
struct LaneTerm {
  VF derivative, curvature;
};

// Term is a class with
//   static constexpr bool kIsSquare;   whether the metric is half the sum of the derivatives' squares, and h is 1;
//                                      under weights, half the sum of the weighted squares, and h is the weight
//   VF Scale() const;                  a factor to the moving image's derivative
//   void BeginRow(int y, int z);
//   LaneTerm At(int x, VF value, MF counts) const;   of the lanes x, x + 1, ...; of those that don't count, anything
//                                                    finite
// With kTakesWeights derivative, curvature and square are multiplied by the samples' weights; otherwise At has done so.
template <class Term, bool kTakesWeights = true>
class AffineRows {
 public:
  AffineRows(const AffinePlan& plan, const Term& term, float* scratch)
      : plan_(plan),
        masking_(!kTakesWeights && plan.masked() ? Masking::kBinary : plan.masking()),
        term_(term),
        sampler_(plan),
        row_(MakeWarpedRow(scratch, plan.size.x, plan.objective.moving_mask.data != nullptr)) {}

  // Adds a row.
  void Add(int y, int z) {
    sampler_.Sample(y, z, &row_);
    term_.BeginRow(y, z);
    Moments moments;
    for (int begin = row_.inside.begin; begin < row_.inside.end;) {
      const int end = std::min(row_.inside.end, begin / kRun * kRun + kRun);
      SumRun(y, z, {begin, end}, &moments);
      begin = end;
    }
    Expand(moments, plan_.Q(1, y), plan_.Q(2, z));
  }

  void Finish(NormalEquations* sums) const {
    sums->value = value_;
    sums->weight = masking_ == Masking::kWeighted ? weight_ : samples_;
    sums->samples = samples_;
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 4; ++c) sums->gradient[4 * r + c] = gradient_[r][c];
    }
    double* h = sums->hessian;
    for (int i = 0; i < kAffineParameters; ++i) {
      for (int j = i; j < kAffineParameters; ++j) *h++ = products_[PairOf(i / 4, j / 4)][MonomialOf(i % 4, j % 4)];
    }
  }

 private:
  // Lanes sum at most this many voxels in float32: 1 / kLanes of it each.
  static constexpr int kRun = 1024;
  static_assert(kRun % kLanes == 0);

  // Sums over a row: products xx xy xz yy yz zz of g, and r g with r the difference of intensities, by powers of qx.
  struct Moments {
    double products[3][6] = {};
    double gradient[2][3] = {};
    double value = 0;
    double samples = 0;
    // Only with weights.
    double weight = 0;
  };

  // Sums in lanes; named, because arrays of vectors end up on the stack.
  struct LaneProducts {
    HWY_INLINE LaneProducts() { xx = xy = xz = yy = yz = zz = Zeros(); }
    // Adds a b^T, which is symmetric.
    HWY_INLINE void Add(VF ax, VF ay, VF az, VF bx, VF by, VF bz) {
      xx = hn::MulAdd(ax, bx, xx);
      xy = hn::MulAdd(ax, by, xy);
      xz = hn::MulAdd(ax, bz, xz);
      yy = hn::MulAdd(ay, by, yy);
      yz = hn::MulAdd(ay, bz, yz);
      zz = hn::MulAdd(az, bz, zz);
    }
    void AddTotalsTo(double sums[6]) const {
      sums[0] += Total(xx);
      sums[1] += Total(xy);
      sums[2] += Total(xz);
      sums[3] += Total(yy);
      sums[4] += Total(yz);
      sums[5] += Total(zz);
    }
    VF xx, xy, xz, yy, yz, zz;
  };
  struct LaneVector {
    HWY_INLINE LaneVector() { x = y = z = Zeros(); }
    HWY_INLINE void Add(VF factor, VF ax, VF ay, VF az) {
      x = hn::MulAdd(factor, ax, x);
      y = hn::MulAdd(factor, ay, y);
      z = hn::MulAdd(factor, az, z);
    }
    void AddTotalsTo(double sums[3]) const {
      sums[0] += Total(x);
      sums[1] += Total(y);
      sums[2] += Total(z);
    }
    VF x, y, z;
  };

  static constexpr int PairOf(int a, int b) { return a > b ? PairOf(b, a) : a == 0 ? b : a + b + 1; }
  // Monomials of (qx, qy, qz, 1): xx xy xz x yy yz y zz z 1.
  static constexpr int MonomialOf(int a, int b) { return a > b ? MonomialOf(b, a) : 4 * a - a * (a - 1) / 2 + b - a; }

  HWY_INLINE void SumRun(int y, int z, Range range, Moments* moments) const {
    switch (masking_) {
      case Masking::kNone:
        return Sum<Masking::kNone>(y, z, range, moments);
      case Masking::kBinary:
        return Sum<Masking::kBinary>(y, z, range, moments);
      case Masking::kWeighted:
        if constexpr (kTakesWeights) Sum<Masking::kWeighted>(y, z, range, moments);
    }
  }

  template <Masking kMasking>
  HWY_INLINE void Sum(int y, int z, Range range, Moments* moments) const {
    constexpr bool kMasked = kMasking != Masking::kNone, kWeighted = kMasking == Masking::kWeighted;
    const float* fixed = plan_.FixedRow(y, z);
    const uint8_t* fixed_mask = plan_.FixedMaskRow(y, z);
    const VF scale = term_.Scale();
    const VF q_step = Splat(static_cast<float>(plan_.normalize.m[0][0]));
    const VF q_base = Splat(static_cast<float>(plan_.normalize.m[0][3]));
    // To the last voxel of the image.
    const int64_t to_end = plan_.objective.fixed.geometry.voxels() - 1 - plan_.RowOffset(y, z);
    LaneProducts products0, products1, products2;
    LaneVector gradient0, gradient1;
    VF value = Zeros(), weights = Zeros();
    for (int x = range.begin / kLanes * kLanes; x < range.end; x += kLanes) {
      hwy::Prefetch(fixed + std::min<int64_t>(x + plan_.size.x, to_end));
      const MF counts = CountingLanes<kMasked>(plan_, row_, x, range, fixed_mask);
      LaneTerm term = term_.At(x, hn::Load(DF(), row_.value + x), counts);
      VF gx = scale * hn::Load(DF(), row_.gradient[0] + x);
      VF gy = scale * hn::Load(DF(), row_.gradient[1] + x);
      VF gz = scale * hn::Load(DF(), row_.gradient[2] + x);
      if (kMasked || HWY_UNLIKELY(x < range.begin || x + kLanes > range.end)) {
        term.derivative = hn::IfThenElseZero(counts, term.derivative);
        if (!Term::kIsSquare) term.curvature = hn::IfThenElseZero(counts, term.curvature);
        gx = hn::IfThenElseZero(counts, gx);
        gy = hn::IfThenElseZero(counts, gy);
        gz = hn::IfThenElseZero(counts, gz);
        if (kMasked) moments->samples += static_cast<double>(hn::CountTrue(DF(), counts));
      }
      const VF residual = term.derivative;
      if (kWeighted) {
        const VF weight = SampleWeights(plan_, row_, x, counts, fixed_mask);
        weights = weights + weight;
        term.derivative = weight * term.derivative;
        term.curvature = Term::kIsSquare ? weight : weight * term.curvature;
      }
      if (Term::kIsSquare) value = hn::MulAdd(term.derivative, residual, value);
      const VF q = hn::MulAdd(Ramp(x), q_step, q_base);
      const VF qx = q * gx, qy = q * gy, qz = q * gz;
      gradient0.Add(term.derivative, gx, gy, gz);
      gradient1.Add(term.derivative, qx, qy, qz);
      if (!Term::kIsSquare || kWeighted) {
        const VF hx = term.curvature * gx, hy = term.curvature * gy, hz = term.curvature * gz;
        products0.Add(gx, gy, gz, hx, hy, hz);
        products1.Add(qx, qy, qz, hx, hy, hz);
        products2.Add(qx, qy, qz, q * hx, q * hy, q * hz);
      } else {
        products0.Add(gx, gy, gz, gx, gy, gz);
        products1.Add(qx, qy, qz, gx, gy, gz);
        products2.Add(qx, qy, qz, qx, qy, qz);
      }
    }
    products0.AddTotalsTo(moments->products[0]);
    products1.AddTotalsTo(moments->products[1]);
    products2.AddTotalsTo(moments->products[2]);
    gradient0.AddTotalsTo(moments->gradient[0]);
    gradient1.AddTotalsTo(moments->gradient[1]);
    moments->value += Total(value);
    if (kWeighted) moments->weight += Total(weights);
    if (!kMasked) moments->samples += range.end - range.begin;
  }

  void Expand(const Moments& m, double qy, double qz) {
    value_ += 0.5 * m.value;
    samples_ += m.samples;
    weight_ += m.weight;
    for (int r = 0; r < 3; ++r) {
      const double g = m.gradient[0][r];
      gradient_[r][0] += m.gradient[1][r];
      gradient_[r][1] += qy * g;
      gradient_[r][2] += qz * g;
      gradient_[r][3] += g;
    }
    for (int pair = 0; pair < 6; ++pair) {
      const double one = m.products[0][pair], x = m.products[1][pair];
      const double monomials[10] = {m.products[2][pair], qy * x,   qz * x,        x,        qy * qy * one,
                                    qy * qz * one,       qy * one, qz * qz * one, qz * one, one};
      for (int k = 0; k < 10; ++k) products_[pair][k] += monomials[k];
    }
  }

  const AffinePlan& plan_;
  const Masking masking_;
  Term term_;
  const RowSampler sampler_;
  WarpedRow row_;
  double value_ = 0, samples_ = 0, weight_ = 0;
  double gradient_[3][4] = {};
  double products_[6][10] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_ROWS_INL_H_
