// SPDX-License-Identifier: Apache-2.0
// The two versions of PoolDescriptors, and the arithmetic of a block that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_FEATURE_POOLED_DESCRIPTOR_KERNELS_H_
#define INTRAWARP_ENGINE_FEATURE_POOLED_DESCRIPTOR_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/feature/pooled_descriptor.h"

namespace intrawarp {

struct Pooling {
  const Descriptor* descriptors = nullptr;
  const uint8_t* valid = nullptr;
  Int3 size, block;
};

// kWeighted: the block's weight goes to *weight. The sums stay within 32 bits: 2^16 voxels of 255 times 255.
template <bool kWeighted>
INTRAWARP_HD inline PooledDescriptor PooledAt(const Pooling& in, Int3 place, uint8_t* weight) {
  uint32_t sums[kDescriptorChannels] = {};
  uint32_t count = 0, total = 0;
  const int64_t nx = int64_t{in.size.x} * in.block.x, ny = int64_t{in.size.y} * in.block.y;
  for (int k = 0; k < in.block.z; ++k) {
    for (int j = 0; j < in.block.y; ++j) {
      const int64_t row = ((int64_t{place.z} * in.block.z + k) * ny + int64_t{place.y} * in.block.y + j) * nx +
                          int64_t{place.x} * in.block.x;
      for (int i = 0; i < in.block.x; ++i) {
        const uint32_t of_voxel = in.valid[row + i];
        if (of_voxel == 0) continue;
        const Descriptor descriptor = in.descriptors[row + i];
        for (int c = 0; c < kDescriptorChannels; ++c) {
          sums[c] += kWeighted ? of_voxel * descriptor.channel[c] : descriptor.channel[c];
        }
        ++count;
        if (kWeighted) total += of_voxel;
      }
    }
  }
  PooledDescriptor out{};
  if (kWeighted) *weight = 0;
  if (2 * count < static_cast<uint32_t>(in.block.x * in.block.y * in.block.z)) return out;
  if (kWeighted) *weight = static_cast<uint8_t>((total + count / 2) / count);
  const uint32_t divisor = kWeighted ? total : count;
  for (int c = 0; c < kDescriptorChannels; ++c) {
    const uint32_t mean = (sums[c] + divisor / 2) / divisor;
    out.channel[c] = static_cast<uint8_t>(mean);
    out.squares += mean * mean;
  }
  return out;
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status PoolDescriptors(const ExecContext& ctx, const Pooling& in,
                                                          PooledDescriptor* out, uint8_t* weights);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_POOLED_DESCRIPTOR_KERNELS_H_
