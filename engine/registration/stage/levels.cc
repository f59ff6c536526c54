// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/stage/levels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace intrawarp {
namespace {

constexpr double kMinOverlap = 0.1;
// A start that overlaps less than this part of another's overlap is not compared by its value.
constexpr double kComparableOverlap = 0.5;
constexpr int kAtOnceSmall = 8, kAtOnceLarge = 4;
constexpr int64_t kLargeVoxels = int64_t{1} << 21;

// The part of a grid where NGF has samples: off the faces, which have no central differences.
double InteriorFraction(Int3 size) {
  double fraction = 1;
  for (int a = 0; a < 3; ++a)
    if (size[a] > 1) fraction *= std::max(size[a] - 2, 0) / static_cast<double>(size[a]);
  return fraction;
}

}  // namespace

RegistrationImages WithoutLandmarks(const RegistrationImages& images) {
  RegistrationImages without = images;
  without.landmarks = {};
  return without;
}

double VoxelScale(const Geometry& g) {
  return g.is_2d() ? std::sqrt(g.spacing.x * g.spacing.y) : std::cbrt(g.voxel_volume());
}

Geometry GridOfSize(const Geometry& domain, Int3 size) {
  Geometry grid = domain;
  grid.size = size;
  // The index, on the domain's grid, of the first voxel.
  Vec3d first;
  for (int a = 0; a < 3; ++a) {
    const double ratio = static_cast<double>(domain.size[a]) / size[a];
    grid.spacing[a] = domain.spacing[a] * ratio;
    first[a] = 0.5 * ratio - 0.5;
  }
  grid.origin = IndexToPhysical(domain)(first);
  return grid;
}

int MatchingLevel(const PreparedImage& moving, const Geometry& fixed) {
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < moving.levels().size(); ++i) {
    const double distance = std::abs(std::log(VoxelScale(moving.levels()[i].volume.geometry) / VoxelScale(fixed)));
    if (distance < best_distance) {
      best_distance = distance;
      best = static_cast<int>(i);
    }
  }
  return best;
}

double MinSamples(const RegistrationImages& images, MetricKind metric, int index) {
  const Geometry& fixed = images.fixed->levels()[index].volume.geometry;
  const int moving_index = MatchingLevel(*images.moving, fixed);
  const Geometry& moving = images.moving->levels()[moving_index].volume.geometry;
  const double count = images.moving_masks[moving_index].count;
  const double moving_count = IsSliceOf(fixed, moving) ? std::pow(count, 2.0 / 3) : count;
  const double moving_in_fixed = moving_count * std::pow(VoxelScale(moving) / VoxelScale(fixed), fixed.is_2d() ? 2 : 3);
  const double interior = metric == MetricKind::kNgf ? InteriorFraction(fixed.size) : 1;
  return std::max(1.0, kMinOverlap * interior * std::min<double>(images.fixed_masks[index].count, moving_in_fixed));
}

absl::Status TooLittleOverlap() {
  return absl::FailedPreconditionError(
      absl::StrCat("the images (masks) overlap by less than ", kMinOverlap * 100, " %"));
}

bool IsBetter(const SampledValue& a, const SampledValue& b) {
  if (!a.value.has_value() || !b.value.has_value()) return a.value.has_value() && !b.value.has_value();
  if (a.samples < kComparableOverlap * b.samples) return false;
  if (b.samples < kComparableOverlap * a.samples) return true;
  return *a.value < *b.value;
}

bool IsClearlyWorse(std::optional<double> before, std::optional<double> after) {
  constexpr double kWorse = 1e-5;
  return before.has_value() && (!after.has_value() || *after > *before + kWorse * (1 + *before));
}

int EvaluationsAtOnce(const ExecContext& ctx, const Geometry& fixed) {
  if (!ctx.is_cuda()) return 1;
  return fixed.voxels() >= kLargeVoxels ? kAtOnceLarge : kAtOnceSmall;
}

}  // namespace intrawarp
