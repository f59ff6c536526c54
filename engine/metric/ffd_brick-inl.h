// SPDX-License-Identifier: Apache-2.0
// One brick of one pass of the FFD objective, for the vector target that includes this: the moving image sampled at the
// free-form map, a metric's terms, and the forces' way back to the control points (ffd_bricks.h).
#if defined(INTRAWARP_ENGINE_METRIC_FFD_BRICK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INTRAWARP_ENGINE_METRIC_FFD_BRICK_INL_H_
#undef INTRAWARP_ENGINE_METRIC_FFD_BRICK_INL_H_
#else
#define INTRAWARP_ENGINE_METRIC_FFD_BRICK_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/image/sample.h"
#include "engine/metric/ffd_bricks.h"
#include "engine/metric/trilinear-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

// Displacements of a row of nodes (control points times the linear part of the map to moving voxels), along x: three
// planar rows of `stride`. `scratch`: 3 * (nodes.x + kRowPadding) floats.
inline void ContractAlongX(const FfdRows& rows, const float* control_points, float* scratch, float* out) {
  const int nodes = rows.nodes.x, pitch = nodes + kRowPadding;
  std::fill_n(scratch, 3 * pitch, 0.0f);
  const AffineMap& map = rows.plan.displacement_to_moving;
  for (int i = 0; i < nodes; ++i) {
    const float* c = control_points + 3 * i;
    const Vec3d d = map.Linear({c[0], c[1], c[2]});
    for (int a = 0; a < 3; ++a) scratch[a * pitch + i] = static_cast<float>(d[a]);
  }
  const int rounded = RoundedRow(rows.size.x);
  for (int x = 0; x < rounded; x += kLanes) {
    const VI base = hn::LoadU(DI(), rows.x_base.data() + x);
    const VF w0 = hn::LoadU(DF(), rows.x_weights[0].data() + x), w1 = hn::LoadU(DF(), rows.x_weights[1].data() + x);
    const VF w2 = hn::LoadU(DF(), rows.x_weights[2].data() + x), w3 = hn::LoadU(DF(), rows.x_weights[3].data() + x);
    for (int a = 0; a < 3; ++a) {
      const float* node = scratch + a * pitch;
      VF sum = w0 * hn::GatherIndex(DF(), node, base);
      sum = hn::MulAdd(w1, hn::GatherIndex(DF(), node + 1, base), sum);
      sum = hn::MulAdd(w2, hn::GatherIndex(DF(), node + 2, base), sum);
      sum = hn::MulAdd(w3, hn::GatherIndex(DF(), node + 3, base), sum);
      hn::Store(sum, DF(), out + int64_t{a} * rows.stride + x);
    }
  }
}

// out[node] = sum over the voxels of a row of force * weight of the node.
inline void ContractAlongXTransposed(const FfdRows& rows, const float* force, float* out) {
  for (int node = 0; node < rows.nodes.x; ++node) {
    const float* weights = rows.x_support.data() + int64_t{rows.x_span} * node;
    const float* from = force + rows.x_begin[node];
    VF sum = Zeros();
    for (int i = 0; i < rows.x_count[node]; i += kLanes) {
      sum = hn::MulAdd(hn::LoadU(DF(), weights + i), hn::LoadU(DF(), from + i), sum);
    }
    out[node] = hn::GetLane(hn::SumOfLanes(DF(), sum));
  }
}

// The four nodes of a voxel along y or z, and their weights; 0 for those beyond an axis of one node.
struct Taps {
  Taps(const AxisWeights& axis, int voxel) {
    for (int k = 0; k < 4; ++k) {
      node[k] = std::min(axis.base[voxel] + k, axis.nodes - 1);
      weight[k] = axis.weights[4 * static_cast<size_t>(voxel) + k];
    }
  }
  int node[4];
  float weight[4];
};

