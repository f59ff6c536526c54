// SPDX-License-Identifier: Apache-2.0
// Resampling a moving image on a fixed grid. The transform maps fixed points to moving points.
#ifndef INTRAWARP_ENGINE_IMAGE_WARP_H_
#define INTRAWARP_ENGINE_IMAGE_WARP_H_

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

enum class Interpolation { kLinear, kNearest };

// out(p) = moving(transform(p)) for an affine map in LPS mm; `fill` where transform(p) is outside moving's domain.
// Stream-ordered.
absl::Status WarpAffine(const ExecContext& ctx, ConstVolumeView moving, const AffineMap& transform,
                        Interpolation interpolation, float fill, VolumeView out);

// out(p) = moving(p + displacement(p)); out lies on the displacement's grid (INVALID_ARGUMENT otherwise). A displacement
// that is not finite has no source and gives `fill`. Stream-ordered.
absl::Status WarpField(const ExecContext& ctx, ConstVolumeView moving, ConstFieldView displacement,
                       Interpolation interpolation, float fill, VolumeView out);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_WARP_H_
