// SPDX-License-Identifier: Apache-2.0
// A transform without its deformation, in the form that it had with it.
#ifndef INTRAWARP_ENGINE_TRANSFORM_UNDEFORMED_H_
#define INTRAWARP_ENGINE_TRANSFORM_UNDEFORMED_H_

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// T(x) = A(x) of T(x) = A(x + u(x)): a control grid, a velocity or a displacement is 0 everywhere. `transform` gives up
// its memory before the same amount is allocated, unless it has copies. RESOURCE_EXHAUSTED without that memory.
// Stream-ordered.
absl::StatusOr<Transform> Undeformed(const ExecContext& ctx, Transform transform);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_UNDEFORMED_H_
