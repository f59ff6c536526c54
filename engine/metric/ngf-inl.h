// SPDX-License-Identifier: Apache-2.0
// The pass of NGF over stored images on the CPU (ngf.h), for the vector target that includes this. The formulas stand
// in ngf_kernels.h. A task marches through a brick in z; three planes of c lie in a ring.
#if defined(INTRAWARP_ENGINE_METRIC_NGF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_NGF_INL_H_
#undef INTRAWARP_ENGINE_METRIC_NGF_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_NGF_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/base/simd-inl.h"
#include "engine/metric/ngf_plan.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// kWeighted: with the task's weights.
template <bool kWeighted>
class NgfMarch {
 public:
  NgfMarch(const NgfPlan& plan, int64_t index, float* scratch)
      : plan_(plan),
        n_(plan.task.size),
        brick_(plan.Brick(index)),
        fixed_(plan.task.fixed, Voxels(plan.task.size)),
        warped_(plan.task.warped, Voxels(plan.task.size)),
        weights_(plan.task.weights, Voxels(plan.task.size)),
        pitch_(static_cast<int>(plan.RowFloats())),
        rows_(brick_.y1 - brick_.y0 + 2),
        scratch_(scratch) {}

  void March(NgfSums* sums) {
    const int margin = plan_.voxel_gradient != nullptr ? 1 : 0;
    if (margin > 0) std::fill(scratch_, scratch_ + size_t{9} * rows_ * pitch_, 0.0f);
    for (int z = brick_.z0 - margin; z < brick_.z1 + margin; ++z) {
      for (int y = brick_.y0 - margin; y < brick_.y1 + margin; ++y) DifferenceRow(y, z, sums);
      if (margin > 0 && z > brick_.z0) {
        for (int y = brick_.y0; y < brick_.y1; ++y) VoxelGradientRow(y, z - 1);
      }
    }
  }

 private:
  // Row of c_axis, at x = 0; a vector before it and one behind the row are 0.
  float* Row(int axis, int y, int z) const {
    const int slot = ((z + 1) % 3 * rows_ + y - brick_.y0 + 1) * 3 + axis;
    return scratch_ + size_t{0} + slot * static_cast<int64_t>(pitch_) + kLanes;
  }

