// SPDX-License-Identifier: Apache-2.0
// CoarseHook: takes the transform of a deformable stage as it stands before the finest level, for an early answer.
#ifndef INTRAWARP_ENGINE_REGISTRATION_STAGE_COARSE_HOOK_H_
#define INTRAWARP_ENGINE_REGISTRATION_STAGE_COARSE_HOOK_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/transform/transform.h"

namespace intrawarp {

struct CoarseHook {
  // Workspace that `call` takes from the arena of its context.
  int64_t workspace_bytes = 0;
  // Called on the thread of the registration. `transform` has the stage's native form and the fixed image's grid as its
  // domain; unlike a result, the exponential of its velocity may fold. Its memory is the registration's: it is used
  // during the call alone. An error ends the registration with that error.
  std::function<absl::Status(const ExecContext& ctx, const Transform& transform)> call;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_STAGE_COARSE_HOOK_H_
