// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/float_rows.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/transform/float_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));

void ExpandRow(const float* HWY_RESTRICT nodes, const AxisTapWithDerivative* HWY_RESTRICT taps, int voxels,
               int node_stride, bool derivative, float* HWY_RESTRICT out) {
  for (int v = 0; v < voxels; ++v) {
    const float* const w = derivative ? taps[v].derivative : taps[v].tap.weight;
    const float* const node = nodes + 3 * taps[v].tap.base;
#if HWY_TARGET == HWY_SCALAR
    for (int c = 0; c < 3; ++c) {
      float sum = w[0] * node[c];
      for (int k = 1; k < 4; ++k) sum += w[k] * node[k * node_stride + c];
      out[3 * v + c] = sum;
    }
#else
    // The three components and one float that the next voxel overwrites.
    const hn::FixedTag<float, 4> d;
    auto sum = hn::Mul(hn::Set(d, w[0]), hn::LoadU(d, node));
    sum = hn::MulAdd(hn::Set(d, w[1]), hn::LoadU(d, node + node_stride), sum);
    sum = hn::MulAdd(hn::Set(d, w[2]), hn::LoadU(d, node + 2 * node_stride), sum);
    sum = hn::MulAdd(hn::Set(d, w[3]), hn::LoadU(d, node + 3 * node_stride), sum);
    hn::StoreU(sum, d, out + 3 * v);
#endif
  }
}

HWY_INLINE VF Combine(const float* const rows[4], VF w0, VF w1, VF w2, VF w3, int e) {
  const DF d;
  auto sum = hn::Mul(w0, hn::LoadU(d, rows[0] + e));
  sum = hn::MulAdd(w1, hn::LoadU(d, rows[1] + e), sum);
  sum = hn::MulAdd(w2, hn::LoadU(d, rows[2] + e), sum);
  return hn::MulAdd(w3, hn::LoadU(d, rows[3] + e), sum);
}

void CombineRows(const float* const rows[4], const float weight[4], int count, float* HWY_RESTRICT out) {
  const DF d;
  const float* const r[4] = {rows[0], rows[1], rows[2], rows[3]};
  const VF w0 = hn::Set(d, weight[0]), w1 = hn::Set(d, weight[1]), w2 = hn::Set(d, weight[2]),
           w3 = hn::Set(d, weight[3]);
  for (int e = 0; e < count; e += kLanes) hn::StoreU(Combine(r, w0, w1, w2, w3, e), d, out + e);
}

// along_x[e...] + base[e % 3...] as floats.
HWY_INLINE VF AffineTerm(const double* along_x, const double* pattern, int e) {
  const DF d;
  const double* const base = pattern + e % 3;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, static_cast<float>(along_x[e] + base[0]));
#else
  const hn::Half<DF> dh;
  const hn::Rebind<double, hn::Half<DF>> dd;
  constexpr int kHalf = kLanes / 2;
  const auto low = hn::Add(hn::LoadU(dd, along_x + e), hn::LoadU(dd, base));
  const auto high = hn::Add(hn::LoadU(dd, along_x + e + kHalf), hn::LoadU(dd, base + kHalf));
  return hn::Combine(d, hn::DemoteTo(dh, high), hn::DemoteTo(dh, low));
#endif
}

template <bool kAffine>
void FinishRowOf(const RowSum& sum, int begin, int end, bool streamed, float* HWY_RESTRICT out) {
  const DF d;
  const float* const r[4] = {sum.rows[0], sum.rows[1], sum.rows[2], sum.rows[3]};
  const VF w0 = hn::Set(d, sum.weight[0]), w1 = hn::Set(d, sum.weight[1]), w2 = hn::Set(d, sum.weight[2]),
           w3 = hn::Set(d, sum.weight[3]);
  double pattern[kLanes + 3];
  if (kAffine) {
    for (int i = 0; i < kLanes + 3; ++i) pattern[i] = sum.base[i % 3];
  }
  const auto value = [&](int e) HWY_ATTR {
    const VF u = Combine(r, w0, w1, w2, w3, e);
    return kAffine ? hn::Add(AffineTerm(sum.along_x, pattern, e), u) : u;
  };
  const auto partial = [&](int e, int count, float* to) HWY_ATTR {
    HWY_ALIGN float lanes[kLanes];
    hn::Store(value(e), d, lanes);
    std::memcpy(to, lanes, count * sizeof(float));
  };
  int e = begin;
  const size_t past = reinterpret_cast<uintptr_t>(out) / sizeof(float) % kLanes;
  if (past != 0) {
    const int head = std::min(end - begin, kLanes - static_cast<int>(past));
    partial(e, head, out);
    e += head;
    out += head;
  }
  if (streamed) {
    for (; e + kLanes <= end; e += kLanes, out += kLanes) hn::Stream(value(e), d, out);
  } else {
    for (; e + kLanes <= end; e += kLanes, out += kLanes) hn::Store(value(e), d, out);
  }
  if (e < end) partial(e, end - e, out);
}

void FinishRow(const RowSum& sum, int begin, int end, bool streamed, float* out) {
  sum.along_x != nullptr ? FinishRowOf<true>(sum, begin, end, streamed, out)
                         : FinishRowOf<false>(sum, begin, end, streamed, out);
}

void DeterminantRow(const float* HWY_RESTRICT dx, const float* HWY_RESTRICT dy, const float* HWY_RESTRICT dz,
                    const AffineMapF& to_index, int voxels, float* HWY_RESTRICT out) {
  for (int v = 0; v < voxels; ++v) {
    const float *x = dx + 3 * v, *y = dy + 3 * v, *z = dz + 3 * v;
    out[v] = DeterminantOf(to_index, {x[0], x[1], x[2]}, {y[0], y[1], y[2]}, {z[0], z[1], z[2]});
  }
}

void AddRow(const float* HWY_RESTRICT in, float weight, int64_t count, float* HWY_RESTRICT out) {
  const DF d;
  const VF w = hn::Set(d, weight);
  int64_t e = 0;
  for (; e + kLanes <= count; e += kLanes) {
    hn::StoreU(hn::MulAdd(w, hn::LoadU(d, in + e), hn::LoadU(d, out + e)), d, out + e);
  }
  for (; e < count; ++e) out[e] += weight * in[e];
}

}  // namespace HWY_NAMESPACE
}  // namespace intrawarp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {

HWY_EXPORT(ExpandRow);
HWY_EXPORT(CombineRows);
HWY_EXPORT(FinishRow);
HWY_EXPORT(DeterminantRow);
HWY_EXPORT(AddRow);

void ExpandRow(const float* nodes, const AxisTapWithDerivative* taps, int voxels, int node_stride, bool derivative,
               float* out) {
  HWY_DYNAMIC_DISPATCH(ExpandRow)(nodes, taps, voxels, node_stride, derivative, out);
}

void CombineRows(const float* const rows[4], const float weight[4], int count, float* out) {
  HWY_DYNAMIC_DISPATCH(CombineRows)(rows, weight, count, out);
}

void FinishRow(const RowSum& sum, int begin, int end, bool streamed, float* out) {
  HWY_DYNAMIC_DISPATCH(FinishRow)(sum, begin, end, streamed, out);
}

void DeterminantRow(const float* dx, const float* dy, const float* dz, const AffineMapF& to_index, int voxels,
                    float* out) {
  HWY_DYNAMIC_DISPATCH(DeterminantRow)(dx, dy, dz, to_index, voxels, out);
}

void AddRow(const float* in, float weight, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(AddRow)(in, weight, count, out);
}

}  // namespace intrawarp::cpu
#endif
