// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "engine/base/status_macros.h"
#include "engine/transform/control_grid.h"
#include "tests/bench/baselines/bspline_variants.h"

namespace intrawarp::baselines {
namespace {

// Voxels of 1 mm from the origin on; node 1 of the grid lies on voxel 0.
Geometry GridGeometry(const TiledVolume& volume) {
  Geometry g;
  const double spacing = volume.tile;
  g.size = volume.nodes();
  g.spacing = {spacing, spacing, spacing};
  g.origin = {-spacing, -spacing, -spacing};
  return g;
}

}  // namespace

absl::StatusOr<Work> MakeProduction(const ExecContext& ctx, const TiledVolume& volume,
                                    const std::vector<Float4>& control, float* out) {
  std::vector<float> packed;
  packed.reserve(3 * control.size());
  for (const Float4& p : control) packed.insert(packed.end(), {p.x, p.y, p.z});
  const size_t bytes = packed.size() * sizeof(float);
  INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer, ctx.device().Allocate(bytes, ctx.stream()));
  const auto owned = std::make_shared<Buffer>(std::move(buffer));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(owned->as<void>(), packed.data(), bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  Geometry image;
  image.size = volume.size;
  return Work([&ctx, out, owned, image, grid = GridGeometry(volume)] {
    return EvaluateControlGrid(ctx, {owned->as<float>(), grid}, AffineMap::Identity(), image, 0, image.voxels(), out);
  });
}

}  // namespace intrawarp::baselines
