// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/device/parallel.h"
#include "engine/image/pyramid_kernels.h"

namespace intrawarp::cpu {
namespace {

// out[x] = the sum of in[2 x] and in[2 x + 1], or in[x].
template <bool kHalveX>
float Pair(const float* in, int x) {
  return kHalveX ? in[2 * x] + in[2 * x + 1] : in[x];
}

// The mean of whole voxels: `rows` is 1, 2 or 4 rows of the in volume.
template <bool kHalveX, int kRows>
void AverageRows(const float* const (&rows)[4], int count, float* out) {
  constexpr float kScale = 1.0f / (kRows * (kHalveX ? 2 : 1));
  for (int x = 0; x < count; ++x) {
    float sum = Pair<kHalveX>(rows[0], x);
    if (kRows > 1) sum += Pair<kHalveX>(rows[1], x);
    if (kRows > 2) sum += Pair<kHalveX>(rows[2], x) + Pair<kHalveX>(rows[3], x);
    out[x] = kScale * sum;
  }
}

template <bool kHalveX>
void AverageRows(const float* const (&rows)[4], int row_count, int count, float* out) {
  if (row_count == 4) return AverageRows<kHalveX, 4>(rows, count, out);
  if (row_count == 2) return AverageRows<kHalveX, 2>(rows, count, out);
  AverageRows<kHalveX, 1>(rows, count, out);
}

void AverageWhole(ConstVolumeView in, VolumeView out, const Boxes& box, int y, int z) {
  const Int3 n = in.geometry.size;
  const int step_y = box.y.halved() ? 2 : 1, step_z = box.z.halved() ? 2 : 1;
  const float* rows[4] = {};
  int count = 0;
  for (int k = 0; k < step_z; ++k)
    for (int j = 0; j < step_y; ++j) rows[count++] = in.data + (int64_t{z * step_z + k} * n.y + (y * step_y + j)) * n.x;
  float* to = out.data + (int64_t{z} * box.y.m + y) * box.x.m;
  box.x.halved() ? AverageRows<true>(rows, count, box.x.m, to) : AverageRows<false>(rows, count, box.x.m, to);
}

// Any ratio: the weighted rows are added up first, then the voxels of each box along x.
void AverageAny(ConstVolumeView in, VolumeView out, const Boxes& box, int y, int z) {
  const Int3 n = in.geometry.size;
  double sums[kMaxAxis];
  std::fill_n(sums, n.x, 0.0);
  for (int k = box.z.first(z); k <= box.z.last(z); ++k) {
    for (int j = box.y.first(y); j <= box.y.last(y); ++j) {
      const double weight = static_cast<double>(box.z.overlap(k, z)) * box.y.overlap(j, y);
      const float* row = in.data + (int64_t{k} * n.y + j) * n.x;
      for (int x = 0; x < n.x; ++x) sums[x] += weight * row[x];
    }
  }
  const double scale = 1.0 / static_cast<double>(box.total());
  float* to = out.data + (int64_t{z} * box.y.m + y) * box.x.m;
  for (int x = 0; x < box.x.m; ++x) {
    double sum = 0;
    for (int i = box.x.first(x); i <= box.x.last(x); ++i) sum += box.x.overlap(i, x) * sums[i];
    to[x] = static_cast<float>(scale * sum);
  }
}

// Without weights nobody asks for the integral of the bytes.
template <bool kHasWeights>
MaskSums SumMask(const uint8_t* in, const Boxes& box, int x, int y, int z) {
  MaskSums sums;
  for (int k = box.z.first(z); k <= box.z.last(z); ++k) {
    for (int j = box.y.first(y); j <= box.y.last(y); ++j) {
      const uint8_t* voxels = in + (int64_t{k} * box.y.n + j) * box.x.n;
      int64_t length = 0, bytes = 0;
      for (int i = box.x.first(x); i <= box.x.last(x); ++i) {
        length += voxels[i] != 0 ? box.x.overlap(i, x) : 0;
        if (kHasWeights) bytes += int64_t{voxels[i]} * box.x.overlap(i, x);
      }
      const int64_t area = int64_t{box.y.overlap(j, y)} * box.z.overlap(k, z);
      sums.counted += length * area;
      sums.bytes += bytes * area;
    }
  }
  return sums;
}

}  // namespace

absl::Status Downsample(const ExecContext&, ConstVolumeView in, VolumeView out) {
  const Boxes box(in.geometry.size, out.geometry.size);
  ParallelFor(int64_t{box.y.m} * box.z.m, [&](int64_t row) {
    const int y = static_cast<int>(row % box.y.m), z = static_cast<int>(row / box.y.m);
    box.whole() ? AverageWhole(in, out, box, y, z) : AverageAny(in, out, box, y, z);
  });
  return absl::OkStatus();
}

absl::Status DownsampleMask(const ExecContext&, ConstMaskView in, MaskView out) {
  const Boxes box(in.geometry.size, out.geometry.size);
  const bool has_weights = HasWeights(in);
  ParallelFor(int64_t{box.y.m} * box.z.m, [&](int64_t row) {
    const int y = static_cast<int>(row % box.y.m), z = static_cast<int>(row / box.y.m);
    for (int x = 0; x < box.x.m; ++x) {
      const MaskSums sums = has_weights ? SumMask<true>(in.data, box, x, y, z) : SumMask<false>(in.data, box, x, y, z);
      out.data[row * box.x.m + x] = sums.ByteOf(box, has_weights);
    }
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
