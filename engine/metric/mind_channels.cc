// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/mind_channels.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/metric/mind.h"

namespace intrawarp::cpu {
namespace {

void SplitDescriptors(const Descriptor* descriptors, int64_t voxels, float* channels) {
  constexpr int64_t kRun = 1 << 14;
  ParallelFor((voxels + kRun - 1) / kRun, [&](int64_t run) {
    for (int64_t i = run * kRun; i < std::min(voxels, (run + 1) * kRun); ++i) {
      for (int c = 0; c < kDescriptorChannels; ++c) {
        channels[c * voxels + i] = static_cast<float>(descriptors[i].channel[c]) * (1 / kChannelSteps);
      }
    }
  });
}

}  // namespace

absl::StatusOr<MindChannels> DescribeChannels(const ExecContext& ctx, ConstVolumeView image, ConstMaskView mask,
                                              double stddev, const ChannelOrder& order) {
  const int64_t voxels = image.geometry.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(float* channels, ctx.arena().Allocate<float>(kDescriptorChannels * voxels));
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const Descriptor* descriptors, DescribeImage(ctx, image, mask, stddev, order));
  SplitDescriptors(descriptors, voxels, channels);
  return MindChannels{channels, voxels};
}

int64_t MindChannelBytes(const Geometry& image) {
  return Arena::Rounded(kDescriptorChannels * image.voxels() * sizeof(float));
}

int64_t MindChannelWorkspaceBytes(const Geometry& image) {
  return MindDescriptorBytes(image) + MindWorkspaceBytes(image);
}

}  // namespace intrawarp::cpu
