// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/mind.h"

#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

// Which voxels count for the noise.
absl::StatusOr<const uint8_t*> Valid(const ExecContext& ctx, ConstMaskView mask, int64_t voxels) {
  if (mask.data != nullptr) return mask.data;
  INTRAWARP_ASSIGN_OR_RETURN(uint8_t * all, ctx.arena().Allocate<uint8_t>(voxels));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(all, 1, voxels, ctx.stream()));
  return all;
}

}  // namespace

absl::StatusOr<const Descriptor*> DescribeImage(const ExecContext& ctx, ConstVolumeView image, ConstMaskView mask,
                                                double stddev, const ChannelOrder& order) {
  const int64_t voxels = image.geometry.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(Descriptor * descriptors, ctx.arena().Allocate<Descriptor>(voxels));
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(float* noise, ctx.arena().Allocate<float>(1));
  INTRAWARP_ASSIGN_OR_RETURN(const uint8_t* valid, Valid(ctx, mask, voxels));
  INTRAWARP_RETURN_IF_ERROR(
      ComputeDescriptors(ctx, image, valid, kMindDistance, DescriptorFloor(stddev), descriptors, noise));
  INTRAWARP_RETURN_IF_ERROR(ReorderChannels(ctx, order, voxels, descriptors));
  return descriptors;
}

int64_t MindDescriptorBytes(const Geometry& image) { return Arena::Rounded(image.voxels() * sizeof(Descriptor)); }

int64_t MindWorkspaceBytes(const Geometry& image) {
  return Arena::Rounded(sizeof(float)) + Arena::Rounded(image.voxels()) +
         static_cast<int64_t>(DescriptorWorkspaceBytes(image));
}

}  // namespace intrawarp
