// SPDX-License-Identifier: Apache-2.0
// The reordering of a descriptor's channels for both devices. Internal to this room.
#ifndef INTRAWARP_ENGINE_FEATURE_CHANNEL_ORDER_KERNELS_H_
#define INTRAWARP_ENGINE_FEATURE_CHANNEL_ORDER_KERNELS_H_

#include "engine/base/host_device.h"
#include "engine/feature/channel_order.h"
#include "engine/feature/descriptor.h"

namespace intrawarp {

INTRAWARP_HD inline Descriptor Reordered(const Descriptor& descriptor, const ChannelOrder& order) {
  Descriptor out;
  out.variation = descriptor.variation;
  for (int c = 0; c < kDescriptorChannels; ++c) out.channel[c] = descriptor.channel[order.from[c]];
  return out;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_CHANNEL_ORDER_KERNELS_H_
