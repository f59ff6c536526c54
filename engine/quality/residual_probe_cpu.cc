// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/quality/residual_probe_kernels.h"

namespace intrawarp::cpu {

absl::Status SampleProbe(const ExecContext&, const ProbeSampling& in, const ProbeSamples& out) {
  const Int3 n = in.size;
  ParallelFor(int64_t{n.y} * n.z, [&](int64_t row) {
    const int y = static_cast<int>(row % n.y), z = static_cast<int>(row / n.y);
    for (int x = 0; x < n.x; ++x) SampleNode(in, row * n.x + x, {x, y, z}, out);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
