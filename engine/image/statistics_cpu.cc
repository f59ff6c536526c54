// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/image/statistics_kernels.h"

namespace intrawarp::cpu {
namespace {

// Independent sums that the compiler turns into SIMD lanes; added up in order at the end.
constexpr int kLanes = 8;

double SumLanes(const double (&lanes)[kLanes]) {
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

// Two passes over a piece, which stays in the cache: mean first, then squared differences from it.
IntensitySums SumIntensities(const float* data, int64_t count) {
  double sum[kLanes] = {}, m2[kLanes] = {};
  float low[kLanes], high[kLanes];
  uint32_t nonfinite[kLanes] = {};
  std::fill_n(low, kLanes, INFINITY);
  std::fill_n(high, kLanes, -INFINITY);
  const int64_t whole = count / kLanes * kLanes;
  const auto add = [&](float v, int lane) {
    nonfinite[lane] += !IsFiniteBits(std::bit_cast<uint32_t>(v));
    low[lane] = v < low[lane] ? v : low[lane];
    high[lane] = v > high[lane] ? v : high[lane];
    sum[lane] += v;
  };
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) add(data[i + lane], lane);
  for (int64_t i = whole; i < count; ++i) add(data[i], 0);

  IntensitySums s;
  s.count = static_cast<double>(count);
  s.mean = SumLanes(sum) / s.count;
  const auto add_square = [&](float v, int lane) {
    const double d = v - s.mean;
    m2[lane] += d * d;
  };
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) add_square(data[i + lane], lane);
  for (int64_t i = whole; i < count; ++i) add_square(data[i], 0);
  s.m2 = SumLanes(m2);
  s.minimum = *std::min_element(low, low + kLanes);
  s.maximum = *std::max_element(high, high + kLanes);
  for (uint32_t n : nonfinite) s.nonfinite += n;
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

MassSums SumRowMass(const float* row, int nx, double background, double threshold) {
  double mass[kLanes] = {}, moment[kLanes] = {};
  const int whole = nx / kLanes * kLanes;
  const auto add = [&](int x, int lane) {
    const double w = MassOf(row[x], background, threshold);
    mass[lane] += w;
    moment[lane] += w * x;
  };
  for (int x = 0; x < whole; x += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) add(x + lane, lane);
  for (int x = whole; x < nx; ++x) add(x, 0);
  MassSums s;
  s.mass = SumLanes(mass);
  s.x = SumLanes(moment);
  return s;
}

MassSums SumMass(ConstVolumeView volume, const RowPieces& rows, const RawStatistics& raw) {
  const Int3 n = volume.geometry.size;
  const double background = BackgroundOf(raw.intensity, FullestBin(raw.histogram));
  const double threshold = MassThreshold(raw.intensity);
  const auto piece = [&](int64_t i) {
    MassSums s;
    for (int row = rows.begin(i); row < rows.end(i); ++row) {
      MassSums r = SumRowMass(volume.data + int64_t{row} * n.x, n.x, background, threshold);
      r.y = r.mass * (row % n.y);
      r.z = r.mass * (row / n.y);
      Combine(s, r);
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
