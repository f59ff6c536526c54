// SPDX-License-Identifier: Apache-2.0
// Volumes that the server reads itself, on their way into the store: by the checks, claims, jobs and files of uploads
// (server/service/upload.h), without a client.
#ifndef INTRAWARP_SERVER_PACS_PUT_VOLUME_H_
#define INTRAWARP_SERVER_PACS_PUT_VOLUME_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"
#include "intrawarp/v1/volume.pb.h"
#include "io/format/volume.h"
#include "server/context/server_context.h"

namespace intrawarp::server {

// Where a volume comes from and what it is to be called.
struct NewVolume {
  std::string owner;
  std::string id;
  v1::Provenance provenance;
  // More images of it may come (volume.proto).
  bool is_provisional = false;
  // Before any memory is taken for the voxels.
  Geometry geometry;
  // Reads the voxels, once there is room for them.
  std::function<absl::StatusOr<io::HostVolume>()> read;
  // Asked now and then: whether nobody wants the volume any more.
  std::function<bool()> cancelled;
};

struct PutResult {
  std::string name;  // "volumes/{id}"
  std::string content_digest;
  std::string object_digest;
};

// Waits for the device and the disk, and for up to `patience` until others have given back the memory that it wants.
// Errors: those of `read`, of uploads (INVALID_FIELD, EXCEEDS_CAPACITY, RESIDENT_MEMORY, QUEUE_FULL, RESOURCE_EXISTS,
// STATE_FULL, ...); CANCELLED. The same volume under the same id is not an error.
absl::StatusOr<PutResult> PutVolume(ServerContext& context, const NewVolume& volume, std::chrono::nanoseconds patience);

// Whether the same volume may be put later: others hold the memory now, or the disk, the device or a stop is in the
// way.
bool MayPass(const absl::Status& status);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_PUT_VOLUME_H_
