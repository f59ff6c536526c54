// SPDX-License-Identifier: Apache-2.0
// Statistics of a volume, reduced in a fixed order (bit-identical from run to run).
#ifndef INTRAWARP_ENGINE_IMAGE_STATISTICS_H_
#define INTRAWARP_ENGINE_IMAGE_STATISTICS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

struct VolumeStatistics {
  // Voxels that are NaN or infinite. When there are any, nothing below is meaningful.
  int64_t nonfinite = 0;
  float minimum = 0;
  float maximum = 0;
  double mean = 0;
  double stddev = 0;
  // The value of the surroundings: the most frequent value on the faces of the grid (the edges of a 2-D image), by a
  // histogram of 256 bins from minimum to maximum, as the centre of its bin.
  float background = 0;
  // LPS mm; weights are |value - background| where that is above a tenth of (maximum - minimum), 0 elsewhere. The
  // centre of the grid when nothing is above it. Works for inverted intensities, where the surroundings are bright.
  Vec3d center_of_mass;
};

// Waits for the stream.
absl::StatusOr<VolumeStatistics> ComputeStatistics(const ExecContext& ctx, ConstVolumeView volume);
size_t StatisticsWorkspaceBytes(const Geometry& geometry);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_STATISTICS_H_
