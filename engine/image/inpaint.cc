// SPDX-License-Identifier: Apache-2.0
#include "engine/image/inpaint.h"

#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/image/inpaint_kernels.h"

namespace intrawarp {
namespace {

// A box is 3 to 7 voxels wide, and a mean reaches beyond a thin object and the blends around it.
constexpr double kMostRadius = 3;
constexpr int kBeyond = 2;

}  // namespace

InpaintGrid InpaintGridOf(const Geometry& geometry) {
  InpaintGrid grid{geometry.size, {0, 0, 0}, {0, 0, 0}, geometry.spacing};
  for (int a = 0; a < 3; ++a) {
    if (geometry.size[a] == 1) continue;
    // Compared before it is rounded: a spacing may be too small for the ratio to be an int.
    grid.radius[a] = static_cast<int>(std::round(std::clamp(kThinMm / 2 / geometry.spacing[a], 1.0, kMostRadius)));
    grid.reach[a] = grid.radius[a] + kBeyond;
  }
  return grid;
}

absl::Status MarkExtremes(const ExecContext& ctx, const ExtremeLimits& limits, ConstVolumeView volume, uint8_t* marks) {
  return INTRAWARP_DISPATCH(ctx, MarkExtremes, limits, volume, marks);
}

absl::Status InpaintThin(const ExecContext& ctx, uint8_t* marks, VolumeView volume) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(uint8_t * scratch, ctx.arena().Allocate<uint8_t>(volume.geometry.voxels()));
  return INTRAWARP_DISPATCH(ctx, InpaintThin, InpaintGridOf(volume.geometry), marks, scratch, volume);
}

size_t InpaintWorkspaceBytes(const Geometry& geometry) { return Arena::Rounded(geometry.voxels()); }

}  // namespace intrawarp
