// SPDX-License-Identifier: Apache-2.0
#include "engine/image/row_simd.h"

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

}  // namespace HWY_NAMESPACE
}  // namespace intrawarp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {

HWY_EXPORT(WeightedRows);

void WeightedRows(const float* in, int64_t stride, const float* weights, int low, int high, float scale, int64_t count,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(WeightedRows)(in, stride, weights, low, high, scale, count, out);
}

}  // namespace intrawarp::cpu
#endif
