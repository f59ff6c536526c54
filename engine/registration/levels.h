// SPDX-License-Identifier: Apache-2.0
// What the stages of a registration, whatever their method, know of its images and their levels.
#ifndef INTRAWARP_ENGINE_REGISTRATION_LEVELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_LEVELS_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/metric/metric.h"
#include "engine/registration/mask_levels.h"

namespace intrawarp {

// The images of a registration with their masks at every level.
struct RegistrationImages {
  const PreparedImage* fixed;
  const PreparedImage* moving;
  std::vector<MaskLevel> fixed_masks;
  std::vector<MaskLevel> moving_masks;
};

// eta of NGF: for the fixed image, whose |v|^2 weighs the samples, the mean gradient magnitude tells edges from noise.
// For the moving image that would reward maps that stretch it (its gradient on the fixed grid grows against eta): the
// minimum then lies up to two voxels beside the truth. So its eta is a small part of its mean gradient, which only
// guards zeros.
inline constexpr double kMovingEdge = 0.03;

// The geometric mean of a voxel's sides (of a pixel's in 2-D), mm.
double VoxelScale(const Geometry& grid);

// The moving level whose voxels are closest in size to those of the fixed level.
int MatchingLevel(const PreparedImage& moving, const Geometry& fixed);

// A position counts when it has at least this many samples at fixed level `index`: a tenth of those that the smaller
// image (mask) has.
double MinSamples(const RegistrationImages& images, MetricKind metric, int index);
absl::Status TooLittleOverlap();

// An objective at some transform, absent with too little overlap, and the samples it is of.
struct SampledValue {
  std::optional<double> value;
  double samples = 0;
};
// Whether `a` is a better place to start from (or to have come to from one of several starts): enough overlap first,
// then the value.
bool IsBetter(const SampledValue& a, const SampledValue& b);

// Evaluations to be enqueued between two looks at the checkpoint.
int EvaluationsAtOnce(const ExecContext& ctx, const Geometry& fixed);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_LEVELS_H_
