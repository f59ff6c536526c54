// SPDX-License-Identifier: Apache-2.0
// Penalties on a control grid (control_grid.h), each with its exact gradient in the control points.
//
// Lengths are measured in `unit` mm (the finest fixed voxel), so that weights don't depend on the unit of the images.
// All are means over the domain of u (1 / volume times an integral); axes with one control point have no derivatives.
//
// - bending: mean of sum over a, b of |d2u / da db|^2 (Rueckert 1999, eq. 4), by the splines' exact Gram matrices.
// - elasticity: mean of sum over a, b of e_ab^2 + 1/2 (div u)^2 with e the symmetric part of grad u: the linear elastic
//   potential with mu = lambda = 1; likewise exact.
// - jacobian: mean over two Gauss points a tile and axis of f(det(I + grad u)), f(J) = log(J / J0)^2 where J < J0, else
//   0, with J0 = 1/2; below J = 0.05 continued by its tangent, so that it is finite and falls towards larger J even
//   where the map folds. It costs nothing where volume shrinks by less than half.
#ifndef INTRAWARP_ENGINE_TRANSFORM_GRID_PENALTY_H_
#define INTRAWARP_ENGINE_TRANSFORM_GRID_PENALTY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

struct PenaltyWeights {
  double bending = 0;
  double elasticity = 0;
  double jacobian = 0;
};

// *value = sum of weight * penalty, and gradient[i] += its derivative (per mm) in control-point component i. `value`
// (float64) and `gradient` (3 float32 a node) lie in device memory. When `skip` (device memory, may be null) holds
// something other than 0, nothing happens: for chains of evaluations that end on the device. Weights of 0 cost nothing.
// Stream-ordered; bit-identical from run to run. Workspace: GridPenaltyWorkspaceBytes. INVALID_ARGUMENT, naming the
// field: weights that are not finite or negative, a unit that is not positive, axes of two or three control points.
absl::Status AddGridPenalties(const ExecContext& ctx, const PenaltyWeights& weights, double unit, ConstFieldView grid,
                              const int* skip, float* gradient, double* value);
int64_t GridPenaltyWorkspaceBytes(const Geometry& grid);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_GRID_PENALTY_H_
