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

// One entry a level of `image`, finest first; `mask` (null: none) lies on the image's grid, and the missing nodes of
// `left_out` (null: none) do not count either. Memory is taken from the arena and stays taken. FAILED_PRECONDITION
// ("NAME: selects no voxel") when no voxel is left. Waits for the stream.
absl::StatusOr<std::vector<MaskLevel>> BuildMaskLevels(const ExecContext& ctx, const char* name,
                                                       const PreparedImage& image, const PreparedImage* mask,
                                                       const MissingTissue* left_out = nullptr);
int64_t MaskLevelsWorkspaceBytes(const PreparedImage& image);

// A binary mask on `grid`, in the arena: without data where `mask` and `left_out` are null. Stream-ordered; reads
// left_out until the stream is waited for.
absl::StatusOr<ConstMaskView> BuildMask(const ExecContext& ctx, const Geometry& grid, const PreparedImage* mask,
                                        const MissingTissue* left_out);
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
