// SPDX-License-Identifier: Apache-2.0
// The masks of a registration, at every level of an image's pyramid.
#ifndef INTRAWARP_ENGINE_REGISTRATION_STAGE_MASK_LEVELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_STAGE_MASK_LEVELS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/quality/missing_tissue.h"

namespace intrawarp {

struct MaskLevel {
  // Without data where there is no mask.
  ConstMaskView mask;
  // Voxels that count.
  int64_t count = 0;
};

// What says how much the voxels of an image count; null: nothing. All of it together makes one mask.
struct MaskSources {
  // On the image's grid: a voxel counts where it is not 0.
  const PreparedImage* mask = nullptr;
  // On the image's grid, 0 to 1: the part by which a voxel counts.
  const PreparedImage* weight = nullptr;
  // Its missing nodes do not count.
  const MissingTissue* left_out = nullptr;

  bool has_images() const { return mask != nullptr || weight != nullptr; }
};

// One entry a level of `image`, finest first. Memory is taken from the arena and stays taken. FAILED_PRECONDITION
// ("NAME: selects no voxel") when no voxel is left. Waits for the stream.
absl::StatusOr<std::vector<MaskLevel>> BuildMaskLevels(const ExecContext& ctx, const char* name,
                                                       const PreparedImage& image, const MaskSources& sources);
int64_t MaskLevelsWorkspaceBytes(const PreparedImage& image);

// The same for a mask on the grid of `image`, which has data and stays the finest level; MaskLevelsWorkspaceBytes is
// enough.
absl::StatusOr<std::vector<MaskLevel>> LevelsOfMask(const ExecContext& ctx, const char* name,
                                                    const PreparedImage& image, ConstMaskView mask);

// A mask on `grid`, in the arena: without data where the sources leave out nothing, with bytes of 0 and 1 without
// weights, and otherwise with weight_per_unit = kWeightPerUnit. Stream-ordered; reads sources.left_out until the
// stream is waited for.
absl::StatusOr<ConstMaskView> BuildMask(const ExecContext& ctx, const Geometry& grid, const MaskSources& sources);
int64_t MaskWorkspaceBytes(const Geometry& grid);

namespace cpu {
absl::Status CountMask(const ExecContext& ctx, ConstMaskView mask, unsigned long long* count);
}
namespace cuda {
// `count` in device memory; stream-ordered.
absl::Status CountMask(const ExecContext& ctx, ConstMaskView mask, unsigned long long* count);
}  // namespace cuda

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_STAGE_MASK_LEVELS_H_
