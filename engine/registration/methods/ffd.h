// SPDX-License-Identifier: Apache-2.0
// The ffd method: a cubic B-spline displacement u on top of an affine map, T(x) = A(x + u(x)), from the coarsest level
// to the finest, the control grid refined from level to level (Rueckert et al. 1999). A is kept and u found.
//
// A stage that continues a control grid keeps its own finest spacing on every level, so that nothing of the grid is
// lost, and leaves out levels of larger voxels than that. The finest level ends where the value fell by less than 1e-4
// of itself over five iterations; the others, and all levels of a stage that continues an earlier stage of its
// registration, at 1e-3. A named stage that starts from the grid of another registration, as frames do, and is not told
// its levels has two (FfdOptions::kWarmLevels), which end at 3e-3. When the result of the finest level folds, its
// control points are smoothed until it no longer does (fold_smoothing.h), within limits: of rounds, and of time, which
// a checkpoint asks for every few rounds.
//
// With `sliding` it is two deformations, merged on a finer grid (sliding.h).
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_FFD_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_FFD_H_

#include "engine/registration/methods/method.h"

namespace intrawarp {

// run: the transform has the control grid of the finest level reached; its u is that of the start (0 without one) when
// a budget ended the stage before it began. Values are the objective's: SSD in variances of the fixed image, with
// penalties. result_bytes: less when a budget ended the stage at a coarser level. objective: on the finest grid.
extern const Method kFfdMethod;

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_FFD_H_
