// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/pooled_descriptor.h"

#include "engine/feature/pooled_descriptor_kernels.h"

namespace intrawarp {

absl::Status PoolDescriptors(const ExecContext& ctx, const Descriptor* descriptors, const uint8_t* valid, Int3 size,
                             Int3 block, PooledDescriptor* out, uint8_t* weights) {
  const Pooling in{descriptors, valid, size, block};
  return INTRAWARP_DISPATCH(ctx, PoolDescriptors, in, out, weights);
}

}  // namespace intrawarp
