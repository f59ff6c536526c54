// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/total_variation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/transform/total_variation_kernels.h"

namespace intrawarp {

absl::Status AddTotalVariation(const ExecContext& ctx, double weight, ConstFieldView grid, const int* skip,
                               float* gradient, double* value) {
  if (!(std::isfinite(weight) && weight >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_variation_weight: ", weight, " is not a finite number from 0"));
  }
  if (weight == 0) return absl::OkStatus();
  const Geometry& g = grid.geometry;
  TotalVariationTask task;
  task.grid = grid.data;
  task.size = g.size;
  for (int a = 0; a < 3; ++a) task.per_mm[a] = static_cast<float>(1 / g.spacing[a]);
  task.edge = static_cast<float>(kTotalVariationEdge);
  task.scale = static_cast<float>(weight / static_cast<double>(g.voxels()));
  task.skip = skip;
  task.gradient = gradient;
  task.value = value;
  return INTRAWARP_DISPATCH(ctx, AddTotalVariation, task);
}

int64_t TotalVariationWorkspaceBytes(const Geometry& grid) {
#if INTRAWARP_WITH_CUDA
  return std::max(cpu::TotalVariationWorkspaceBytes(grid.size), cuda::TotalVariationWorkspaceBytes(grid.size));
#else
  return cpu::TotalVariationWorkspaceBytes(grid.size);
#endif
}

}  // namespace intrawarp
