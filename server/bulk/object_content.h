// SPDX-License-Identifier: Apache-2.0
// The content of a computed object as an upload of it would bring it, so that a server that keeps its objects can make
// it again, bit for bit.
#ifndef INTRAWARP_SERVER_BULK_OBJECT_CONTENT_H_
#define INTRAWARP_SERVER_BULK_OBJECT_CONTENT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/bulk/device_bytes.h"
#include "server/bulk/staging_memory.h"
#include "server/context/server_context.h"
#include "server/store/durable_objects.h"

namespace intrawarp::server {

// In ordinary host memory, which counts as that of unfinished uploads until the disk has it. Movable.
struct ObjectContent {
  // Without ids, size and digest.
  v1::UploadHeader header;
  // Member order matters: memory is freed before it is given back.
  Grant grant;
  StagingMemory memory;
  int64_t bytes = 0;
};

// A content of up to `bytes` claims this of Resource::kUploading: nothing on a server that keeps no objects, and at
// most all there is, so that a result larger than the limit of uploads waits for all others.
int64_t ContentClaim(const ServerContext& context, int64_t bytes);

// Copies the bytes from the device piece by piece, and waits for the stream after each. `grant` holds ContentClaim;
// what is beyond the bytes is given back.
absl::StatusOr<ObjectContent> CopyContent(const ExecContext& ctx, v1::UploadHeader header, const DeviceBytes& from,
                                          Grant grant);

// Writes the content to the disk, and lets go of its memory and grant. Waits for the disk. The errors of
// DurableObjects::Keep.
absl::StatusOr<ObjectOrigin> KeepContent(DurableObjects& durable, ObjectContent content);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_OBJECT_CONTENT_H_
