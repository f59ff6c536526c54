// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/vector_rows.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/transform/vector_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));

// As MakeLinearAxis.
HWY_INLINE VI LowerVoxel(VF index, int n, float* HWY_RESTRICT weight) {
  const DF d;
  const DI di;
  const VF clamped = hn::Min(hn::Max(index, hn::Zero(d)), hn::Set(d, static_cast<float>(n - 1)));
  const VI lower = hn::Min(hn::ConvertTo(di, clamped), hn::Set(di, std::max(n - 2, 0)));
  hn::Store(hn::Sub(clamped, hn::ConvertTo(d, lower)), d, weight);
  return lower;
}

// Samples of a vector of voxels to buffer[3 i + c]; the buffer has one float more.
struct Samples {
  HWY_ALIGN float wx[kLanes], wy[kLanes], wz[kLanes];
  HWY_ALIGN int32_t lower[kLanes];
  HWY_ALIGN float value[3 * kLanes + 16];
};

class Sampler {
 public:
  Sampler(const float* field, Int3 size)
      : field_(field),
        size_(size),
        dx_(size.x > 1 ? 3 : 0),
        dy_(size.y > 1 ? 3 * int64_t{size.x} : 0),
        dz_(size.z > 1 ? 3 * int64_t{size.x} * size.y : 0),
        last_(3 * int64_t{size.x} * size.y * size.z - 4 - dx_ - dy_ - dz_) {}

  HWY_INLINE void operator()(VF ix, VF iy, VF iz, Samples* s) const {
    const DI di;
    const VI x = LowerVoxel(ix, size_.x, s->wx), y = LowerVoxel(iy, size_.y, s->wy), z = LowerVoxel(iz, size_.z, s->wz);
    const VI row = hn::Add(hn::Mul(z, hn::Set(di, size_.y)), y);
    hn::Store(hn::Add(hn::Mul(row, hn::Set(di, size_.x)), x), di, s->lower);
    for (int i = 0; i < kLanes; ++i) Sample(*s, i, s->value + 3 * i);
  }

 private:
  HWY_INLINE void Sample(const Samples& s, int i, float* HWY_RESTRICT out) const {
    const int64_t offset = 3 * int64_t{s.lower[i]};
    const float* const p = field_ + offset;
#if HWY_TARGET != HWY_SCALAR
    // Loads take one float more than the three.
    if (HWY_LIKELY(offset <= last_)) {
      const hn::FixedTag<float, 4> d;
      const auto wx = hn::Set(d, s.wx[i]), wy = hn::Set(d, s.wy[i]), wz = hn::Set(d, s.wz[i]);
      const auto pair = [&](const float* q) HWY_ATTR {
        const auto a = hn::LoadU(d, q);
        return hn::MulAdd(wx, hn::Sub(hn::LoadU(d, q + dx_), a), a);
      };
      const auto c00 = pair(p), c01 = pair(p + dy_), c10 = pair(p + dz_), c11 = pair(p + dz_ + dy_);
      const auto c0 = hn::MulAdd(wy, hn::Sub(c01, c00), c00), c1 = hn::MulAdd(wy, hn::Sub(c11, c10), c10);
      hn::StoreU(hn::MulAdd(wz, hn::Sub(c1, c0), c0), d, out);
      return;
    }
#endif
    for (int c = 0; c < 3; ++c) {
      const auto pair = [&](const float* q) { return q[c] + s.wx[i] * (q[dx_ + c] - q[c]); };
      const float c00 = pair(p), c01 = pair(p + dy_), c10 = pair(p + dz_), c11 = pair(p + dz_ + dy_);
      const float c0 = c00 + s.wy[i] * (c01 - c00), c1 = c10 + s.wy[i] * (c11 - c10);
      out[c] = c0 + s.wz[i] * (c1 - c0);
    }
  }

  const float* field_;
  Int3 size_;
  int64_t dx_, dy_, dz_;
  // The last offset at which all loads of four floats are inside the field.
  int64_t last_;
};

void ComposeRow(const float* inner, const float* outer, Int3 size, int y, int z, ComposeScales scales,
                float* HWY_RESTRICT out) {
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const Sampler sample(outer, size);
  const VF position = hn::Set(d, scales.position), s_inner = hn::Set(d, scales.inner),
           s_outer = hn::Set(d, scales.outer);
  const VF at_y = hn::Set(d, static_cast<float>(y)), at_z = hn::Set(d, static_cast<float>(z));
  Samples samples;
  int x = 0;
  if (lanes == kLanes) {
    for (; x + kLanes <= size.x; x += kLanes) {
      VF ax, ay, az;
      hn::LoadInterleaved3(d, inner + 3 * x, ax, ay, az);
      sample(hn::MulAdd(position, ax, hn::Iota(d, static_cast<float>(x))), hn::MulAdd(position, ay, at_y),
             hn::MulAdd(position, az, at_z), &samples);
      for (int k = 0; k < 3 * kLanes; k += kLanes) {
        const VF a = hn::Mul(s_inner, hn::LoadU(d, inner + 3 * x + k));
        hn::StoreU(hn::MulAdd(s_outer, hn::Load(d, samples.value + k), a), d, out + 3 * x + k);
      }
    }
  }
  for (; x < size.x; ++x) {
    const Vec3f at{static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)};
    StoreVector(ComposeVoxel(LoadVector(inner + 3 * x), outer, size, at, scales), out + 3 * x);
  }
}

float LargestOf(const float* in, int64_t count) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF largest = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, hn::Abs(hn::LoadU(d, in + i)));
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) result = std::max(result, std::abs(in[i]));
  return result;
}

float AddAndLargest(const float* HWY_RESTRICT add, int64_t count, float* HWY_RESTRICT io) {
  if (add == nullptr) return LargestOf(io, count);
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF largest = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VF sum = hn::Add(hn::LoadU(d, io + i), hn::LoadU(d, add + i));
    hn::StoreU(sum, d, io + i);
    largest = hn::Max(largest, hn::Abs(sum));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) {
    io[i] += add[i];
    result = std::max(result, std::abs(io[i]));
  }
  return result;
}

}  // namespace HWY_NAMESPACE
}  // namespace intrawarp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {

HWY_EXPORT(ComposeRow);
HWY_EXPORT(LargestOf);
HWY_EXPORT(AddAndLargest);

void ComposeRow(const float* inner, const float* outer, Int3 size, int y, int z, ComposeScales scales, float* out) {
  HWY_DYNAMIC_DISPATCH(ComposeRow)(inner, outer, size, y, z, scales, out);
}

float LargestOf(const float* in, int64_t count) { return HWY_DYNAMIC_DISPATCH(LargestOf)(in, count); }

float AddAndLargest(const float* add, int64_t count, float* io) {
  return HWY_DYNAMIC_DISPATCH(AddAndLargest)(add, count, io);
}

}  // namespace intrawarp::cpu
#endif
