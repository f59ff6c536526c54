// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>

#include "engine/device/parallel.h"
#include "engine/image/row_simd.h"
#include "engine/image/warp_kernels.h"

namespace intrawarp::cpu {
namespace {

// body(index, displacement of the row's first voxel or null, out) for each row.
template <typename Body>
void ForRows(const WarpTask& t, const Body& body) {
  const Int3 n = t.out_size;
  ParallelFor(int64_t{n.y} * n.z, [&](int64_t row) {
    const IndexRow index(t.index_map, static_cast<int>(row % n.y), static_cast<int>(row / n.y));
    body(index, t.displacement == nullptr ? nullptr : t.displacement + row * n.x * 3, t.out + row * n.x);
  });
}

template <Interpolation kInterpolation>
void WarpRow(const WarpTask& t, const IndexRow& index, const float* u, float* out) {
  for (int x = 0; x < t.out_size.x; ++x) {
    Vec3f at = index(x);
    if (u != nullptr) at = at + t.displacement_map.Linear({u[3 * x], u[3 * x + 1], u[3 * x + 2]});
    out[x] = SampleOr<kInterpolation>(t.moving, t.moving_size, at, t.fill);
  }
}

bool FitsGather(Int3 n) { return int64_t{n.x} * n.y * n.z <= std::numeric_limits<int32_t>::max(); }

}  // namespace

void WarpLinear(const WarpTask& task, const IndexRow& index, const float* displacement, float* out) {
  if (FitsGather(task.moving_size)) {
    WarpLinearRow(task, index, displacement, task.out_size.x, out);
  } else {
    WarpRow<Interpolation::kLinear>(task, index, displacement, out);
  }
}

absl::Status Warp(const ExecContext&, const WarpTask& task, Interpolation interpolation) {
  if (interpolation == Interpolation::kNearest) {
    ForRows(task, [&](const IndexRow& index, const float* u, float* out) {
      WarpRow<Interpolation::kNearest>(task, index, u, out);
    });
  } else if (interpolation == Interpolation::kCubic) {
    ForRows(task, [&](const IndexRow& index, const float* u, float* out) {
      WarpCubicRow(task, index, u, task.out_size.x, out);
    });
  } else {
    ForRows(task, [&](const IndexRow& index, const float* u, float* out) { WarpLinear(task, index, u, out); });
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
