// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/mask_levels.h"

#include <algorithm>

#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/image/convert.h"

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

absl::StatusOr<std::vector<MaskLevel>> BuildMaskLevels(const ExecContext& ctx, const char* name,
                                                       const PreparedImage& image, const PreparedImage* mask) {
  std::vector<MaskLevel> levels(image.levels().size());
  for (size_t i = 0; i < levels.size(); ++i) levels[i].count = image.levels()[i].volume.geometry.voxels();
  if (mask == nullptr) return levels;
  INTRAWARP_ASSIGN_OR_RETURN(auto* counts, ctx.arena().Allocate<unsigned long long>(levels.size()));
  for (size_t i = 0; i < levels.size(); ++i) {
    const Geometry& grid = image.levels()[i].volume.geometry;
    INTRAWARP_ASSIGN_OR_RETURN(uint8_t * data, ctx.arena().Allocate<uint8_t>(grid.voxels()));
    const MaskView out{data, grid};
    INTRAWARP_RETURN_IF_ERROR(i == 0 ? BinarizeMask(ctx, mask->volume(), out)
                                     : DownsampleMask(ctx, levels[i - 1].mask, out));
    levels[i].mask = out;
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
  for (const PyramidLevel& level : image.levels()) bytes += Arena::Rounded(level.volume.geometry.voxels());
  return bytes;
}

}  // namespace intrawarp
