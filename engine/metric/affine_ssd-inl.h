// SPDX-License-Identifier: Apache-2.0
// The sums of SSD over rows of the fixed grid, for the vector target that includes this.
//
// With g the derivative by the moving index and q the normalised coordinates, the Hessian is the sum of
// (g g^T) (x) (q,1)(q,1)^T. Along a row only qx varies: float32 lanes sum the products of g times 1, qx, qx^2, and what
// is left, products with qy and qz, is done once a row in float64.
#if defined(INTRAWARP_ENGINE_METRIC_AFFINE_SSD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_AFFINE_SSD_INL_H_
#undef INTRAWARP_ENGINE_METRIC_AFFINE_SSD_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_AFFINE_SSD_INL_H_
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

class SsdRows {
 public:
  SsdRows(const AffinePlan& plan, float* scratch)
      : plan_(plan),
        sampler_(plan),
        fixed_(plan),
        row_(MakeWarpedRow(scratch, plan.size.x, plan.objective.moving_mask.data != nullptr)) {}

  // Adds a row.
  void Add(int y, int z) {
    sampler_.Sample(y, z, &row_);
    Moments moments;
    for (int begin = row_.inside.begin; begin < row_.inside.end;) {
      const int end = std::min(row_.inside.end, begin / kRun * kRun + kRun);
      if (plan_.masked()) {
        Sum<true>(y, z, {begin, end}, &moments);
      } else {
        Sum<false>(y, z, {begin, end}, &moments);
      }
      begin = end;
    }
    Expand(moments, plan_.Q(1, y), plan_.Q(2, z));
  }

  void Finish(NormalEquations* sums) const {
    sums->value = value_;
    sums->weight = sums->samples = samples_;
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

  // Of one row: the products xx xy xz yy yz zz of g, and residual * g, times powers of qx.
  struct Moments {
    double products[3][6] = {};
    double gradient[2][3] = {};
    double value = 0;
    double samples = 0;
  };

  static constexpr int PairOf(int a, int b) { return a > b ? PairOf(b, a) : a == 0 ? b : a + b + 1; }
  // Monomials of (qx, qy, qz, 1): xx xy xz x yy yz y zz z 1.
  static constexpr int MonomialOf(int a, int b) { return a > b ? MonomialOf(b, a) : 4 * a - a * (a - 1) / 2 + b - a; }

  template <bool kMasked>
  HWY_INLINE MF Counts(int x, Range range, const uint8_t* fixed_mask) const {
    MF counts = InRange(x, range);
    if (!kMasked) return counts;
    if (row_.in_mask != nullptr) counts = hn::And(counts, hn::Ne(hn::Load(DF(), row_.in_mask + x), Zeros()));
    if (fixed_mask == nullptr) return counts;
    HWY_ALIGN float lanes[kLanes] = {};
    for (int i = 0; i < std::min(kLanes, plan_.size.x - x); ++i) lanes[i] = fixed_mask[x + i];
    return hn::And(counts, hn::Ne(hn::Load(DF(), lanes), Zeros()));
  }

  template <bool kMasked>
  HWY_INLINE void Sum(int y, int z, Range range, Moments* moments) const {
    const float* fixed = plan_.FixedRow(y, z);
    const uint8_t* fixed_mask = plan_.FixedMaskRow(y, z);
    const VF scale = Splat(static_cast<float>(plan_.objective.intensity_scale));
    const VF q_step = Splat(static_cast<float>(plan_.normalize.m[0][0]));
    const VF q_base = Splat(static_cast<float>(plan_.normalize.m[0][3]));
    VF products[3][6], gradient[2][3], value = Zeros();
    for (auto& power : products)
      for (VF& sum : power) sum = Zeros();
    for (auto& power : gradient)
      for (VF& sum : power) sum = Zeros();
    for (int x = range.begin / kLanes * kLanes; x < range.end; x += kLanes) {
      VF residual = scale * (hn::Load(DF(), row_.value + x) - fixed_.Load(fixed + x));
      VF g[3];
      for (int a = 0; a < 3; ++a) g[a] = scale * hn::Load(DF(), row_.gradient[a] + x);
      if (kMasked || HWY_UNLIKELY(x < range.begin || x + kLanes > range.end)) {
        const MF counts = Counts<kMasked>(x, range, fixed_mask);
        residual = hn::IfThenElseZero(counts, residual);
        for (VF& component : g) component = hn::IfThenElseZero(counts, component);
        if (kMasked) moments->samples += static_cast<double>(hn::CountTrue(DF(), counts));
      }
      const VF q = hn::MulAdd(Ramp(x), q_step, q_base);
      value = hn::MulAdd(residual, residual, value);
      for (int a = 0, pair = 0; a < 3; ++a) {
        const VF qg = q * g[a];
        gradient[0][a] = hn::MulAdd(residual, g[a], gradient[0][a]);
        gradient[1][a] = hn::MulAdd(residual, qg, gradient[1][a]);
        for (int b = a; b < 3; ++b, ++pair) {
          products[0][pair] = hn::MulAdd(g[a], g[b], products[0][pair]);
          products[1][pair] = hn::MulAdd(qg, g[b], products[1][pair]);
          products[2][pair] = hn::MulAdd(qg, q * g[b], products[2][pair]);
        }
      }
    }
    for (int power = 0; power < 3; ++power) {
      for (int pair = 0; pair < 6; ++pair) moments->products[power][pair] += Total(products[power][pair]);
    }
    for (int power = 0; power < 2; ++power) {
      for (int a = 0; a < 3; ++a) moments->gradient[power][a] += Total(gradient[power][a]);
    }
    moments->value += Total(value);
    if (!kMasked) moments->samples += range.end - range.begin;
  }

  static HWY_INLINE double Total(VF lanes) { return hn::GetLane(hn::SumOfLanes(DF(), lanes)); }

  void Expand(const Moments& m, double qy, double qz) {
    value_ += 0.5 * m.value;
    samples_ += m.samples;
    for (int r = 0; r < 3; ++r) {
      const double g = m.gradient[0][r];
      gradient_[r][0] += m.gradient[1][r];
      gradient_[r][1] += qy * g;
      gradient_[r][2] += qz * g;
      gradient_[r][3] += g;
    }
    for (int pair = 0; pair < 6; ++pair) {
      const double one = m.products[0][pair], x = m.products[1][pair];
      const double monomials[10] = {m.products[2][pair], qy * x,       qz * x,   x,       qy * qy * one,
                                    qy * qz * one,       qy * one,     qz * qz * one, qz * one, one};
      for (int k = 0; k < 10; ++k) products_[pair][k] += monomials[k];
    }
  }

  const AffinePlan& plan_;
  const RowSampler sampler_;
  const FixedReader fixed_;
  WarpedRow row_;
  double value_ = 0, samples_ = 0;
  double gradient_[3][4] = {};
  double products_[6][10] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_SSD_INL_H_
