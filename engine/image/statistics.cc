// SPDX-License-Identifier: Apache-2.0
#include "engine/image/statistics.h"

#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/image/statistics_kernels.h"

namespace intrawarp {

int FullestBin(const uint32_t* histogram) {
  return static_cast<int>(std::max_element(histogram, histogram + kBackgroundBins) - histogram);
}

VolumeStatistics FinishStatistics(const Geometry& geometry, const RawStatistics& raw) {
  VolumeStatistics s;
  s.center_of_mass = Center(geometry);
  s.nonfinite = raw.intensity.nonfinite;
  if (s.nonfinite > 0) return s;
  s.minimum = raw.intensity.minimum;
  s.maximum = raw.intensity.maximum;
  s.mean = raw.intensity.mean;
  s.stddev = std::sqrt(raw.intensity.m2 / raw.intensity.count);
  s.background = s.minimum;
  if (!HasRange(raw.intensity)) return s;
  s.background = BackgroundOf(raw.intensity, FullestBin(raw.histogram));
  if (raw.mass.mass > 0) {
    const double scale = 1.0 / raw.mass.mass;
    s.center_of_mass = IndexToPhysical(geometry)({scale * raw.mass.x, scale * raw.mass.y, scale * raw.mass.z});
  }
  return s;
}

size_t StatisticsWorkspaceBytes(const Geometry& geometry) {
  const int pieces = MakeRowPieces(geometry.size.y * geometry.size.z, geometry.size.x).pieces;
  return Arena::Rounded(sizeof(RawStatistics)) + Arena::Rounded(pieces * sizeof(IntensitySums)) +
         Arena::Rounded(pieces * sizeof(MassSums));
}

absl::Status EnqueueStatistics(const ExecContext& ctx, ConstVolumeView volume, RawStatistics* raw) {
  return INTRAWARP_DISPATCH(ctx, EnqueueStatistics, volume, raw);
}

absl::StatusOr<VolumeStatistics> ComputeStatistics(const ExecContext& ctx, ConstVolumeView volume) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(RawStatistics * device_raw, ctx.arena().Allocate<RawStatistics>(1));
  INTRAWARP_RETURN_IF_ERROR(EnqueueStatistics(ctx, volume, device_raw));
  RawStatistics raw;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&raw, device_raw, sizeof(raw), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return FinishStatistics(volume.geometry, raw);
}

}  // namespace intrawarp
