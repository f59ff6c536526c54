// SPDX-License-Identifier: Apache-2.0
#include "engine/image/row_simd.h"

#include <algorithm>
#include <cmath>

#include "engine/image/gradient_kernels.h"
#include "engine/image/statistics_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/image/row_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void WeightedRows(const float* in, int64_t stride, const float* weights, int low, int high, float scale, int64_t count,
                  float* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  const auto scales = hn::Set(d, scale);
  int64_t x = 0;
  // Four vectors at a time: their sums stay in registers over all rows.
  for (; x + 4 * lanes <= count; x += 4 * lanes) {
    auto a = hn::Zero(d), b = a, c = a, e = a;
    const float* row = in + x + low * stride;
    for (int k = low; k <= high; ++k, row += stride) {
      const auto w = hn::Set(d, weights[k]);
      a = hn::MulAdd(w, hn::LoadU(d, row), a);
      b = hn::MulAdd(w, hn::LoadU(d, row + lanes), b);
      c = hn::MulAdd(w, hn::LoadU(d, row + 2 * lanes), c);
      e = hn::MulAdd(w, hn::LoadU(d, row + 3 * lanes), e);
    }
    hn::StoreU(hn::Mul(scales, a), d, out + x);
    hn::StoreU(hn::Mul(scales, b), d, out + x + lanes);
    hn::StoreU(hn::Mul(scales, c), d, out + x + 2 * lanes);
    hn::StoreU(hn::Mul(scales, e), d, out + x + 3 * lanes);
  }
  for (; x + lanes <= count; x += lanes) {
    auto a = hn::Zero(d);
    const float* row = in + x + low * stride;
    for (int k = low; k <= high; ++k, row += stride) a = hn::MulAdd(hn::Set(d, weights[k]), hn::LoadU(d, row), a);
    hn::StoreU(hn::Mul(scales, a), d, out + x);
  }
  for (; x < count; ++x) {
    float sum = 0;
    const float* row = in + x + low * stride;
    for (int k = low; k <= high; ++k, row += stride) sum += weights[k] * *row;
    out[x] = scale * sum;
  }
}

// The sums below are in float64: as many float32 at a time as there are float64 lanes.
using Doubles = hn::ScalableTag<double>;
using Floats = hn::Rebind<float, Doubles>;

RangeAndSums SumRun(const float* in, int64_t count, double shift) {
  const Doubles dd;
  const Floats df;
  const int64_t lanes = hn::Lanes(dd);
  const auto shifts = hn::Set(dd, shift);
  auto low = hn::Set(df, in[0]), high = low;
  auto sum0 = hn::Zero(dd), sum1 = sum0, squares0 = sum0, squares1 = sum0;
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = hn::LoadU(df, in + i), b = hn::LoadU(df, in + i + lanes);
    low = hn::Min(low, hn::Min(a, b));
    high = hn::Max(high, hn::Max(a, b));
    const auto da = hn::Sub(hn::PromoteTo(dd, a), shifts), db = hn::Sub(hn::PromoteTo(dd, b), shifts);
    sum0 = hn::Add(sum0, da);
    sum1 = hn::Add(sum1, db);
    squares0 = hn::MulAdd(da, da, squares0);
    squares1 = hn::MulAdd(db, db, squares1);
  }
  RangeAndSums s{hn::GetLane(hn::MinOfLanes(df, low)), hn::GetLane(hn::MaxOfLanes(df, high)),
                 hn::GetLane(hn::SumOfLanes(dd, hn::Add(sum0, sum1))),
                 hn::GetLane(hn::SumOfLanes(dd, hn::Add(squares0, squares1)))};
  for (; i < count; ++i) {
    s.minimum = std::min(s.minimum, in[i]);
    s.maximum = std::max(s.maximum, in[i]);
    const double d = in[i] - shift;
    s.sum += d;
    s.squares += d * d;
  }
  return s;
}