// One pass over a brick. A pass is a class with
//   static constexpr bool kForces;          whether Add gives forces
//   static constexpr bool kWeighted;        whether Add needs the samples' weights
//   void BeginRow(int64_t offset);          offset of the row in the fixed image
//   MF Select(int x, MF in);                those of the lanes x, x + 1, ... of the row that are samples so far
//   VF Add(int x, VF value, MF samples, VF weights);
//                                           takes moving values; the derivative of the metric by them (0 for others).
//                                           `weights` are 0 for others, and 1 for samples unless kWeighted
//   void Skip(int x);                       no lane is a sample
//   void EndRow();
template <class Pass, bool kPlanar>
class FfdBrick {
 public:
  FfdBrick(const FfdRows& rows, const float* node_rows, int brick, Pass& pass, float* scratch)
      : rows_(rows),
        node_rows_(node_rows),
        pass_(pass),
        y_(rows.bricks.RangeY(brick)),
        z_(rows.bricks.RangeZ(brick)),
        nodes_y_(rows.Nodes(1, y_)),
        nodes_z_(rows.Nodes(2, z_)),
        corners_(rows.objective.moving),
        mask_(rows.objective.moving_mask.data),
        moving_(rows.objective.moving.geometry.size),
        plain_(moving_.x == 1 || corners_.voxels() > std::numeric_limits<int32_t>::max()) {
    plane_floats_ = (nodes_y_.end - nodes_y_.begin) * rows.row_floats();
    field_ = scratch;
    if (Pass::kForces) {
      forces_ = field_ + plane_floats_;
      plane_ = forces_ + kForceRows * rows.row_floats();
      planes_ = plane_ + kForcePlanes * plane_floats_;
      std::fill_n(planes_, (nodes_z_.end - nodes_z_.begin) * plane_floats_, 0.0f);
    }
    for (int a = 0; a < 3; ++a) {
      step_[a] = static_cast<float>(Snap(rows.plan.to_moving.m[a][0], kStepScale));
      last_[a] = moving_[a] - 1.0f;
    }
  }

  static size_t ScratchFloats(const FfdRows& rows) {
    const size_t plane = rows.bricks.rows * rows.row_floats();
    return (Pass::kForces ? (rows.bricks.planes + kForcePlanes + 1) * plane + kForceRows * rows.row_floats() : plane);
  }

  // `partial` (FfdRows::partial_floats) only for passes with forces.
  void Run(float* partial) {
    const AxisWeights& axis = rows_.plan.axis[2];
    for (int z = z_.begin; z < z_.end;) {
      int count = 0;
      float weights[4][kForcePlanes];
      const int base = axis.base[z];
      for (; z < z_.end && axis.base[z] == base && count < kForcePlanes; ++z) {
        if (!RunPlane(z, plane_ + count * plane_floats_)) continue;
        for (int k = 0; k < 4; ++k) weights[k][count] = axis.weights[4 * static_cast<size_t>(z) + k];
        ++count;
      }
      if (count > 0) SpreadAlongZ(base, axis.taps, weights, count);
    }
    if (Pass::kForces) Finish(partial);
  }

 private:
  // Indices are rounded to these fractions of a voxel, so that a map that is the identity but for rounding lands on
  // voxel centres and not just outside the outermost of them.
  static constexpr double kBaseScale = 1 << 20;
  static constexpr double kStepScale = int64_t{1} << 34;
  static double Snap(double v, double scale) { return std::nearbyint(v * scale) / scale; }

  // Samples a plane; its forces go to the node rows at `forces`, which are left alone where the answer is false: none.
  bool RunPlane(int z, float* forces) {
    ContractAlongZ(Taps(rows_.plan.axis[2], z));
    bool any = false;
    const AxisWeights& axis = rows_.plan.axis[1];
    for (int y = y_.begin; y < y_.end;) {
      int count = 0;
      float weights[4][kForceRows];
      const int base = axis.base[y];
      for (; y < y_.end && axis.base[y] == base && count < kForceRows; ++y) {
        if (!Row(y, z, forces_ + count * rows_.row_floats())) continue;
        for (int k = 0; k < 4; ++k) weights[k][count] = axis.weights[4 * static_cast<size_t>(y) + k];
        ++count;
      }
      if (count == 0) continue;
      if (!any) std::fill_n(forces, plane_floats_, 0.0f);
      any = true;
      SpreadAlongY(base, axis.taps, weights, count, forces);
    }
    return any;
  }

  void ContractAlongZ(const Taps& taps) {
    const int64_t node_plane = rows_.nodes.y * rows_.row_floats();
    const float* from[4];
    for (int k = 0; k < 4; ++k) from[k] = node_rows_ + taps.node[k] * node_plane + nodes_y_.begin * rows_.row_floats();
    const VF w0 = Splat(taps.weight[0]), w1 = Splat(taps.weight[1]), w2 = Splat(taps.weight[2]),
             w3 = Splat(taps.weight[3]);
    for (int64_t i = 0; i < plane_floats_; i += kLanes) {
      const VF sum = hn::MulAdd(w1, hn::Load(DF(), from[1] + i), w0 * hn::Load(DF(), from[0] + i));
      const VF more = hn::MulAdd(w3, hn::Load(DF(), from[3] + i), w2 * hn::Load(DF(), from[2] + i));
      hn::Store(sum + more, DF(), field_ + i);
    }
  }

