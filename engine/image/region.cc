// SPDX-License-Identifier: Apache-2.0
#include "engine/image/region.h"

#include "engine/image/region_kernels.h"

namespace intrawarp {

absl::Status ClearRegion(const ExecContext& ctx, ConstMaskView region, MaskView mask) {
  const RegionClearing task{region.data, region.geometry.size,
                            Compose(PhysicalToIndex(region.geometry), IndexToPhysical(mask.geometry)), mask.data,
                            mask.geometry.size};
  return INTRAWARP_DISPATCH(ctx, ClearRegion, task);
}

}  // namespace intrawarp
