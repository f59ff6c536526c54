// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/transform/total_variation_kernels.h"

namespace intrawarp::cpu {

absl::Status AddTotalVariation(const ExecContext&, const TotalVariationTask& t) {
  if (t.skip != nullptr && *t.skip != 0) return absl::OkStatus();
  const int64_t plane = int64_t{t.size.x} * t.size.y;
  const double sum = OrderedReduce<double>(
      t.size.z, 0,
      [&](int64_t z) {
        double part = 0;
        for (int64_t node = z * plane; node < (z + 1) * plane; ++node) {
          float own;
          const Vec3f derivative = VariationDerivative(t, node, &own);
          for (int c = 0; c < 3; ++c) t.gradient[3 * node + c] += t.scale * derivative[c];
          part += double{own} - t.edge;
        }
        return part;
      },
      [](double& total, double part) { total += part; });
  *t.value += double{t.scale} * sum;
  return absl::OkStatus();
}

int64_t TotalVariationWorkspaceBytes(Int3) { return 0; }

}  // namespace intrawarp::cpu
