// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/image/warp_kernels.h"

namespace intrawarp::cpu {
namespace {

template <Interpolation kInterpolation>
void WarpRows(const WarpTask& t) {
  const Int3 n = t.out_size;
  ParallelFor(int64_t{n.y} * n.z, [&](int64_t row) {
    const IndexRow index(t.index_map, static_cast<int>(row % n.y), static_cast<int>(row / n.y));
    float* out = t.out + row * n.x;
    if (t.displacement == nullptr) {
      for (int x = 0; x < n.x; ++x) out[x] = SampleOr<kInterpolation>(t.moving, t.moving_size, index(x), t.fill);
      return;
    }
    const float* u = t.displacement + row * n.x * 3;
    for (int x = 0; x < n.x; ++x, u += 3) {
      const Vec3f at = index(x) + t.displacement_map.Linear({u[0], u[1], u[2]});
      out[x] = SampleOr<kInterpolation>(t.moving, t.moving_size, at, t.fill);
    }
  });
}

}  // namespace

absl::Status Warp(const ExecContext&, const WarpTask& task, Interpolation interpolation) {
  interpolation == Interpolation::kLinear ? WarpRows<Interpolation::kLinear>(task)
                                          : WarpRows<Interpolation::kNearest>(task);
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
