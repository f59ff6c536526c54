// SPDX-License-Identifier: Apache-2.0
// The CPU's version of convolution_schemes.h: consecutive voxels of a row are the lanes of a vector.
#include <algorithm>

#include "engine/device/parallel.h"
#include "tests/bench/baselines/convolution_schemes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/baselines/convolution_vector.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp::baselines::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Compiled with -ffp-contract=off.
template <class D>
struct Ops {
  using V = hn::Vec<D>;
  static HWY_INLINE V Add(V a, V b) { return hn::Add(a, b); }
  static HWY_INLINE V Sub(V a, V b) { return hn::Sub(a, b); }
  static HWY_INLINE V Mul(V a, V b) { return hn::Mul(a, b); }
  static HWY_INLINE V MulAdd(V a, V b, V c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE V Zero() { return hn::Zero(D()); }
};
#undef BASELINES_INLINE
#define BASELINES_INLINE HWY_INLINE
#include "tests/bench/baselines/convolution_summation.inc"

// As many voxels as there are lanes: out[x] = sum over k in [0, taps) of window[k] in[x + k stride].
template <Summation kSummation, class D>
HWY_INLINE void SumVector(D d, const float* in, int64_t stride, const float* window, int taps, float* out) {
  Accumulator<kSummation, Ops<D>> sum;
  for (int k = 0; k < taps; ++k, in += stride) sum.Add(hn::LoadU(d, in), hn::Set(d, window[k]));
  hn::StoreU(sum.Result(), d, out);
}

template <Summation kSummation>
void SumRow(const float* in, int64_t stride, const float* window, int taps, int count, float* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int x = 0;
  for (; x + lanes <= count; x += lanes) SumVector<kSummation>(d, in + x, stride, window, taps, out + x);
  for (; x < count; ++x) SumVector<kSummation>(one, in + x, stride, window, taps, out + x);
}

void SumRowWith(Summation summation, const float* in, int64_t stride, const float* window, int taps, int count,
                float* out) {
  switch (summation) {
    case Summation::kPlain:
      return SumRow<Summation::kPlain>(in, stride, window, taps, count, out);
    case Summation::kKahan:
      return SumRow<Summation::kKahan>(in, stride, window, taps, count, out);
    case Summation::kPichat:
      return SumRow<Summation::kPichat>(in, stride, window, taps, count, out);
    case Summation::kFma:
      return SumRow<Summation::kFma>(in, stride, window, taps, count, out);
    case Summation::kPichatFma:
      return SumRow<Summation::kPichatFma>(in, stride, window, taps, count, out);
    case Summation::kKahanFma:
      return SumRow<Summation::kKahanFma>(in, stride, window, taps, count, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace intrawarp::baselines::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::baselines::cpu {
namespace {

HWY_EXPORT(SumRowWith);

// Along x, where the neighbours of a row's ends are missing, a copy of the row with zeros on both sides is summed.
void ConvolveRowX(Summation summation, const Convolution& c, const float* in, float* out) {
  const int radius = c.radius();
  std::vector<float> padded(c.size.x + 2 * radius);
  std::copy(in, in + c.size.x, padded.begin() + radius);
  HWY_DYNAMIC_DISPATCH(SumRowWith)
  (summation, padded.data(), 1, c.window.data(), 2 * radius + 1, c.size.x, out);
}

void ConvolveRowAcross(Summation summation, const Convolution& c, int at, int64_t stride, const float* in, float* out) {
  const int radius = c.radius(), low = std::max(0, radius - at);
  const int high = std::min(2 * radius + 1, c.size[c.axis] - at + radius);
  HWY_DYNAMIC_DISPATCH(SumRowWith)
  (summation, in + (low - radius) * stride, stride, &c.window[low], high - low, c.size.x, out);
}

}  // namespace

absl::StatusOr<Work> MakeConvolution(const ExecContext&, Summation summation, WindowLoop,
                                     const Convolution& convolution, const float* in, float* out) {
  return Work([=, c = convolution] {
    const int64_t rows = int64_t{c.size.y} * c.size.z, stride = c.axis == 1 ? c.size.x : int64_t{c.size.x} * c.size.y;
    ParallelFor(3 * rows, [&](int64_t r) {  // rows of all three planes
      const float* row = in + r * c.size.x;
      const int y = static_cast<int>(r % c.size.y), z = static_cast<int>(r / c.size.y % c.size.z);
      if (c.axis == 0) return ConvolveRowX(summation, c, row, out + r * c.size.x);
      ConvolveRowAcross(summation, c, c.axis == 1 ? y : z, stride, row, out + r * c.size.x);
    });
    return absl::OkStatus();
  });
}

}  // namespace intrawarp::baselines::cpu
#endif
