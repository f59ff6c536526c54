// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/descriptor.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/feature/descriptor_kernels.h"

namespace intrawarp {
namespace {

constexpr double kFloorVariances = 1e-3;

}  // namespace

float DescriptorFloor(double stddev) { return static_cast<float>(std::max(kFloorVariances * stddev * stddev, 1e-30)); }

absl::Status ComputeDescriptors(const ExecContext& ctx, ConstVolumeView image, const uint8_t* valid, int distance,
                                float floor, Descriptor* out, float* noise) {
  ArenaScope scope(ctx.arena());
  DescriptorWorkspace workspace;
  const int64_t floats = kDescriptorDifferences * image.geometry.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(workspace.sums, ctx.arena().Allocate<float>(floats));
  INTRAWARP_ASSIGN_OR_RETURN(workspace.means, ctx.arena().Allocate<float>(floats));
  INTRAWARP_ASSIGN_OR_RETURN(workspace.counts, ctx.arena().Allocate<int>(kNoiseBins));
  return INTRAWARP_DISPATCH(ctx, ComputeDescriptors, image.data, valid, image.geometry.size, distance, floor, workspace,
                            out, noise);
}

size_t DescriptorWorkspaceBytes(const Geometry& geometry) {
  return 2 * Arena::Rounded(geometry.voxels() * kDescriptorDifferences * sizeof(float)) +
         Arena::Rounded(kNoiseBins * sizeof(int));
}

}  // namespace intrawarp
