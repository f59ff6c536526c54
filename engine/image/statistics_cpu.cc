// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/image/row_simd.h"
#include "engine/image/statistics_kernels.h"

namespace intrawarp::cpu {
namespace {

// Squares are of differences from the piece's first value, so that a large offset common to all intensities cancels
// before it is squared.
IntensitySums SumIntensities(const float* data, int64_t count) {
  const double shift = data[0], n = static_cast<double>(count);
  const RangeAndSums run = SumRun(data, count, shift);
  IntensitySums s;
  s.count = n;
  s.minimum = run.minimum;
  s.maximum = run.maximum;
  s.mean = shift + run.sum / n;
  s.m2 = std::max(0.0, run.squares - run.sum * (run.sum / n));
  // Finite float32 values cannot make these sums overflow, others always show in them.
  if (!std::isfinite(run.sum)) {
    for (int64_t i = 0; i < count; ++i) s.nonfinite += !std::isfinite(data[i]);
  }
  return s;
}

void CountFaces(ConstVolumeView volume, RawStatistics* raw) {
  const Int3 n = volume.geometry.size;
  const double minimum = raw->intensity.minimum, scale = BinsPerUnit(raw->intensity);
  const auto count = [&](float v) { ++raw->histogram[BackgroundBin(v, minimum, scale)]; };
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      const float* row = volume.data + (int64_t{z} * n.y + y) * n.x;
      if (IsFaceRow(n, y, z)) {
        for (int x = 0; x < n.x; ++x) count(row[x]);
      } else if (n.x > 1) {
        count(row[0]);
        count(row[n.x - 1]);
      }
    }
  }
}

MassSums SumMass(ConstVolumeView volume, const RowPieces& rows, const RawStatistics& raw) {
  const Int3 n = volume.geometry.size;
  const double background = BackgroundOf(raw.intensity, FullestBin(raw.histogram));
  const double threshold = MassThreshold(raw.intensity);
  const auto piece = [&](int64_t i) {
    MassSums s;
    for (int row = rows.begin(i); row < rows.end(i); ++row) {
      const RowMass r = SumRowMass(volume.data + int64_t{row} * n.x, n.x, background, threshold);
      Combine(s, {r.mass, r.moment, r.mass * (row % n.y), r.mass * (row / n.y)});
    }
    return s;
  };
  return OrderedReduce(rows.pieces, MassSums(), piece, [](MassSums& a, const MassSums& b) { Combine(a, b); });
}

}  // namespace

absl::Status EnqueueStatistics(const ExecContext&, ConstVolumeView volume, RawStatistics* raw) {
  *raw = RawStatistics();
  const Int3 n = volume.geometry.size;
  const RowPieces rows = MakeRowPieces(n.y * n.z, n.x);
  const auto piece = [&](int64_t i) {
    const int64_t begin = int64_t{rows.begin(i)} * n.x, end = int64_t{rows.end(i)} * n.x;
    return SumIntensities(volume.data + begin, end - begin);
  };
  raw->intensity = OrderedReduce(rows.pieces, IntensitySums(), piece,
                                 [](IntensitySums& a, const IntensitySums& b) { Combine(a, b); });
  if (!HasRange(raw->intensity)) return absl::OkStatus();
  CountFaces(volume, raw);
  raw->mass = SumMass(volume, rows, *raw);
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
