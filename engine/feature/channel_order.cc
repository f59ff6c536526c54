// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/channel_order.h"

#include <algorithm>
#include <cmath>

#include "engine/device/parallel.h"
#include "engine/feature/channel_order_kernels.h"
#include "engine/feature/descriptor_kernels.h"

namespace intrawarp {
namespace {

// Axis i of one grid runs along axis[i] of another, backwards where sign[i] is -1.
struct AxisExchange {
  int axis[3] = {0, 1, 2};
  int sign[3] = {1, 1, 1};

  Int3 operator()(Int3 step) const {
    Int3 exchanged;
    for (int i = 0; i < 3; ++i) exchanged[axis[i]] = sign[i] * step[i];
    return exchanged;
  }
};

Vec3d Column(const Geometry& g, int c) { return {g.direction[0][c], g.direction[1][c], g.direction[2][c]}; }

AxisExchange NearestExchange(const Geometry& fixed, const Geometry& moving, const AffineMap& map) {
  double along[3][3];
  for (int f = 0; f < 3; ++f) {
    for (int m = 0; m < 3; ++m) along[f][m] = Dot(Column(moving, m), map.Linear(Column(fixed, f)));
  }
  AxisExchange nearest;
  double best = 0;
  int axis[3] = {0, 1, 2};
  do {
    const double sum = std::abs(along[0][axis[0]]) + std::abs(along[1][axis[1]]) + std::abs(along[2][axis[2]]);
    // A tie, at 45 degrees, keeps the earlier one on every device.
    if (!(sum > best * (1 + 1e-9))) continue;
    best = sum;
    for (int f = 0; f < 3; ++f) {
      nearest.axis[f] = axis[f];
      nearest.sign[f] = along[f][axis[f]] < 0 ? -1 : 1;
    }
  } while (std::next_permutation(axis, axis + 3));
  return nearest;
}

// The channel between two neighbours.
int ChannelBetween(Int3 a, Int3 b) {
  for (int c = 0; c < kDescriptorChannels; ++c) {
    const Int3 first = FirstNeighbour(c), second = SumOf(first, DifferenceOf(c / 2));
    if ((first == a && second == b) || (first == b && second == a)) return c;
  }
  return 0;
}

}  // namespace

ChannelOrder OrderOfChannels(const Geometry& fixed, const Geometry& moving, const AffineMap& map) {
  const AxisExchange exchange = NearestExchange(fixed, moving, map);
  ChannelOrder order;
  for (int c = 0; c < kDescriptorChannels; ++c) {
    const Int3 first = FirstNeighbour(c), second = SumOf(first, DifferenceOf(c / 2));
    order.from[c] = static_cast<uint8_t>(ChannelBetween(exchange(first), exchange(second)));
  }
  return order;
}

absl::Status ReorderChannels(const ExecContext& ctx, const ChannelOrder& order, int64_t count,
                             Descriptor* descriptors) {
  if (count == 0 || order == ChannelOrder()) return absl::OkStatus();
  return INTRAWARP_DISPATCH(ctx, ReorderChannels, order, count, descriptors);
}

namespace cpu {

absl::Status ReorderChannels(const ExecContext&, const ChannelOrder& order, int64_t count, Descriptor* descriptors) {
  constexpr int64_t kRun = 1 << 14;
  ParallelFor((count + kRun - 1) / kRun, [&](int64_t run) {
    for (int64_t i = run * kRun; i < std::min(count, (run + 1) * kRun); ++i) {
      descriptors[i] = Reordered(descriptors[i], order);
    }
  });
  return absl::OkStatus();
}

}  // namespace cpu
}  // namespace intrawarp
