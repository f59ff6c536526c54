// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/feature/pooled_descriptor_kernels.h"

namespace intrawarp::cpu {

absl::Status PoolDescriptors(const ExecContext&, const Pooling& in, PooledDescriptor* out, uint8_t* weights) {
  ParallelFor(int64_t{in.size.y} * in.size.z, [&](int64_t row) {
    const int y = static_cast<int>(row % in.size.y), z = static_cast<int>(row / in.size.y);
    for (int x = 0; x < in.size.x; ++x) {
      const int64_t place = row * in.size.x + x;
      out[place] =
          weights == nullptr ? PooledAt<false>(in, {x, y, z}, nullptr) : PooledAt<true>(in, {x, y, z}, weights + place);
    }
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
