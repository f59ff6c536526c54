// SPDX-License-Identifier: Apache-2.0
// Helpers that every method shares: a registration's images and masks by level, overlap, which of two runs is better.
#ifndef INTRAWARP_ENGINE_REGISTRATION_STAGE_LEVELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_STAGE_LEVELS_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/metric/metric.h"
#include "engine/registration/stage/mask_levels.h"
#include "engine/transform/landmark.h"

namespace intrawarp {

// The images of a registration with their masks at every level.
struct RegistrationImages {
  const PreparedImage* fixed;
  const PreparedImage* moving;
  std::vector<MaskLevel> fixed_masks;
  std::vector<MaskLevel> moving_masks;
  // Their term is part of what every stage optimises, and of no objective (method.h).
  absl::Span<const Landmark> landmarks = {};
};

// The same for what the images say by themselves. The masks are shared.
RegistrationImages WithoutLandmarks(const RegistrationImages& images);

// The moving image's eta of NGF as a part of its mean gradient magnitude. The fixed image's eta is its whole mean
// gradient magnitude, which tells edges from noise: |v|^2 weighs the samples. The same for the moving image would
// reward maps that stretch it (its gradient on the fixed grid grows against eta), and move the minimum up to two voxels
// from the truth. So eta of the moving image only guards against zeros.
inline constexpr double kMovingEdge = 0.03;

// A 2-D image that is registered to a 3-D one: a slice, whose grid says where its plane lies in space.
inline bool IsSliceOf(const Geometry& fixed, const Geometry& moving) { return fixed.is_2d() && !moving.is_2d(); }

// The geometric mean of a voxel's sides (of a pixel's in 2-D), mm.
double VoxelScale(const Geometry& grid);

// The grid of `size` voxels over the domain of another.
Geometry GridOfSize(const Geometry& domain, Int3 size);

// The moving level whose voxels are closest in size to those of the fixed level.
int MatchingLevel(const PreparedImage& moving, const Geometry& fixed);

// The fewest samples at fixed level `index` with which a position counts: a tenth of the samples of the smaller image
// (mask). A volume counts for a slice by the cross section of a cube of its size.
double MinSamples(const RegistrationImages& images, MetricKind metric, int index);
absl::Status TooLittleOverlap();

// An objective at some transform (absent with too little overlap), and the number of its samples.
struct SampledValue {
  std::optional<double> value;
  double samples = 0;
};
// Whether `a` is better than `b`, as a start or as the end of a run from a start: enough overlap comes first, then the
// value.
bool IsBetter(const SampledValue& a, const SampledValue& b);

// True when an objective (about 1 at a bad start; absent where it is undefined) ended clearly above its start: closer
// ones are as good as each other, since a registration that starts at a minimum ends within its tolerances of it, on
// either side.
bool IsClearlyWorse(std::optional<double> before, std::optional<double> after);

// Evaluations to be enqueued between two looks at the checkpoint.
int EvaluationsAtOnce(const ExecContext& ctx, const Geometry& fixed);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_STAGE_LEVELS_H_
