// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/choose/intensity_relation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"

namespace intrawarp {
namespace {

constexpr int64_t kMostFixedVoxels = 64 * 64 * 64;
constexpr int64_t kMostMovingVoxels = 8 * kMostFixedVoxels;

// Calls all of them, on as many cores as there are.
void InParallel(const std::vector<std::function<void()>>& calls) {
  ParallelFor(static_cast<int64_t>(calls.size()), [&](int64_t i) { calls[i](); });
}

struct Moments {
  double mean = 0;
  // The sum of squared deviations from the mean.
  double squares = 0;
};

Moments MomentsOf(absl::Span<const float> values) {
  Moments moments;
  for (const float value : values) moments.mean += value;
  moments.mean /= static_cast<double>(values.size());
  for (const float value : values) moments.squares += (value - moments.mean) * (value - moments.mean);
  return moments;
}

// The part of the variance of `of` that the classes of `by` explain.
double CorrelationRatio(absl::Span<const float> by, absl::Span<const float> of, const Moments& moments) {
  const auto [low, high] = std::minmax_element(by.begin(), by.end());
  const double scale = kIntensityClasses / (static_cast<double>(*high) - *low);
  std::array<double, kIntensityClasses> sums{}, counts{};
  for (size_t i = 0; i < by.size(); ++i) {
    // The difference of two floats may be no float.
    const double place = (static_cast<double>(by[i]) - *low) * scale;
    const int index = static_cast<int>(std::clamp(place, 0.0, kIntensityClasses - 1.0));
    sums[index] += of[i] - moments.mean;
    counts[index] += 1;
  }
  double explained = 0;
  for (int k = 0; k < kIntensityClasses; ++k) {
    if (counts[k] > 0) explained += sums[k] * sums[k] / counts[k];
  }
  return explained / moments.squares;
}

// A level of an image on the host, with its mask; an empty mask selects every voxel.
struct HostLevel {
  Geometry grid;
  std::vector<float> values;
  std::vector<uint8_t> mask;

  size_t Index(int x, int y, int z) const {
    return (static_cast<size_t>(z) * grid.size.y + y) * static_cast<size_t>(grid.size.x) + x;
  }
};

absl::StatusOr<HostLevel> Read(const ExecContext& ctx, const PreparedImage& image, const std::vector<MaskLevel>& masks,
                               int index) {
  const ConstVolumeView volume = image.levels()[index].volume;
  HostLevel level{volume.geometry, std::vector<float>(volume.geometry.voxels()), {}};
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Copy(level.values.data(), volume.data, level.values.size() * sizeof(float), ctx.stream()));
  if (masks[index].mask.data != nullptr) {
    level.mask.resize(level.values.size());
    INTRAWARP_RETURN_IF_ERROR(
        ctx.device().Copy(level.mask.data(), masks[index].mask.data, level.mask.size(), ctx.stream()));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return level;
}

// The value of `level` at an index, linear between voxel centres; absent outside the voxels and the mask.
std::optional<float> Sample(const HostLevel& level, Vec3d q) {
  int at[3], nearest[3];
  double part[3];
  for (int a = 0; a < 3; ++a) {
    const int n = level.grid.size[a];
    const double p = n == 1 && level.grid.is_2d() ? 0 : q[a];
    if (!(p >= -0.5 && p <= n - 0.5)) return std::nullopt;
    const double inside = std::clamp(p, 0.0, n - 1.0);
    nearest[a] = std::min(static_cast<int>(inside + 0.5), n - 1);
    at[a] = std::clamp(static_cast<int>(inside), 0, std::max(n - 2, 0));
    part[a] = inside - at[a];
  }
  if (!level.mask.empty() && level.mask[level.Index(nearest[0], nearest[1], nearest[2])] == 0) return std::nullopt;
  double sum = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    int index[3];
    for (int a = 0; a < 3; ++a) {
      const int step = (corner >> a) & 1;
      weight *= step == 1 ? part[a] : 1 - part[a];
      index[a] = std::min(at[a] + step, level.grid.size[a] - 1);
    }
    sum += weight * level.values[level.Index(index[0], index[1], index[2])];
  }
  return static_cast<float>(sum);
}

// The values of both images where both have one, in the order of the fixed voxels.
struct PairedSamples {
  std::vector<float> fixed, moving;
};

PairedSamples SampleSlice(const HostLevel& fixed, const HostLevel& moving, const AffineMap& to_moving, int z) {
  PairedSamples samples;
  for (int y = 0; y < fixed.grid.size.y; ++y) {
    for (int x = 0; x < fixed.grid.size.x; ++x) {
      const size_t voxel = fixed.Index(x, y, z);
      if (!fixed.mask.empty() && fixed.mask[voxel] == 0) continue;
      const std::optional<float> sample =
          Sample(moving, to_moving({static_cast<double>(x), static_cast<double>(y), static_cast<double>(z)}));
      if (!sample.has_value()) continue;
      samples.fixed.push_back(fixed.values[voxel]);
      samples.moving.push_back(*sample);
    }
  }
  return samples;
}

PairedSamples SamplePairs(const HostLevel& fixed, const HostLevel& moving, const AffineMap& to_moving) {
  const auto append = [](PairedSamples& all, const PairedSamples& slice) {
    all.fixed.insert(all.fixed.end(), slice.fixed.begin(), slice.fixed.end());
    all.moving.insert(all.moving.end(), slice.moving.begin(), slice.moving.end());
  };
  return OrderedReduce(
      fixed.grid.size.z, PairedSamples(),
      [&](int64_t z) { return SampleSlice(fixed, moving, to_moving, static_cast<int>(z)); }, append);
}

// The finest level from `first` on that has at most so many voxels. The coarsest level of a pyramid has fewer.
int LevelWithin(const PreparedImage& image, int64_t most_voxels, int first) {
  const int last = static_cast<int>(image.levels().size()) - 1;
  int index = first;
  while (index < last && image.levels()[index].volume.geometry.voxels() > most_voxels) ++index;
  return index;
}

}  // namespace

