// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/sampled_image.h"

#include <algorithm>

#include "engine/feature/sampled_image_kernels.h"

namespace intrawarp {
namespace {

const PyramidLevel& LevelFor(const PreparedImage& image, double sample_mm) {
  const PyramidLevel* chosen = &image.levels().front();
  for (const PyramidLevel& level : image.levels()) {
    const Geometry& g = level.volume.geometry;
    const double finest = std::min({g.spacing.x, g.spacing.y, g.is_2d() ? g.spacing.x : g.spacing.z});
    if (finest <= 1.1 * sample_mm) chosen = &level;
  }
  return *chosen;
}

}  // namespace

SampledImage MakeSampledImage(const PreparedImage& image, ConstMaskView mask, double sample_mm) {
  const ConstVolumeView level = LevelFor(image, sample_mm).volume;
  SampledImage sampled;
  sampled.data = level.data;
  sampled.size = level.geometry.size;
  sampled.to_level = PhysicalToIndex(level.geometry);
  sampled.mask = mask.data;
  if (mask.data == nullptr) return sampled;
  sampled.to_mask = PhysicalToIndex(mask.geometry);
  sampled.mask_size = mask.geometry.size;
  sampled.weight_per_unit = mask.weight_per_unit;
  return sampled;
}

absl::Status SampleImage(const ExecContext& ctx, const PreparedImage& image, ConstMaskView mask,
                         const Transform& transform, const Geometry& grid, float* values, uint8_t* valid) {
  const double finest = std::min({grid.spacing.x, grid.spacing.y, grid.is_2d() ? grid.spacing.x : grid.spacing.z});
  const ImageSampling in{grid.size, MakeForwardMap(transform, IndexToPhysical(grid), AffineMap::Identity()),
                         MakeSampledImage(image, mask, finest)};
  return INTRAWARP_DISPATCH(ctx, SampleImage, in, values, valid);
}

}  // namespace intrawarp
