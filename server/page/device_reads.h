// SPDX-License-Identifier: Apache-2.0
// The page's reads from a device: a field on a coarse grid, and an image's voxels. Both go over the copy lane, with
// pinned memory that the ledger grants, so that no frame waits for them.
//
// Errors: the ledger's (RESOURCE_EXHAUSTED), UNAVAILABLE when the lane stops, the device's. Thread-safe; both wait.
#ifndef INTRAWARP_SERVER_PAGE_DEVICE_READS_H_
#define INTRAWARP_SERVER_PAGE_DEVICE_READS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/image/pyramid.h"
#include "engine/transform/transform.h"
#include "server/context/server_context.h"
#include "server/page/shown_image.h"

namespace intrawarp::server {

// The transform's displacements on CoarseGrid(fixed), for `owner`'s account.
absl::StatusOr<ShownField> ReadField(DeviceContext& context, const Transform& transform, const Geometry& fixed,
                                     const std::string& owner);
// The finest level, float32.
absl::StatusOr<std::vector<float>> ReadVoxels(DeviceContext& context, const PreparedImage& image,
                                              const std::string& owner);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_DEVICE_READS_H_
