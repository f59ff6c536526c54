// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/metric/mind.h"

namespace intrawarp::cpu {

absl::Status SplitDescriptors(const ExecContext&, const Descriptor* descriptors, int64_t voxels, float* channels) {
  constexpr int64_t kRun = 1 << 14;
  ParallelFor((voxels + kRun - 1) / kRun, [&](int64_t run) {
    for (int64_t i = run * kRun; i < std::min(voxels, (run + 1) * kRun); ++i) {
      for (int c = 0; c < kDescriptorChannels; ++c) {
        channels[c * voxels + i] = static_cast<float>(descriptors[i].channel[c]) * (1.0f / 255);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