std::optional<IntensityRelation> RelationOf(absl::Span<const float> fixed, absl::Span<const float> moving) {
  if (fixed.size() < kLeastRelatedSamples) return std::nullopt;
  Moments f, m;
  InParallel({[&] { f = MomentsOf(fixed); }, [&] { m = MomentsOf(moving); }});
  if (!(f.squares > 0 && m.squares > 0)) return std::nullopt;
  double products = 0, of_moving = 0, of_fixed = 0;
  const auto sum_products = [&] {
    for (size_t i = 0; i < fixed.size(); ++i) products += (fixed[i] - f.mean) * (moving[i] - m.mean);
  };
  InParallel({sum_products, [&] { of_moving = CorrelationRatio(fixed, moving, m); },
              [&] { of_fixed = CorrelationRatio(moving, fixed, f); }});
  IntensityRelation relation;
  relation.samples = static_cast<int64_t>(fixed.size());
  relation.correlation = products / std::sqrt(f.squares * m.squares);
  relation.correlation_ratio = std::max(of_moving, of_fixed);
  return relation;
}

absl::StatusOr<std::optional<IntensityRelation>> MeasureIntensityRelation(const ExecContext& ctx,
                                                                          const RegistrationImages& images,
                                                                          const AffineMap& map) {
  const int index = LevelWithin(*images.fixed, kMostFixedVoxels, 0);
  const Geometry& fixed_grid = images.fixed->levels()[index].volume.geometry;
  const int moving_index = LevelWithin(*images.moving, kMostMovingVoxels, MatchingLevel(*images.moving, fixed_grid));
  if (images.fixed_masks[index].count == 0 || images.moving_masks[moving_index].count == 0) return std::nullopt;
  INTRAWARP_ASSIGN_OR_RETURN(const HostLevel fixed, Read(ctx, *images.fixed, images.fixed_masks, index));
  INTRAWARP_ASSIGN_OR_RETURN(const HostLevel moving, Read(ctx, *images.moving, images.moving_masks, moving_index));
  const AffineMap to_moving = Compose(PhysicalToIndex(moving.grid), Compose(map, IndexToPhysical(fixed.grid)));
  const PairedSamples samples = SamplePairs(fixed, moving, to_moving);
  return RelationOf(samples.fixed, samples.moving);
}

}  // namespace intrawarp
