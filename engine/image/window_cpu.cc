// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/image/window_kernels.h"

namespace intrawarp::cpu {

absl::Status EnqueueSamples(const ExecContext&, ConstVolumeView volume, RawSamples* out) {
  const Int3 n = volume.geometry.size;
  const int count = SampleCount(volume.geometry.voxels());
  for (int i = 0; i < count; ++i) TakeSample(volume.data, n, i, out);
  for (int corner = 0; corner < 8; ++corner) out->corners[corner] = volume.data[CornerVoxel(n, corner)];
  return absl::OkStatus();
}

absl::Status MapThroughWindow(const ExecContext&, const IntensityWindow& window, ConstVolumeView in, VolumeView out) {
  const Int3 n = in.geometry.size;
  ParallelFor(int64_t{n.y} * n.z, [&](int64_t row) {
    const float* from = in.data + row * n.x;
    float* to = out.data + row * n.x;
    for (int x = 0; x < n.x; ++x) to[x] = Through(window, from[x]);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
