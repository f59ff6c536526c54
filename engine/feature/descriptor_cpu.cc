// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/feature/descriptor_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/feature/descriptor_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors of any number of voxels, and of one: the ends of a row are done voxel by voxel.
using Many = hn::ScalableTag<float>;
using One = hn::CappedTag<float, 1>;

// The offsets from a voxel of a row to the voxels `distance` away from it, clamped to the image. A step on x goes
// x_below or x_above voxels.
class ClampedNeighbors {
 public:
  ClampedNeighbors(Int3 size, int y, int z, int distance, int x_below, int x_above)
      : row_(size.x),
        plane_(int64_t{size.x} * size.y),
        below_{x_below, std::min(distance, y), std::min(distance, z)},
        above_{x_above, std::min(distance, size.y - 1 - y), std::min(distance, size.z - 1 - z)} {}
  // d is a step of -1, 0 or 1 distances on each axis.
  HWY_INLINE int64_t operator()(Int3 d) const {
    return d.x * (d.x < 0 ? below_.x : above_.x) + d.y * (d.y < 0 ? below_.y : above_.y) * row_ +
           d.z * (d.z < 0 ? below_.z : above_.z) * plane_;
  }

 private:
  int64_t row_, plane_;
  Int3 below_, above_;
};

// body(tag, neighbors, x) for the voxels of a row, from x on as many as the tag has lanes.
template <class Body>
HWY_INLINE void EachInRow(Int3 size, int y, int z, int distance, const Body& body) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(Many()));
  const ClampedNeighbors inner(size, y, z, distance, distance, distance);
  for (int x = 0; x < size.x;) {
    if (x >= distance && x + kLanes <= size.x - distance) {
      body(Many(), inner, x);
      x += kLanes;
    } else {
      body(One(), ClampedNeighbors(size, y, z, distance, std::min(distance, x), std::min(distance, size.x - 1 - x)), x);
      ++x;
    }
  }
}

// Volumes of the differences lie one behind the other, here and below.
void DifferencesRow(const float* image, Int3 size, int distance, int y, int z, float* out) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z, row = (int64_t{z} * size.y + y) * size.x;
  EachInRow(size, y, z, distance, [&](auto d, const ClampedNeighbors& n, int x) HWY_ATTR {
    const float* const here = image + row + x;
    for (int k = 0; k < kDescriptorDifferences; ++k) {
      const auto difference = hn::Sub(hn::LoadU(d, here), hn::LoadU(d, here + n(DifferenceOf(k))));
      hn::StoreU(hn::Mul(difference, difference), d, out + k * voxels + row + x);
    }
  });
}

// The means of the differences over the 3 x 3 x 3 voxels around each voxel of a row. `along` holds size.x floats.
void MeansRow(const float* differences, Int3 size, int y, int z, float* along, float* means) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z, row = (int64_t{z} * size.y + y) * size.x;
  for (int k = 0; k < kDescriptorDifferences; ++k) {
    const float* rows[9];
    for (int i = 0; i < 9; ++i) {
      rows[i] = differences + k * voxels + ClampedPlace(size, 0, y + i % 3 - 1, z + i / 3 - 1);
    }
    EachInRow(size, y, z, 0, [&](auto d, const ClampedNeighbors&, int x) HWY_ATTR {
      auto sum = hn::LoadU(d, rows[0] + x);
      for (int i = 1; i < 9; ++i) sum = hn::Add(sum, hn::LoadU(d, rows[i] + x));
      hn::StoreU(sum, d, along + x);
    });
    float* const out = means + k * voxels + row;
    EachInRow(size, y, z, 1, [&](auto d, const ClampedNeighbors& n, int x) HWY_ATTR {
      const float* const at = along + x;
      const auto sum =
          hn::Add(hn::Add(hn::LoadU(d, at + n({-1, 0, 0})), hn::LoadU(d, at)), hn::LoadU(d, at + n({1, 0, 0})));
      hn::StoreU(hn::Mul(sum, hn::Set(d, 1.0f / 27)), d, out + x);
    });
  }
}

// The mean of the differences of channel c at voxels from `at` on.
template <class D>
HWY_INLINE hn::Vec<D> MeanOf(D d, const float* at, int64_t voxels, const ClampedNeighbors& n, int c) {
  return hn::LoadU(d, at + (c / 2) * voxels + n(FirstNeighbour(c)));
}

// The least mean of the channels, and v.
template <class D>
struct Spread {
  hn::Vec<D> least, variation;
};

template <class D>
HWY_INLINE Spread<D> SpreadAt(D d, const float* at, int64_t voxels, const ClampedNeighbors& n) {
  hn::Vec<D> least = MeanOf(d, at, voxels, n, 0), sum = least;
  for (int c = 1; c < kDescriptorChannels; ++c) {
    const hn::Vec<D> mean = MeanOf(d, at, voxels, n, c);
    least = hn::Min(least, mean);
    sum = hn::Add(sum, mean);
  }
  const hn::Vec<D> variation = hn::Sub(hn::Mul(sum, hn::Set(d, 1.0f / kDescriptorChannels)), least);
  return {least, hn::Max(variation, hn::Zero(d))};
}

