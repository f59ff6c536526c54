// SPDX-License-Identifier: Apache-2.0
// The rigid and the affine method: Gauss-Newton from the coarsest level to the finest (Tramnitzke 2014, "GPU based
// affine linear image registration", master's thesis, University of Luebeck, algorithm 1).
//
// A slice that is registered to a volume has its pose in three dimensions: six parameters of a rigid map, and nine of
// the twelve of an affine one, since no point of a plane shows the column along its normal. The result takes the unit
// normal of the slice to the unit normal of the slice's image: it is invertible, proper, and its determinant is the
// change of area. NGF compares the gradient in the slice with the derivatives of the warped volume along the slice. The
// slice's levels are averaged in its plane alone, those of the volume in all directions, and a slice's level meets the
// volume's level whose voxels are as large as its pixels; the thickness of the slice plays no part. From the second
// level on, the start competes with the result of the level before.
//
// Values are in the optimiser's unit, where a bad start is about 1: NGF, NMI and LNCC as they are, SSD in variances of
// the fixed image. Reports give SSD in the images' own intensities.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_AFFINE_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_AFFINE_H_

#include <vector>

#include "absl/types/span.h"
#include "engine/registration/methods/method.h"

namespace intrawarp {

// run: FAILED_PRECONDITION when there is no objective at the finest level: too little overlap, no gradients in it
// (NGF), an image that is constant in it (NMI, LNCC), or sums that overflow. The result's value is absent when a budget
// ended the stage before the finest level.
extern const Method kRigidMethod;
extern const Method kAffineMethod;

// Index of the coarsest level that both methods use: the first whose longest axis is at most 24, of those whose mask
// selects a voxel.
int CoarsestAffineLevel(const RegistrationImages& images);

// The objective at one fixed level, apart from a stage; for the search of a start (starts.h).
struct AffineLevel {
  const RegistrationImages& images;
  MetricKind metric;
  int index;
};

// The objective of each of `maps` (fixed to moving, LPS mm; at most kMaxAffineMaps) in the optimiser's unit, with the
// term of landmarks; absent where a stage could not start there. Waits for the stream.
absl::StatusOr<std::vector<SampledValue>> AffineValues(const ExecContext& ctx, const AffineLevel& level,
                                                       absl::Span<const AffineMap> maps);

struct RigidRun {
  AffineMap map;
  SampledValue value;
  int evaluations = 0;
};

struct RigidRuns {
  std::vector<RigidRun> runs;
  // kStop: the budget ended the runs early.
  Decision decision = Decision::kContinue;
};

// The rigid optimiser at that level, from each of `starts` (at most kMaxAffineMaps), whose scale, shear and handedness
// it keeps. The runs do not depend on each other; on CUDA they go side by side. Looks at the checkpoint as a stage
// does; kCancel returns CANCELLED. Waits for the stream.
absl::StatusOr<RigidRuns> RunRigidLevel(const ExecContext& ctx, const AffineLevel& level,
                                        absl::Span<const AffineMap> starts, int iterations, Progress progress);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_AFFINE_H_
