// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/feature/sampled_image_kernels.h"

namespace intrawarp::cpu {

absl::Status SampleImage(const ExecContext&, const ImageSampling& in, float* values, uint8_t* valid) {
  const Int3 n = in.size;
  ParallelFor(int64_t{n.y} * n.z, [&](int64_t row) {
    const int y = static_cast<int>(row % n.y), z = static_cast<int>(row / n.y);
    for (int x = 0; x < n.x; ++x) SampleVoxel(in, row * n.x + x, {x, y, z}, values, valid);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