RowMass SumRowMass(const float* in, int count, double background, double threshold) {
  const Doubles dd;
  const Floats df;
  const int lanes = static_cast<int>(hn::Lanes(dd));
  const auto backgrounds = hn::Set(dd, background), thresholds = hn::Set(dd, threshold);
  const auto step = hn::Set(dd, static_cast<double>(lanes));
  auto mass = hn::Zero(dd), moment = mass, at = hn::Iota(dd, 0.0);
  int x = 0;
  for (; x + lanes <= count; x += lanes) {
    const auto difference = hn::Abs(hn::Sub(hn::PromoteTo(dd, hn::LoadU(df, in + x)), backgrounds));
    const auto w = hn::IfThenElseZero(hn::Gt(difference, thresholds), difference);
    mass = hn::Add(mass, w);
    moment = hn::MulAdd(w, at, moment);
    at = hn::Add(at, step);
  }
  RowMass s{hn::GetLane(hn::SumOfLanes(dd, mass)), hn::GetLane(hn::SumOfLanes(dd, moment))};
  for (; x < count; ++x) {
    const double w = MassOf(in[x], background, threshold);
    s.mass += w;
    s.moment += w * x;
  }
  return s;
}

double SumRowMagnitudes(const float* in, int count, const size_t (&stride)[3], const AffineMapF& to_physical) {
  const Doubles dd;
  const Floats df;
  const int lanes = static_cast<int>(hn::Lanes(dd));
  const auto& m = to_physical.m;
  auto sum = hn::Zero(dd);
  int x = 0;
  for (; x + lanes <= count; x += lanes) {
    const float* at = in + x;
    const auto dx = hn::Sub(hn::LoadU(df, at + stride[0]), hn::LoadU(df, at - stride[0]));
    const auto dy = hn::Sub(hn::LoadU(df, at + stride[1]), hn::LoadU(df, at - stride[1]));
    const auto dz = hn::Sub(hn::LoadU(df, at + stride[2]), hn::LoadU(df, at - stride[2]));
    auto square = hn::Zero(df);
    for (int c = 0; c < 3; ++c) {
      const auto g =
          hn::MulAdd(hn::Set(df, m[0][c]), dx, hn::MulAdd(hn::Set(df, m[1][c]), dy, hn::Mul(hn::Set(df, m[2][c]), dz)));
      square = hn::MulAdd(g, g, square);
    }
    sum = hn::Add(sum, hn::PromoteTo(dd, hn::Sqrt(square)));
  }
  double total = hn::GetLane(hn::SumOfLanes(dd, sum));
  for (; x < count; ++x) total += InteriorMagnitude(in + x, stride, to_physical);
  return total;
}

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;

HWY_INLINE hn::Mask<FloatTag> Inside(hn::Vec<FloatTag> index, int n) {
  const FloatTag d;
  return hn::And(hn::Ge(index, hn::Set(d, -0.5f)), hn::Le(index, hn::Set(d, n - 0.5f)));
}

// The lower of the two voxels, and the weight of the upper, for an index that is inside (see MakeLinearAxis).
HWY_INLINE hn::Vec<IntTag> LowerVoxel(hn::Vec<FloatTag> index, int n, hn::Vec<FloatTag>& weight) {
  const FloatTag d;
  const IntTag di;
  const auto clamped = hn::Min(hn::Max(index, hn::Zero(d)), hn::Set(d, static_cast<float>(n - 1)));
  const auto lower = hn::Min(hn::ConvertTo(di, clamped), hn::Set(di, std::max(n - 2, 0)));
  weight = hn::Sub(clamped, hn::ConvertTo(d, lower));
  return lower;
}

HWY_INLINE hn::Vec<FloatTag> Mix(hn::Vec<FloatTag> a, hn::Vec<FloatTag> b, hn::Vec<FloatTag> weight) {
  return hn::MulAdd(weight, hn::Sub(b, a), a);
}

// SampleLinear at indices that are inside.
HWY_INLINE hn::Vec<FloatTag> GatherLinear(const float* data, Int3 n, hn::Vec<FloatTag> ix, hn::Vec<FloatTag> iy,
                                          hn::Vec<FloatTag> iz) {
  const FloatTag d;
  const IntTag di;
  auto wx = hn::Zero(d), wy = wx, wz = wx;
  const auto z = LowerVoxel(iz, n.z, wz), y = LowerVoxel(iy, n.y, wy), x = LowerVoxel(ix, n.x, wx);
  const auto row = hn::Add(hn::Mul(z, hn::Set(di, n.y)), y);
  const auto offset = hn::Add(hn::Mul(row, hn::Set(di, n.x)), x);
  const int64_t dx = n.x > 1, dy = n.y > 1 ? n.x : 0, dz = n.z > 1 ? int64_t{n.x} * n.y : 0;
  const auto pair = [&](int64_t shift) HWY_ATTR {
    return Mix(hn::GatherIndex(d, data + shift, offset), hn::GatherIndex(d, data + shift + dx, offset), wx);
  };
  return Mix(Mix(pair(0), pair(dy), wy), Mix(pair(dz), pair(dz + dy), wy), wz);
}

