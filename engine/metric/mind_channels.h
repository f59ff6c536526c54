// SPDX-License-Identifier: Apache-2.0
// The channels of MIND (mind.h) as volumes, in which form the CPU device evaluates them. CUDA reads descriptors.
#ifndef INTRAWARP_ENGINE_METRIC_MIND_CHANNELS_H_
#define INTRAWARP_ENGINE_METRIC_MIND_CHANNELS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/feature/channel_order.h"
#include "engine/image/volume.h"

namespace intrawarp::cpu {

// The channels of an image as volumes on its grid, float32 in [0, 1], one behind the other. In device memory.
struct MindChannels {
  const float* data = nullptr;
  int64_t voxels = 0;

  const float* operator[](int channel) const { return data + channel * voxels; }
};

// The channels of DescribeImage (mind.h). Memory that stays taken from the arena: MindChannelBytes; taken meanwhile:
// MindChannelWorkspaceBytes.
absl::StatusOr<MindChannels> DescribeChannels(const ExecContext& ctx, ConstVolumeView image, ConstMaskView mask,
                                              double stddev, const ChannelOrder& order = {});
int64_t MindChannelBytes(const Geometry& image);
int64_t MindChannelWorkspaceBytes(const Geometry& image);

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_METRIC_MIND_CHANNELS_H_
