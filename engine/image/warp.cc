// SPDX-License-Identifier: Apache-2.0
#include "engine/image/warp.h"

#include "engine/image/warp_kernels.h"

namespace intrawarp {

absl::Status WarpAffine(const ExecContext& ctx, ConstVolumeView moving, const AffineMap& transform,
                        Interpolation interpolation, float fill, VolumeView out) {
  const AffineMap index_map =
      Compose(PhysicalToIndex(moving.geometry), Compose(transform, IndexToPhysical(out.geometry)));
  const WarpTask task{moving.data, moving.geometry.size, index_map, nullptr, {}, fill, out.data, out.geometry.size};
  return INTRAWARP_DISPATCH(ctx, Warp, task, interpolation);
}

absl::Status WarpField(const ExecContext& ctx, ConstVolumeView moving, ConstFieldView displacement,
                       Interpolation interpolation, float fill, VolumeView out) {
  if (!SameGrid(displacement.geometry, out.geometry)) {
    return absl::InvalidArgumentError("out: not on the displacement's grid");
  }
  const AffineMap to_moving = PhysicalToIndex(moving.geometry);
  const WarpTask task{moving.data,       moving.geometry.size,    Compose(to_moving, IndexToPhysical(out.geometry)),
                      displacement.data, to_moving.Cast<float>(), fill,
                      out.data,          out.geometry.size};
  return INTRAWARP_DISPATCH(ctx, Warp, task, interpolation);
}

}  // namespace intrawarp
