// SPDX-License-Identifier: Apache-2.0
// Descriptors pooled over blocks of voxels: 16 bytes a block, whose squared distances are exact integers and the same
// on every device.
#ifndef INTRAWARP_ENGINE_FEATURE_POOLED_DESCRIPTOR_H_
#define INTRAWARP_ENGINE_FEATURE_POOLED_DESCRIPTOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/feature/descriptor.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

struct alignas(16) PooledDescriptor {
  // The means of the block's valid descriptors, rounded; in steps of 1/255 as theirs.
  uint8_t channel[kDescriptorChannels];
  // The sum of the squared channels. A block of which fewer than half of the voxels are valid has no descriptor: its
  // channels and its sum are 0, which the sum of a descriptor never is.
  uint32_t squares;
};

// The largest squared distance of two pooled descriptors.
inline constexpr int kMostDescriptorDistance = kDescriptorChannels * 255 * 255;

// `size` blocks of `block` voxels from `size` times `block` descriptors; voxel i counts where byte i of `valid` is not
// 0. A block has at most 2^16 voxels. Stream-ordered. CPU and CUDA give the same bits.
//
// Unless `weights` is null, byte i of `valid` is the weight of voxel i in the means, in steps of 1/255, and a block
// gets the mean weight of its valid voxels, rounded, in `weights`: 0 without a descriptor, at least 1 otherwise.
absl::Status PoolDescriptors(const ExecContext& ctx, const Descriptor* descriptors, const uint8_t* valid, Int3 size,
                             Int3 block, PooledDescriptor* out, uint8_t* weights = nullptr);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_POOLED_DESCRIPTOR_H_
