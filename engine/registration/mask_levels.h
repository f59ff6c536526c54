// SPDX-License-Identifier: Apache-2.0
// The masks of a registration, at every level of an image's pyramid.
#ifndef INTRAWARP_ENGINE_REGISTRATION_MASK_LEVELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_MASK_LEVELS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"

namespace intrawarp {

struct MaskLevel {
  // Without data where there is no mask.
  ConstMaskView mask;
  // Voxels that count.
  int64_t count = 0;
};

// One entry a level of `image`, finest first; `mask` (null: none) lies on the image's grid. Memory is taken from the
// arena and stays taken. FAILED_PRECONDITION ("NAME: selects no voxel") when the mask is empty. Waits for the stream.
absl::StatusOr<std::vector<MaskLevel>> BuildMaskLevels(const ExecContext& ctx, const char* name,
                                                       const PreparedImage& image, const PreparedImage* mask);
int64_t MaskLevelsWorkspaceBytes(const PreparedImage& image);

namespace cpu {
absl::Status CountMask(const ExecContext& ctx, ConstMaskView mask, unsigned long long* count);
}
namespace cuda {
// `count` in device memory; stream-ordered.
absl::Status CountMask(const ExecContext& ctx, ConstMaskView mask, unsigned long long* count);
}  // namespace cuda

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_MASK_LEVELS_H_
