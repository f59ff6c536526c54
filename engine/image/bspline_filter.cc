// SPDX-License-Identifier: Apache-2.0
#include "engine/image/bspline_filter.h"

#include "engine/image/bspline_filter_kernels.h"

namespace intrawarp {

absl::Status PrefilterCubic(const ExecContext& ctx, ConstVolumeView image, VolumeView coefficients) {
  if (!SameGrid(image.geometry, coefficients.geometry)) {
    return absl::InvalidArgumentError("coefficients: not on the image's grid");
  }
  return INTRAWARP_DISPATCH(ctx, PrefilterCubic, image.data, image.geometry.size, coefficients.data);
}

}  // namespace intrawarp