  void DifferenceRow(int y, int z, NgfSums* sums) {
    const bool owned = y >= brick_.y0 && y < brick_.y1 && z >= brick_.z0 && z < brick_.z1;
    const bool with_gradient = plan_.voxel_gradient != nullptr;
    const int first = n_.x > 1 ? 1 : 0, last = n_.x > 1 ? n_.x - 1 : 1;
    if (!HasNeighbors(y, n_.y) || !HasNeighbors(z, n_.z) || first >= last) {
      if (with_gradient) {
        for (int a = 0; a < 3; ++a) std::fill(Row(a, y, z), Row(a, y, z) + n_.x, 0.0f);
      }
      return;
    }
    const int64_t step[3] = {n_.x > 1 ? 1 : 0, n_.y > 1 ? n_.x : 0, n_.z > 1 ? int64_t{n_.x} * n_.y : 0};
    const int64_t row = (int64_t{z} * n_.y + y) * n_.x;
    const DF d;
    const NgfScales& s = plan_.scales;
    const VF moving_eta2 = Splat(s.moving_eta2), fixed_eta2 = Splat(s.fixed_eta2);
    VF value = Zeros(), weight = Zeros(), samples = Zeros(), w = Splat(1.0f);
    for (int x = first; x < last; x += kLanes) {
      const float *f = plan_.task.fixed + row + x, *m = plan_.task.warped + row + x;
      VF g[3], h[3], all = warped_.Load(m);
      for (int a = 0; a < 3; ++a) {
        const VF plus = warped_.Load(m + step[a]), minus = warped_.Load(m - step[a]);
        const VF scale = Splat(s.half_inverse[a]);
        all = hn::Add(all, hn::Add(plus, minus));
        g[a] = hn::Mul(scale, hn::Sub(plus, minus));
        h[a] = hn::Mul(scale, hn::Sub(fixed_.Load(f + step[a]), fixed_.Load(f - step[a])));
      }
      const MF in_row = hn::Lt(hn::Iota(d, static_cast<float>(x)), Splat(static_cast<float>(last)));
      const MF counts = hn::And(in_row, hn::Eq(all, all));
      const VF h2 = hn::MulAdd(h[0], h[0], hn::MulAdd(h[1], h[1], hn::Mul(h[2], h[2])));
      const VF g2 = hn::MulAdd(g[0], g[0], hn::MulAdd(g[1], g[1], hn::Mul(g[2], g[2])));
      const VF inverse_g = InverseSqrt(hn::Add(g2, moving_eta2)), inverse_h = InverseSqrt(hn::Add(h2, fixed_eta2));
      VF u[3], v[3];
      for (int a = 0; a < 3; ++a) {
        u[a] = hn::Mul(g[a], inverse_g);
        v[a] = hn::Mul(h[a], inverse_h);
      }
      if constexpr (kWeighted) w = weights_.Load(plan_.task.weights + row + x);
      const VF cosine = hn::MulAdd(u[0], v[0], hn::MulAdd(u[1], v[1], hn::Mul(u[2], v[2])));
      if (owned) {
        // |v|^2 - <u, v>^2 without its cancellation: |u x v|^2 + |v|^2 (1 - |u|^2).
        const VF v2 = hn::Mul(hn::Mul(h2, inverse_h), inverse_h);
        const VF p = hn::NegMulAdd(u[2], v[1], hn::Mul(u[1], v[2])), q = hn::NegMulAdd(u[0], v[2], hn::Mul(u[2], v[0]));
        const VF r = hn::NegMulAdd(u[1], v[0], hn::Mul(u[0], v[1]));
        const VF cross = hn::MulAdd(p, p, hn::MulAdd(q, q, hn::Mul(r, r)));
        const VF term = hn::MulAdd(v2, hn::Mul(hn::Mul(moving_eta2, inverse_g), inverse_g), cross);
        value = hn::Add(value, hn::IfThenElseZero(counts, kWeighted ? hn::Mul(w, term) : term));
        weight = hn::Add(weight, hn::IfThenElseZero(counts, kWeighted ? hn::Mul(w, v2) : v2));
        samples = hn::Add(samples, hn::IfThenElseZero(counts, Splat(1.0f)));
      }
      if (!with_gradient) continue;
      VF factor = hn::Mul(hn::Mul(Splat(-2.0f), cosine), inverse_g);
      if (kWeighted) factor = hn::Mul(w, factor);
      for (int a = 0; a < 3; ++a) {
        const VF c = hn::Mul(hn::Mul(factor, Splat(s.half_inverse[a])), hn::NegMulAdd(cosine, u[a], v[a]));
        hn::StoreU(hn::IfThenElseZero(counts, c), d, Row(a, y, z) + x);
      }
    }
    sums->value += Total(value);
    sums->weight += Total(weight);
    sums->samples += Total(samples);
  }

  void VoxelGradientRow(int y, int z) {
    const DF d;
    float* out = plan_.voxel_gradient + (int64_t{z} * n_.y + y) * n_.x;
    const float *cx = Row(0, y, z), *above_y = Row(1, y - 1, z), *below_y = Row(1, y + 1, z);
    const float *above_z = Row(2, y, z - 1), *below_z = Row(2, y, z + 1);
    for (int x = 0; x < n_.x; x += kLanes) {
      VF sum = hn::Sub(hn::LoadU(d, cx + x - 1), hn::LoadU(d, cx + x + 1));
      sum = hn::Add(sum, hn::Sub(hn::LoadU(d, above_y + x), hn::LoadU(d, below_y + x)));
      sum = hn::Add(sum, hn::Sub(hn::LoadU(d, above_z + x), hn::LoadU(d, below_z + x)));
      if (x + kLanes <= n_.x) {
        hn::StoreU(sum, d, out + x);
      } else {
        HWY_ALIGN float lanes[kLanes];
        hn::Store(sum, d, lanes);
        std::memcpy(out + x, lanes, (n_.x - x) * sizeof(float));
      }
    }
  }

  const NgfPlan& plan_;
  const Int3 n_;
  const NgfBrickRange brick_;
  const ImageReader fixed_, warped_, weights_;
  const int pitch_, rows_;
  float* const scratch_;
};

void MarchBrick(const NgfPlan& plan, int64_t index, float* scratch, NgfSums* sums) {
  if (plan.task.weights != nullptr) return NgfMarch<true>(plan, index, scratch).March(sums);
  NgfMarch<false>(plan, index, scratch).March(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_NGF_INL_H_
