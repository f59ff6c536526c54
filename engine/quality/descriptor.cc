// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/descriptor.h"

#include "engine/base/status_macros.h"
#include "engine/quality/descriptor_kernels.h"

namespace intrawarp {

absl::Status ComputeDescriptors(const ExecContext& ctx, ConstVolumeView image, float floor, Descriptor* out) {
  ArenaScope scope(ctx.arena());
  DescriptorWorkspace workspace;
  INTRAWARP_ASSIGN_OR_RETURN(workspace.along_x, ctx.arena().Allocate<Differences>(image.geometry.voxels()));
  INTRAWARP_ASSIGN_OR_RETURN(workspace.means, ctx.arena().Allocate<Differences>(image.geometry.voxels()));
  return INTRAWARP_DISPATCH(ctx, ComputeDescriptors, image.data, image.geometry.size, floor, workspace, out);
}

size_t DescriptorWorkspaceBytes(const Geometry& geometry) {
  return 2 * Arena::Rounded(geometry.voxels() * sizeof(Differences));
}

}  // namespace intrawarp
