// SPDX-License-Identifier: Apache-2.0
// Whether the images show where a slice lies in a volume: how much worse the objective becomes when the slice leaves
// its place through its plane, beside the same movement in its plane. A slice across a tube, whose volume is the same
// everywhere along the normal, fits anywhere along it.
#ifndef INTRAWARP_ENGINE_REGISTRATION_START_SLICE_POSE_H_
#define INTRAWARP_ENGINE_REGISTRATION_START_SLICE_POSE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/metric/metric.h"
#include "engine/registration/stage/levels.h"

namespace intrawarp {

struct SlicePose {
  // The root mean square movement of the slice's pixels that the rises belong to, mm.
  double step_mm = 0;
  // By how much the objective rises, in the optimiser's unit; the smaller rise of both directions, and 0 where it
  // falls: along the normal, about the two axes of the slice (the smaller), and along these axes (the mean).
  double offset_rise = 0, tilt_rise = 0, in_plane_rise = 0;

  // The smaller of the rises through the plane as a part of that in the plane, 0 to 1; 0 where nothing rises.
  double Observability() const;
};

// At `map` (fixed to moving, LPS mm) and the finest level. The step is the largest of two pixels, 1.5 voxels of the
// volume along its longest side, and the thickness of the slice. Absent where the objective is undefined at `map`; a
// neighbour where it is undefined does not count. Takes 11 evaluations and the workspace of the rigid method. Waits for
// the stream.
absl::StatusOr<std::optional<SlicePose>> ObserveSlicePose(const ExecContext& ctx, const RegistrationImages& images,
                                                          MetricKind metric, const AffineMap& map);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_START_SLICE_POSE_H_
