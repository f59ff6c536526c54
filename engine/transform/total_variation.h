// SPDX-License-Identifier: Apache-2.0
// Total variation of a control grid (control_grid.h): the penalty for tissue that slides. It costs as much to change by
// 10 mm from one node to the next as to change by 1 mm ten times, so that a displacement may jump along a wall, where
// bending would smear it (Vishnevskiy et al. 2017, "Isotropic total variation regularization of displacements in
// parametric image registration").
//
// The mean over the nodes of sqrt(|G|^2 + e^2) - e. G has the forward differences of the node's three components along
// the three axes, each per mm of the node distance, and 0 at the last node; e is kTotalVariationEdge, which
// makes the penalty smooth. It has no unit.
#ifndef INTRAWARP_ENGINE_TRANSFORM_TOTAL_VARIATION_H_
#define INTRAWARP_ENGINE_TRANSFORM_TOTAL_VARIATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// Smaller changes of the displacement, in mm a mm, are penalised by their square.
inline constexpr double kTotalVariationEdge = 0.02;

// *value += weight * penalty, and gradient[i] += its derivative (per mm) in control-point component i; otherwise as
// AddGridPenalties (grid_penalty.h). Workspace: TotalVariationWorkspaceBytes. INVALID_ARGUMENT, naming the field: a
// weight that is not finite or negative.
absl::Status AddTotalVariation(const ExecContext& ctx, double weight, ConstFieldView grid, const int* skip,
                               float* gradient, double* value);
int64_t TotalVariationWorkspaceBytes(const Geometry& grid);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_TOTAL_VARIATION_H_
