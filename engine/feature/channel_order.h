// SPDX-License-Identifier: Apache-2.0
// The order of the channels of a descriptor (descriptor.h). A channel names its two neighbours by the axes of its
// image's grid. Where the axes of two grids run along each other in another order, or backwards, the same neighbours
// belong to other channels.
#ifndef INTRAWARP_ENGINE_FEATURE_CHANNEL_ORDER_H_
#define INTRAWARP_ENGINE_FEATURE_CHANNEL_ORDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/feature/descriptor.h"
#include "engine/geometry/geometry.h"

namespace intrawarp {

// The channel that takes place c is channel from[c].
struct ChannelOrder {
  uint8_t from[kDescriptorChannels] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

  friend bool operator==(const ChannelOrder&, const ChannelOrder&) = default;
};

// The order in which the channels of the moving image have the neighbours of the fixed image's channels, under a map
// from fixed to moving (LPS mm). The order follows the exchange and reversal of axes that is nearest to the map's
// linear part: a turn of less than 45 degrees about one axis changes nothing. Pure.
ChannelOrder OrderOfChannels(const Geometry& fixed, const Geometry& moving, const AffineMap& map);

// Puts the channels of descriptors in device memory into this order, in place. Stream-ordered. Reads and writes 16
// bytes a descriptor; does nothing where the order is the channels' own.
absl::Status ReorderChannels(const ExecContext& ctx, const ChannelOrder& order, int64_t count, Descriptor* descriptors);

INTRAWARP_DECLARE_ON_DEVICES(absl::Status ReorderChannels(const ExecContext& ctx, const ChannelOrder& order,
                                                          int64_t count, Descriptor* descriptors);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_CHANNEL_ORDER_H_
