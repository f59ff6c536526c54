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

// The cubic interpolation of a vector of voxels along one axis: the lower of the two voxels between which each index
// lies, and the weights of the four coefficients around it.
struct CubicAxes {
  static constexpr size_t kLanes = hn::MaxLanes(FloatTag());
  HWY_ALIGN int32_t lower[kLanes];
  HWY_ALIGN float weights[4][kLanes];

  void Set(hn::Vec<FloatTag> index, int n) {
    const FloatTag d;
    auto t = hn::Zero(d);
    hn::Store(LowerVoxel(index, n, t), IntTag(), lower);
    const auto sixth = hn::Set(d, 1.0f / 6), four = hn::Set(d, 4.0f), three = hn::Set(d, 3.0f), six = hn::Set(d, 6.0f);
    const auto s = hn::Sub(hn::Set(d, 1.0f), t), t2 = hn::Mul(t, t), s2 = hn::Mul(s, s);
    const auto inner = [&](hn::Vec<FloatTag> u, hn::Vec<FloatTag> u2)
                           HWY_ATTR { return hn::Mul(sixth, hn::MulAdd(u2, hn::MulSub(three, u, six), four)); };
    hn::Store(hn::Mul(sixth, hn::Mul(s2, s)), d, weights[0]);
    hn::Store(inner(t, t2), d, weights[1]);
    hn::Store(inner(s, s2), d, weights[2]);
    hn::Store(hn::Mul(sixth, hn::Mul(t2, t)), d, weights[3]);
  }
  // Coefficients, mirrored about the outermost voxels.
  void At(int lane, int n, int64_t (&at)[4]) const {
    const int i = lower[lane], upper = n > 1 ? i + 1 : i;
    at[0] = i > 0 ? i - 1 : upper;
    at[1] = i;
    at[2] = upper;
    at[3] = upper + 1 < n ? upper + 1 : i;
  }
};

// SampleCubic of one lane.
HWY_INLINE float SampleLane(const float* coefficients, Int3 n, const CubicAxes (&axes)[3], int lane) {
  const int64_t row = n.x, plane = row * n.y;
  int64_t y[4], z[4];
  axes[1].At(lane, n.y, y);
  axes[2].At(lane, n.z, z);
  const auto& wx = axes[0].weights;
  const auto& wy = axes[1].weights;
  const auto& wz = axes[2].weights;
  [[maybe_unused]] const int x = axes[0].lower[lane] - 1;
#if HWY_TARGET != HWY_SCALAR
  if (x >= 0 && x + 3 < n.x) {
    const hn::FixedTag<float, 4> d;
    const auto w0 = hn::Set(d, wy[0][lane]), w1 = hn::Set(d, wy[1][lane]), w2 = hn::Set(d, wy[2][lane]),
               w3 = hn::Set(d, wy[3][lane]);
    auto sum = hn::Zero(d);
    for (int k = 0; k < (n.z > 1 ? 4 : 1); ++k) {
      const float* p = coefficients + z[k] * plane + x;
      const auto low = hn::MulAdd(w1, hn::LoadU(d, p + y[1] * row), hn::Mul(w0, hn::LoadU(d, p + y[0] * row)));
      const auto high = hn::MulAdd(w3, hn::LoadU(d, p + y[3] * row), hn::Mul(w2, hn::LoadU(d, p + y[2] * row)));
      sum = hn::MulAdd(hn::Set(d, n.z > 1 ? wz[k][lane] : 1.0f), hn::Add(low, high), sum);
    }
    const float w[4] = {wx[0][lane], wx[1][lane], wx[2][lane], wx[3][lane]};
    return hn::GetLane(hn::SumOfLanes(d, hn::Mul(hn::LoadU(d, w), sum)));
  }
#endif
  int64_t at[4];
  axes[0].At(lane, n.x, at);
  float sum = 0;
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 4; ++j) {
      const float* p = coefficients + z[k] * plane + y[j] * row;
      float along_x = 0;
      for (int i = 0; i < 4; ++i) along_x += wx[i][lane] * p[at[i]];
      sum += wz[k][lane] * wy[j][lane] * along_x;
    }
  }
  return sum;
}

void WarpCubicRow(const WarpTask& t, const IndexRow& index, const float* displacement, int count, float* out) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const Int3 n = t.moving_size;
  CubicAxes axes[3];
  HWY_ALIGN float at[3][CubicAxes::kLanes];
  for (int begin = 0; begin < count; begin += lanes) {
    const int used = std::min(lanes, count - begin);
    uint64_t inside = 0;
    for (int i = 0; i < lanes; ++i) {
      Vec3f v = index(begin + std::min(i, used - 1));
      if (displacement != nullptr) {
        const float* u = displacement + 3 * (begin + std::min(i, used - 1));
        v = v + t.displacement_map.Linear({u[0], u[1], u[2]});
      }
      const bool is_inside = IsInside(n, v);
      inside |= static_cast<uint64_t>(is_inside) << i;
      // Lanes outside look at voxel 0.
      for (int a = 0; a < 3; ++a) at[a][i] = is_inside ? v[a] : 0.0f;
    }
    for (int a = 0; a < 3; ++a) axes[a].Set(hn::Load(d, at[a]), n[a]);
    for (int i = 0; i < used; ++i) {
      out[begin + i] = inside >> i & 1 ? SampleLane(t.moving, n, axes, i) : t.fill;
    }
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
HWY_EXPORT(WarpCubicRow);

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

void WarpCubicRow(const WarpTask& task, const IndexRow& index, const float* displacement, int count, float* out) {
  HWY_DYNAMIC_DISPATCH(WarpCubicRow)(task, index, displacement, count, out);
}

}  // namespace intrawarp::cpu
#endif