void WarpLinearRow(const WarpTask& t, const IndexRow& index, const float* displacement, int count, float* out) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const Int3 n = t.moving_size;
  const auto& m = t.displacement_map.m;
  const auto fill = hn::Set(d, t.fill);
  int x = 0;
  for (; x + lanes <= count; x += lanes) {
    const auto at = hn::Iota(d, static_cast<float>(x));
    auto ix = hn::MulAdd(at, hn::Set(d, index.step.x), hn::Set(d, index.start.x));
    auto iy = hn::MulAdd(at, hn::Set(d, index.step.y), hn::Set(d, index.start.y));
    auto iz = hn::MulAdd(at, hn::Set(d, index.step.z), hn::Set(d, index.start.z));
    if (displacement != nullptr) {
      auto ux = hn::Undefined(d), uy = ux, uz = ux;
      hn::LoadInterleaved3(d, displacement + 3 * x, ux, uy, uz);
      const auto apply = [&](const float(&r)[4], hn::Vec<FloatTag> start) HWY_ATTR {
        return hn::MulAdd(hn::Set(d, r[0]), ux,
                          hn::MulAdd(hn::Set(d, r[1]), uy, hn::MulAdd(hn::Set(d, r[2]), uz, start)));
      };
      ix = apply(m[0], ix);
      iy = apply(m[1], iy);
      iz = apply(m[2], iz);
    }
    const auto inside = hn::And(Inside(ix, n.x), hn::And(Inside(iy, n.y), Inside(iz, n.z)));
    if (hn::AllFalse(d, inside)) {
      hn::StoreU(fill, d, out + x);
      continue;
    }
    // Lanes outside read voxel 0.
    const auto value = GatherLinear(t.moving, n, hn::IfThenElseZero(inside, ix), hn::IfThenElseZero(inside, iy),
                                    hn::IfThenElseZero(inside, iz));
    hn::StoreU(hn::IfThenElse(inside, value, fill), d, out + x);
  }
  for (; x < count; ++x) {
    Vec3f at = index(x);
    if (displacement != nullptr) {
      const float* u = displacement + 3 * x;
      at = at + t.displacement_map.Linear({u[0], u[1], u[2]});
    }
    out[x] = SampleOr<Interpolation::kLinear>(t.moving, n, at, t.fill);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace intrawarp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {

HWY_EXPORT(WeightedRows);
HWY_EXPORT(SumRun);
HWY_EXPORT(SumRowMass);
HWY_EXPORT(SumRowMagnitudes);
HWY_EXPORT(WarpLinearRow);

void WeightedRows(const float* in, int64_t stride, const float* weights, int low, int high, float scale, int64_t count,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(WeightedRows)(in, stride, weights, low, high, scale, count, out);
}

RangeAndSums SumRun(const float* in, int64_t count, double shift) {
  return HWY_DYNAMIC_DISPATCH(SumRun)(in, count, shift);
}

RowMass SumRowMass(const float* in, int count, double background, double threshold) {
  return HWY_DYNAMIC_DISPATCH(SumRowMass)(in, count, background, threshold);
}

double SumRowMagnitudes(const float* in, int count, const size_t (&stride)[3], const AffineMapF& to_physical) {
  return HWY_DYNAMIC_DISPATCH(SumRowMagnitudes)(in, count, stride, to_physical);
}

void WarpLinearRow(const WarpTask& task, const IndexRow& index, const float* displacement, int count, float* out) {
  HWY_DYNAMIC_DISPATCH(WarpLinearRow)(task, index, displacement, count, out);
}

}  // namespace intrawarp::cpu
#endif
