// SPDX-License-Identifier: Apache-2.0
// The content of a computed transform (server/bulk/object_content.h).
#ifndef INTRAWARP_SERVER_TRANSFORM_TRANSFORM_CONTENT_H_
#define INTRAWARP_SERVER_TRANSFORM_TRANSFORM_CONTENT_H_

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/transform/transform.h"
#include "server/bulk/object_content.h"

namespace intrawarp::server {

// The affine map alone, control points, a velocity (whose exponentials are made again) or displacements. The domain of
// an affine map is not in it. Waits for the stream. `grant` as CopyContent's.
absl::StatusOr<ObjectContent> CopyTransform(const ExecContext& ctx, const Transform& transform, Grant grant);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_TRANSFORM_TRANSFORM_CONTENT_H_
