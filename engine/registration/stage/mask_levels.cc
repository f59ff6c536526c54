// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/stage/mask_levels.h"

#include <algorithm>

#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/image/convert.h"
#include "engine/image/region.h"

namespace intrawarp {
namespace cpu {

absl::Status CountMask(const ExecContext&, ConstMaskView mask, unsigned long long* count) {
  const int64_t plane = int64_t{mask.geometry.size.x} * mask.geometry.size.y;
  *count = OrderedReduce<unsigned long long>(
      mask.geometry.size.z, 0,
      [&](int64_t z) {
        const uint8_t* p = mask.data + z * plane;
        return static_cast<unsigned long long>(plane - std::count(p, p + plane, uint8_t{0}));
      },
      [](unsigned long long& total, unsigned long long part) { total += part; });
  return absl::OkStatus();
}

}  // namespace cpu
namespace {

// Fills the mask as the images among the sources say.
absl::Status FillMask(const ExecContext& ctx, const MaskSources& sources, MaskView out) {
  const ConstVolumeView mask = sources.mask != nullptr ? sources.mask->volume() : ConstVolumeView();
  if (sources.weight != nullptr) return QuantizeWeights(ctx, sources.weight->volume(), mask, out);
  if (sources.mask != nullptr) return BinarizeMask(ctx, mask, out);
  return ctx.device().Fill(out.data, 1, out.geometry.voxels(), ctx.stream());
}

}  // namespace

absl::StatusOr<std::vector<MaskLevel>> BuildMaskLevels(const ExecContext& ctx, const char* name,
                                                       const PreparedImage& image, const MaskSources& sources) {
  INTRAWARP_ASSIGN_OR_RETURN(const ConstMaskView mask, BuildMask(ctx, image.geometry(), sources));
  if (mask.data != nullptr) return LevelsOfMask(ctx, name, image, mask);
  std::vector<MaskLevel> levels(image.levels().size());
  for (size_t i = 0; i < levels.size(); ++i) levels[i].count = image.levels()[i].volume.geometry.voxels();
  return levels;
}

absl::StatusOr<std::vector<MaskLevel>> LevelsOfMask(const ExecContext& ctx, const char* name,
                                                    const PreparedImage& image, ConstMaskView mask) {
  std::vector<MaskLevel> levels(image.levels().size());
  levels[0].mask = mask;
  INTRAWARP_ASSIGN_OR_RETURN(auto* counts, ctx.arena().Allocate<unsigned long long>(levels.size()));
  for (size_t i = 0; i < levels.size(); ++i) {
    if (i > 0) {
      const Geometry& grid = image.levels()[i].volume.geometry;
      INTRAWARP_ASSIGN_OR_RETURN(uint8_t * data, ctx.arena().Allocate<uint8_t>(grid.voxels()));
      const MaskView out{data, grid, mask.weight_per_unit};
      INTRAWARP_RETURN_IF_ERROR(DownsampleMask(ctx, levels[i - 1].mask, out));
      levels[i].mask = out;
    }
    INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, CountMask, levels[i].mask, counts + i));
  }
  std::vector<unsigned long long> host(levels.size());
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(host.data(), counts, host.size() * sizeof(host[0]), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  for (size_t i = 0; i < levels.size(); ++i) levels[i].count = static_cast<int64_t>(host[i]);
  if (levels[0].count == 0) return FieldError(absl::StatusCode::kFailedPrecondition, name, "selects no voxel");
  return levels;
}

int64_t MaskLevelsWorkspaceBytes(const PreparedImage& image) {
  int64_t bytes = Arena::Rounded(image.levels().size() * sizeof(unsigned long long));
  bytes += Arena::Rounded(ProbeGrid(image.geometry()).voxels());
  for (const PyramidLevel& level : image.levels()) bytes += Arena::Rounded(level.volume.geometry.voxels());
  return bytes;
}

absl::StatusOr<ConstMaskView> BuildMask(const ExecContext& ctx, const Geometry& grid, const MaskSources& sources) {
  const bool leaves_out = sources.left_out != nullptr && !sources.left_out->nodes.empty();
  if (!sources.has_images() && !leaves_out) return ConstMaskView();
  MaskView out{nullptr, grid, sources.weight != nullptr ? kWeightPerUnit : 1};
  INTRAWARP_ASSIGN_OR_RETURN(out.data, ctx.arena().Allocate<uint8_t>(grid.voxels()));
  INTRAWARP_RETURN_IF_ERROR(FillMask(ctx, sources, out));
  if (!leaves_out) return ConstMaskView(out);
  const std::vector<uint8_t>& nodes = sources.left_out->nodes;
  INTRAWARP_ASSIGN_OR_RETURN(uint8_t * region, ctx.arena().Allocate<uint8_t>(nodes.size()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(region, nodes.data(), nodes.size(), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ClearRegion(ctx, {region, sources.left_out->grid}, out));
  return ConstMaskView(out);
}

int64_t MaskWorkspaceBytes(const Geometry& grid) {
  return Arena::Rounded(grid.voxels()) + Arena::Rounded(ProbeGrid(grid).voxels());
}

}  // namespace intrawarp
