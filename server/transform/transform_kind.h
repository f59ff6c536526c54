// SPDX-License-Identifier: Apache-2.0
// Transforms as the bulk service receives them (server/object/new_object.h).
#ifndef INTRAWARP_SERVER_TRANSFORM_TRANSFORM_KIND_H_
#define INTRAWARP_SERVER_TRANSFORM_TRANSFORM_KIND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/context/limits.h"
#include "server/object/new_object.h"
#include "server/store/transform_store.h"

namespace intrawarp::server {

// A header whose content is a transform. INVALID_ARGUMENT, with paths relative to the header, when it is wrong or
// announces more than the limits allow. Allocates nothing of the sizes it reads.
absl::StatusOr<std::unique_ptr<NewObjectOf<StoredTransform>>> ParseTransformUpload(const v1::UploadHeader& header,
                                                                                   const ServerLimits& limits);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_TRANSFORM_TRANSFORM_KIND_H_