  // Adds force rows that share their nodes to the node rows of a plane.
  void SpreadAlongY(int base, int taps, const float (&weights)[4][kForceRows], int count, float* plane) {
    const int rounded = (rows_.size.x + kLanes - 1) / kLanes * kLanes;
    for (int a = 0; a < 3; ++a) {
      float* to = plane + (base - nodes_y_.begin) * rows_.row_floats() + int64_t{a} * rows_.stride;
      const float* from = forces_ + int64_t{a} * rows_.stride;
      const int64_t node = taps == 1 ? 0 : rows_.row_floats();
      for (int x = 0; x < rounded; x += kLanes) {
        VF sum0 = Zeros(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
        for (int r = 0; r < count; ++r) {
          const VF f = hn::Load(DF(), from + r * rows_.row_floats() + x);
          sum0 = hn::MulAdd(Splat(weights[0][r]), f, sum0);
          sum1 = hn::MulAdd(Splat(weights[1][r]), f, sum1);
          sum2 = hn::MulAdd(Splat(weights[2][r]), f, sum2);
          sum3 = hn::MulAdd(Splat(weights[3][r]), f, sum3);
        }
        Accumulate(sum0, to + x);
        Accumulate(sum1, to + node + x);
        Accumulate(sum2, to + 2 * node + x);
        Accumulate(sum3, to + 3 * node + x);
      }
    }
  }
  static HWY_INLINE void Accumulate(VF v, float* to) { hn::Store(hn::Load(DF(), to) + v, DF(), to); }

  // Adds the node rows of planes that share their nodes to the node planes.
  void SpreadAlongZ(int base, int taps, const float (&weights)[4][kForcePlanes], int count) {
    float* to = planes_ + (base - nodes_z_.begin) * plane_floats_;
    const int64_t node = taps == 1 ? 0 : plane_floats_;
    for (int64_t i = 0; i < plane_floats_; i += kLanes) {
      VF sum0 = Zeros(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
      for (int r = 0; r < count; ++r) {
        const VF f = hn::Load(DF(), plane_ + r * plane_floats_ + i);
        sum0 = hn::MulAdd(Splat(weights[0][r]), f, sum0);
        sum1 = hn::MulAdd(Splat(weights[1][r]), f, sum1);
        sum2 = hn::MulAdd(Splat(weights[2][r]), f, sum2);
        sum3 = hn::MulAdd(Splat(weights[3][r]), f, sum3);
      }
      Accumulate(sum0, to + i);
      Accumulate(sum1, to + node + i);
      Accumulate(sum2, to + 2 * node + i);
      Accumulate(sum3, to + 3 * node + i);
    }
  }

  void Finish(float* partial) {
    const int count_y = nodes_y_.end - nodes_y_.begin, count_z = nodes_z_.end - nodes_z_.begin;
    for (int z = 0; z < count_z; ++z) {
      for (int y = 0; y < count_y; ++y) {
        const float* row = planes_ + z * plane_floats_ + y * rows_.row_floats();
        float* to = partial + (int64_t{z} * rows_.bricks.rows + y) * 3 * rows_.nodes.x;
        for (int a = 0; a < 3; ++a) {
          ContractAlongXTransposed(rows_, row + int64_t{a} * rows_.stride, to + int64_t{a} * rows_.nodes.x);
        }
      }
    }
  }

  // Samples a row; its forces (per moving voxel) go to `force`, which is left alone where the answer is false: none.
  bool Row(int y, int z, float* force) {
    Pass pass = pass_;
    const int64_t offset = rows_.RowOffset(y, z);
    pass.BeginRow(offset);
    const Taps taps(rows_.plan.axis[1], y);
    const float* node[4];
    for (int k = 0; k < 4; ++k) node[k] = field_ + (taps.node[k] - nodes_y_.begin) * rows_.row_floats();
    VF base[3], step[3];
    const AffineMap& map = rows_.plan.to_moving;
    for (int a = 0; a < 3; ++a) {
      base[a] = Splat(static_cast<float>(Snap(map.m[a][1] * y + map.m[a][2] * z + map.m[a][3], kBaseScale)));
      step[a] = Splat(step_[a]);
    }
    const VF w0 = Splat(taps.weight[0]), w1 = Splat(taps.weight[1]), w2 = Splat(taps.weight[2]),
             w3 = Splat(taps.weight[3]);
    const int n = rows_.size.x;
    bool any = false;
    for (int x = 0; x < n; x += kLanes) {
      const MF in_row = HWY_LIKELY(x + kLanes <= n) ? hn::Eq(Zeros(), Zeros()) : InRange(x, {0, n});
      MF samples = pass.Select(x, in_row);
      if (hn::AllFalse(DF(), samples)) {
        Nothing(pass, x, any, force);
        continue;
      }
      const VF ramp = Ramp(x);
      VF index[3];
      for (int a = 0; a < 3; ++a) {
        const int64_t at = int64_t{a} * rows_.stride + x;
        const VF u = hn::MulAdd(w1, hn::Load(DF(), node[1] + at), w0 * hn::Load(DF(), node[0] + at));
        const VF v = hn::MulAdd(w3, hn::Load(DF(), node[3] + at), w2 * hn::Load(DF(), node[2] + at));
        index[a] = hn::MulAdd(ramp, step[a], base[a]) + (u + v);
      }
      VF value, gradient[3];
      if (HWY_LIKELY(NeedsNoCare(index))) {
        if (kPlanar) samples = hn::And(samples, hn::Le(hn::Abs(index[2]), Splat(0.5f)));
        value = SampleInterior(index, gradient);
      } else {
        samples = hn::And(samples, Inside(index));
        if (hn::AllFalse(DF(), samples)) {
          Nothing(pass, x, any, force);
          continue;
        }
        value = plain_ ? SamplePlain(index, samples, gradient) : SampleClamped(index, gradient);
      }
      VF weights = Splat(1.0f);
      if constexpr (Pass::kWeighted) {
        weights = Weights(offset + x, index, samples);
        samples = hn::And(samples, hn::Ne(weights, Zeros()));
      } else if (mask_ != nullptr) {
        samples = hn::And(samples, InMovingMask(index, samples));
      }
      const VF derivative = pass.Add(x, value, samples, weights);
      if (Pass::kForces) {
        if (!any) Clear(force, x);
        any = true;
        for (int a = 0; a < 3; ++a) {
          hn::Store(hn::IfThenElseZero(samples, derivative * gradient[a]), DF(), force + int64_t{a} * rows_.stride + x);
        }
      }
    }
    pass.EndRow();
    pass_ = pass;
    return any;
  }

  // No forces at x, where some have been stored; those before the first are stored with it.
  void Nothing(Pass& pass, int x, bool any, float* force) const {
    pass.Skip(x);
    if (!Pass::kForces || !any) return;
    for (int a = 0; a < 3; ++a) hn::Store(Zeros(), DF(), force + int64_t{a} * rows_.stride + x);
  }
  void Clear(float* force, int count) const {
    for (int a = 0; a < 3; ++a) std::fill_n(force + int64_t{a} * rows_.stride, count, 0.0f);
  }

  // Whether all lanes lie between voxel centres on all axes, below the last.
  HWY_INLINE bool NeedsNoCare(const VF index[3]) const {
    MF in = hn::And(hn::Ge(index[0], Zeros()), hn::Lt(index[0], Splat(last_[0])));
    in = hn::And(in, hn::And(hn::Ge(index[1], Zeros()), hn::Lt(index[1], Splat(last_[1]))));
    if (!kPlanar) in = hn::And(in, hn::And(hn::Ge(index[2], Zeros()), hn::Lt(index[2], Splat(last_[2]))));
    return hn::AllTrue(DF(), in) && !plain_;
  }

  MF Inside(const VF index[3]) const {
    MF in = hn::And(hn::Ge(index[0], Splat(-0.5f)), hn::Le(index[0], Splat(last_[0] + 0.5f)));
    for (int a = 1; a < 3; ++a) {
      in = hn::And(in, hn::And(hn::Ge(index[a], Splat(-0.5f)), hn::Le(index[a], Splat(last_[a] + 0.5f))));
    }
    return in;
  }

  HWY_INLINE VF SampleInterior(const VF index[3], VF gradient[3]) const {
    const VI lx = Truncate(index[0]), ly = Truncate(index[1]);
    const VF wx = index[0] - hn::ConvertTo(DF(), lx), wy = index[1] - hn::ConvertTo(DF(), ly);
    Corners corners;
    if (kPlanar) {
      Fetch(lx, hn::Mul(ly, hn::Set(DI(), static_cast<int32_t>(corners_.row()))), &corners);
      return Interpolate<kPlanar>(corners, wx, wy, Zeros(), gradient);
    }
    const VI lz = Truncate(index[2]);
    Fetch(lx, corners_.RowOffset(ly, lz), &corners);
    return Interpolate<kPlanar>(corners, wx, wy, index[2] - hn::ConvertTo(DF(), lz), gradient);
  }

  // Lanes that map outside get something finite from within the image.
  HWY_NOINLINE VF SampleClamped(const VF index[3], VF gradient[3]) const {
    VF weight[3];
    VI lower[3];
    MF interior[3];
    for (int a = 0; a < 3; ++a) {
      const VF clamped = hn::Min(hn::Max(index[a], Zeros()), Splat(last_[a]));
      lower[a] = hn::Min(Truncate(clamped), hn::Set(DI(), std::max(moving_[a] - 2, 0)));
      weight[a] = clamped - hn::ConvertTo(DF(), lower[a]);
      interior[a] = hn::And(hn::Eq(clamped, index[a]), hn::Gt(Splat(last_[a]), Zeros()));
    }
    Corners corners;
    corners_.Gather<kPlanar>(corners_.Offset(lower[0], lower[1], lower[2]), &corners);
    const VF value = Interpolate<kPlanar>(corners, weight[0], weight[1], weight[2], gradient);
    for (int a = 0; a < 3; ++a) gradient[a] = hn::IfThenElseZero(interior[a], gradient[a]);
    return value;
  }

  // Voxel by voxel: what the vectors have no index for.
  HWY_NOINLINE VF SamplePlain(const VF index[3], MF samples, VF gradient[3]) const {
    HWY_ALIGN float at[3][kLanes], value[kLanes] = {}, out[3][kLanes] = {};
    HWY_ALIGN float selected[kLanes];
    for (int a = 0; a < 3; ++a) hn::Store(index[a], DF(), at[a]);
    hn::Store(hn::IfThenElseZero(samples, Splat(1)), DF(), selected);
    for (int i = 0; i < kLanes; ++i) {
      if (selected[i] == 0) continue;
      Vec3f g;
      value[i] = SampleLinearGradient(corners_.data(), moving_, {at[0][i], at[1][i], at[2][i]}, &g);
      for (int a = 0; a < 3; ++a) out[a][i] = g[a];
    }
    for (int a = 0; a < 3; ++a) gradient[a] = hn::Load(DF(), out[a]);
    return hn::Load(DF(), value);
  }

  HWY_NOINLINE MF InMovingMask(const VF index[3], MF samples) const {
    HWY_ALIGN float at[3][kLanes], selected[kLanes];
    for (int a = 0; a < 3; ++a) hn::Store(index[a], DF(), at[a]);
    hn::Store(hn::IfThenElseZero(samples, Splat(1)), DF(), selected);
    for (int i = 0; i < kLanes; ++i) {
      if (selected[i] == 0) continue;
      selected[i] = mask_[NearestOffset(moving_, {at[0][i], at[1][i], at[2][i]})] != 0 ? 1.0f : 0.0f;
    }
    return hn::Ne(hn::Load(DF(), selected), Zeros());
  }

  // The weights of the voxels `offset`, `offset` + 1, ... of the fixed image; 0 for a voxel that is not a sample.
  HWY_NOINLINE VF Weights(int64_t offset, const VF index[3], MF samples) const {
    HWY_ALIGN float at[3][kLanes], weights[kLanes];
    for (int a = 0; a < 3; ++a) hn::Store(index[a], DF(), at[a]);
    hn::Store(hn::IfThenElseZero(samples, Splat(1)), DF(), weights);
    const ConstMaskView &fixed = rows_.objective.fixed_mask, &moving = rows_.objective.moving_mask;
    for (int i = 0; i < kLanes; ++i) {
      if (weights[i] == 0) continue;
      if (fixed.data != nullptr) weights[i] = MaskWeight(fixed.data[offset + i], fixed.weight_per_unit);
      if (moving.data == nullptr) continue;
      const size_t nearest = NearestOffset(moving_, {at[0][i], at[1][i], at[2][i]});
      weights[i] *= MaskWeight(moving.data[nearest], moving.weight_per_unit);
    }
    return hn::Load(DF(), weights);
  }

  HWY_INLINE void Fetch(VI lx, VI row, Corners* corners) const {
    const VI offset = hn::Add(lx, row);
    corners_.PrefetchNextRow(hn::GetLane(offset));
    corners_.Gather<kPlanar>(offset, corners);
  }

  const FfdRows& rows_;
  const float* const node_rows_;
  Pass& pass_;
  const Range y_, z_, nodes_y_, nodes_z_;
  const CornerReader corners_;
  const uint8_t* const mask_;
  const Int3 moving_;
  const bool plain_;
  float step_[3], last_[3];
  int64_t plane_floats_;
  // Node rows of displacements of the plane at hand; forces of up to kForceRows of its rows; node rows of forces of up
  // to kForcePlanes planes; the node planes of forces.
  float* field_;
  float* forces_ = nullptr;
  float* plane_ = nullptr;
  float* planes_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#endif  // INTRAWARP_ENGINE_METRIC_FFD_BRICK_INL_H_