// `out` is a row of floats.
void VariationsRow(const float* means, Int3 size, int distance, int y, int z, float* out) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z, row = (int64_t{z} * size.y + y) * size.x;
  EachInRow(size, y, z, distance, [&](auto d, const ClampedNeighbors& n, int x) HWY_ATTR {
    hn::StoreU(SpreadAt(d, means + row + x, voxels, n).variation, d, out + x);
  });
}

// e^x for x <= 0, to 3e-7 of itself; below -80 e^-80. It is 2^n 2^f, with n the integer nearest to x / ln 2 and 2^f by
// its Taylor series, highest power first.
template <class D>
HWY_INLINE hn::Vec<D> Exp(D d, hn::Vec<D> x) {
  constexpr float kLog2E = 1.44269504f, kLeastExponent = -80;
  constexpr float kSeries[] = {
      1.54035304e-4f, 1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 0.240226507f, 0.693147181f, 1};
  const hn::RebindToSigned<D> di;
  const hn::Vec<D> t = hn::Mul(hn::Set(d, kLog2E), hn::Max(x, hn::Set(d, kLeastExponent)));
  const auto n = hn::NearestInt(t);
  const hn::Vec<D> f = hn::Sub(t, hn::ConvertTo(d, n));
  hn::Vec<D> p = hn::Set(d, kSeries[0]);
  for (int i = 1; i < 7; ++i) p = hn::MulAdd(p, f, hn::Set(d, kSeries[i]));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127)))));
}

// The channels of a row in steps of 1/255, one row of floats a channel.
void ChannelsRow(const float* means, Int3 size, int distance, float floor, int y, int z, float* out) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z, row = (int64_t{z} * size.y + y) * size.x;
  EachInRow(size, y, z, distance, [&](auto d, const ClampedNeighbors& n, int x) HWY_ATTR {
    const float* const at = means + row + x;
    const auto [least, variation] = SpreadAt(d, at, voxels, n);
    const auto scale = hn::Div(hn::Set(d, -1.0f), hn::Max(variation, hn::Set(d, floor)));
    for (int c = 0; c < kDescriptorChannels; ++c) {
      const auto value = Exp(d, hn::Mul(scale, hn::Sub(MeanOf(d, at, voxels, n, c), least)));
      hn::StoreU(hn::MulAdd(value, hn::Set(d, 255.0f), hn::Set(d, 0.5f)), d, out + c * size.x + x);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(DifferencesRow);
HWY_EXPORT(MeansRow);
HWY_EXPORT(VariationsRow);
HWY_EXPORT(ChannelsRow);

// body(row, y, z) for each row of voxels.
template <typename Body>
void ForRows(Int3 size, const Body& body) {
  ParallelFor(int64_t{size.y} * size.z,
              [&](int64_t row) { body(row, static_cast<int>(row % size.y), static_cast<int>(row / size.y)); });
}

// The noise from the variations in `out`.
float NoiseOf(const Descriptor* out, const uint8_t* valid, int64_t voxels, int* counts) {
  std::fill_n(counts, kNoiseBins, 0);
  int64_t total = 0;
  for (int64_t i = 0; i < voxels; ++i) {
    if (valid[i] == 0) continue;
    ++counts[NoiseBin(out[i].variation)];
    ++total;
  }
  if (total == 0) return 0;
  const double rank = kNoiseQuantile * static_cast<double>(total);
  int64_t below = 0;
  int bin = 0;
  while (static_cast<double>(below + counts[bin]) < rank) below += counts[bin++];
  return NoiseIn(bin, rank, below, counts[bin]);
}

}  // namespace

absl::Status ComputeDescriptors(const ExecContext&, const float* image, const uint8_t* valid, Int3 size, int distance,
                                float floor, const DescriptorWorkspace& workspace, Descriptor* out, float* noise) {
  const size_t floats = static_cast<size_t>(kDescriptorChannels) * size.x + 2;
  ForRows(size, [&](int64_t, int y, int z) {
    HWY_DYNAMIC_DISPATCH(DifferencesRow)(image, size, distance, y, z, workspace.sums);
  });
  ForRows(size, [&](int64_t, int y, int z) {
    HWY_DYNAMIC_DISPATCH(MeansRow)(workspace.sums, size, y, z, ThreadScratch<float>(floats), workspace.means);
  });
  ForRows(size, [&](int64_t row, int y, int z) {
    auto* variations = ThreadScratch<float>(floats);
    HWY_DYNAMIC_DISPATCH(VariationsRow)(workspace.means, size, distance, y, z, variations);
    for (int x = 0; x < size.x; ++x) out[row * size.x + x].variation = variations[x];
  });
  *noise = NoiseOf(out, valid, int64_t{size.x} * size.y * size.z, workspace.counts);
  const float raised = std::max(floor, kFloorNoises * *noise);
  ForRows(size, [&](int64_t row, int y, int z) {
    auto* channels = ThreadScratch<float>(floats);
    HWY_DYNAMIC_DISPATCH(ChannelsRow)(workspace.means, size, distance, raised, y, z, channels);
    for (int x = 0; x < size.x; ++x) {
      for (int c = 0; c < kDescriptorChannels; ++c) {
        out[row * size.x + x].channel[c] = static_cast<uint8_t>(channels[c * size.x + x]);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
#endif  // HWY_ONCE
