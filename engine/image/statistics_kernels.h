// SPDX-License-Identifier: Apache-2.0
// The passes of the statistics, whose results stay in device memory until they are read together. Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_STATISTICS_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_STATISTICS_KERNELS_H_

#include <cmath>

#include "engine/base/host_device.h"
#include "engine/image/rows.h"
#include "engine/image/statistics.h"

namespace intrawarp {

inline constexpr int kBackgroundBins = 256;

// Range and moments of part of the voxels. Empty parts have a count of 0.
struct IntensitySums {
  double count = 0;
  double mean = 0;
  // Sum of squared differences from the mean.
  double m2 = 0;
  int64_t nonfinite = 0;
  float minimum = INFINITY;
  float maximum = -INFINITY;
};

// Adds `b` to `a`: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
// (1979).
INTRAWARP_HD inline void Combine(IntensitySums& a, const IntensitySums& b) {
  a.nonfinite += b.nonfinite;
  if (b.count == 0) return;
  a.minimum = fminf(a.minimum, b.minimum);
  a.maximum = fmaxf(a.maximum, b.maximum);
  const double count = a.count + b.count, delta = b.mean - a.mean;
  a.m2 += b.m2 + delta * delta * (a.count * b.count / count);
  a.mean += delta * (b.count / count);
  a.count = count;
}

// Sums of weights and of weighted indices.
struct MassSums {
  double mass = 0;
  double x = 0, y = 0, z = 0;
};

INTRAWARP_HD inline void Combine(MassSums& a, const MassSums& b) {
  a.mass += b.mass;
  a.x += b.x;
  a.y += b.y;
  a.z += b.z;
}

struct RawStatistics {
  IntensitySums intensity;
  MassSums mass;
  uint32_t histogram[kBackgroundBins] = {};
};

// Integer test, so that no compiler's assumptions about NaN matter.
INTRAWARP_HD inline bool IsFiniteBits(uint32_t bits) { return (bits & 0x7f800000u) != 0x7f800000u; }

// Whether the passes after the first have anything to do.
INTRAWARP_HD inline bool HasRange(const IntensitySums& s) { return s.nonfinite == 0 && s.minimum < s.maximum; }

INTRAWARP_HD inline int BackgroundBin(float value, double minimum, double bins_per_unit) {
  const int bin = static_cast<int>((value - minimum) * bins_per_unit);
  return bin < kBackgroundBins - 1 ? bin : kBackgroundBins - 1;
}
INTRAWARP_HD inline double BinsPerUnit(const IntensitySums& s) {
  return kBackgroundBins / (static_cast<double>(s.maximum) - s.minimum);
}

INTRAWARP_HD inline float BackgroundOf(const IntensitySums& s, int fullest_bin) {
  return static_cast<float>(s.minimum + (fullest_bin + 0.5) / BinsPerUnit(s));
}

// The weight of a voxel in the centre of mass.
INTRAWARP_HD inline double MassOf(float value, double background, double threshold) {
  const double difference = fabs(value - background);
  return difference > threshold ? difference : 0.0;
}
INTRAWARP_HD inline double MassThreshold(const IntensitySums& s) {
  return 0.1 * (static_cast<double>(s.maximum) - s.minimum);
}

// True for rows that lie in a face as a whole; of the others only the ends do. Axes of one voxel have no faces.
INTRAWARP_HD inline bool IsFaceRow(Int3 size, int y, int z) {
  return (size.y > 1 && (y == 0 || y == size.y - 1)) || (size.z > 1 && (z == 0 || z == size.z - 1));
}

// The first of the fullest bins.
int FullestBin(const uint32_t* histogram);

// What the sums say.
VolumeStatistics FinishStatistics(const Geometry& geometry, const RawStatistics& raw);

// Enqueues all passes; `raw` lies in device memory. Takes StatisticsWorkspaceBytes from the arena, `raw` included.
absl::Status EnqueueStatistics(const ExecContext& ctx, ConstVolumeView volume, RawStatistics* raw);

INTRAWARP_DECLARE_ON_DEVICES(absl::Status EnqueueStatistics(const ExecContext& ctx, ConstVolumeView volume,
                                                            RawStatistics* raw);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_STATISTICS_KERNELS_H_
