// SPDX-License-Identifier: Apache-2.0
// The header of an upload, of whatever kind.
#ifndef INTRAWARP_SERVER_RESTORE_UPLOAD_HEADER_H_
#define INTRAWARP_SERVER_RESTORE_UPLOAD_HEADER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/context/limits.h"
#include "server/object/new_object.h"

namespace intrawarp::server {

// Content that needs no other object: all but new values for a resident matrix, which durable content never is.
// INVALID_ARGUMENT, with paths relative to the header. Allocates nothing of the sizes that it reads. The devices of a
// server are of one kind, and `device` is any of them. Thread-safe.
absl::StatusOr<std::unique_ptr<NewObject>> ParseUploadHeader(const v1::UploadHeader& header, const ServerLimits& limits,
                                                             const Device& device);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RESTORE_UPLOAD_HEADER_H_
