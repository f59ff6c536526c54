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
  const hn::Rebind<double, hn::Half<DF> > dd;
  constexpr int kHalf = kLanes / 2;
  const auto low = hn::Add(hn::LoadU(dd, along_x + e), hn::LoadU(dd, base));
  const auto high = hn::Add(hn::LoadU(dd, along_x + e + kHalf), hn::LoadU(dd, base + kHalf));
  return hn::Combine(d, hn::DemoteTo(dh, high), hn::DemoteTo(dh, low));
#endif
}

// value(e) for the elements [begin, end) to `out`: whole aligned vectors, and parts of one at both ends.
template <typename Value>
HWY_INLINE void StoreRow(const Value& value, int begin, int end, bool streamed, float* HWY_RESTRICT out) {
  const DF d;
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
  StoreRow(value, begin, end, streamed, out);
}

void FinishRow(const RowSum& sum, int begin, int end, bool streamed, float* out) {
  sum.along_x != nullptr ? FinishRowOf<true>(sum, begin, end, streamed, out)
                         : FinishRowOf<false>(sum, begin, end, streamed, out);
}

void DeterminantRow(const float* HWY_RESTRICT dx, const float* HWY_RESTRICT dy, const float* HWY_RESTRICT dz,
                    const AffineMapF& to_index, int voxels, float* HWY_RESTRICT out) {
  const DF d;
  const auto& m = to_index.m;
  const auto one = hn::Set(d, 1.0f);
  int v = 0;
  for (; v + kLanes <= voxels; v += kLanes) {
    VF g[3][3];
    auto x0 = hn::Zero(d), x1 = x0, x2 = x0, y0 = x0, y1 = x0, y2 = x0, z0 = x0, z1 = x0, z2 = x0;
    hn::LoadInterleaved3(d, dx + 3 * v, x0, x1, x2);
    hn::LoadInterleaved3(d, dy + 3 * v, y0, y1, y2);
    hn::LoadInterleaved3(d, dz + 3 * v, z0, z1, z2);
    for (int c = 0; c < 3; ++c) {
      const auto a = hn::Set(d, m[0][c]), b = hn::Set(d, m[1][c]), e = hn::Set(d, m[2][c]);
      g[0][c] = hn::MulAdd(x0, a, hn::MulAdd(y0, b, hn::Mul(z0, e)));
      g[1][c] = hn::MulAdd(x1, a, hn::MulAdd(y1, b, hn::Mul(z1, e)));
      g[2][c] = hn::MulAdd(x2, a, hn::MulAdd(y2, b, hn::Mul(z2, e)));
    }
    for (int c = 0; c < 3; ++c) g[c][c] = hn::Add(g[c][c], one);
    const auto minor = [&](int c1, int c2)
                           HWY_ATTR { return hn::MulSub(g[1][c1], g[2][c2], hn::Mul(g[1][c2], g[2][c1])); };
    const auto determinant =
        hn::MulAdd(g[0][0], minor(1, 2), hn::MulSub(g[0][2], minor(0, 1), hn::Mul(g[0][1], minor(0, 2))));
    hn::StoreU(determinant, d, out + v);
  }
  for (; v < voxels; ++v) {
    const float *x = dx + 3 * v, *y = dy + 3 * v, *z = dz + 3 * v;
    out[v] = DeterminantOf(to_index, {x[0], x[1], x[2]}, {y[0], y[1], y[2]}, {z[0], z[1], z[2]});
  }
}

template <typename D>
HWY_INLINE void AddVector(D d, const float* in, int64_t in_stride, const float (*weight)[4], int rows,
                          float* const out[4]) {
  auto a = hn::LoadU(d, out[0]), b = hn::LoadU(d, out[1]), c = hn::LoadU(d, out[2]), e = hn::LoadU(d, out[3]);
  for (int i = 0; i < rows; ++i, in += in_stride) {
    const auto v = hn::LoadU(d, in);
    a = hn::MulAdd(hn::Set(d, weight[i][0]), v, a);
    b = hn::MulAdd(hn::Set(d, weight[i][1]), v, b);
    c = hn::MulAdd(hn::Set(d, weight[i][2]), v, c);
    e = hn::MulAdd(hn::Set(d, weight[i][3]), v, e);
  }
  hn::StoreU(a, d, out[0]);
  hn::StoreU(b, d, out[1]);
  hn::StoreU(c, d, out[2]);
  hn::StoreU(e, d, out[3]);
}

void AddRows(const float* HWY_RESTRICT in, int64_t in_stride, const float (*weight)[4], int rows, int64_t count,
             float* const out[4]) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  int64_t e = 0;
  const auto at = [&](auto tag) HWY_ATTR {
    float* const to[4] = {out[0] + e, out[1] + e, out[2] + e, out[3] + e};
    AddVector(tag, in + e, in_stride, weight, rows, to);
  };
  for (; e + kLanes <= count; e += kLanes) at(d);
  for (; e < count; ++e) at(d1);
}

void CopyRow(const float* HWY_RESTRICT in, int count, bool streamed, float* HWY_RESTRICT out) {
  const DF d;
  StoreRow([&](int e) HWY_ATTR { return hn::LoadU(d, in + e); }, 0, count, streamed, out);
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
HWY_EXPORT(AddRows);
HWY_EXPORT(CopyRow);

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

void AddRows(const float* in, int64_t in_stride, const float (*weight)[4], int rows, int64_t count,
             float* const out[4]) {
  HWY_DYNAMIC_DISPATCH(AddRows)(in, in_stride, weight, rows, count, out);
}

void CopyRow(const float* in, int count, bool streamed, float* out) {
  HWY_DYNAMIC_DISPATCH(CopyRow)(in, count, streamed, out);
}

}  // namespace intrawarp::cpu
#endif
