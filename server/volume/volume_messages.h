// SPDX-License-Identifier: Apache-2.0
// Volumes from the stores to the wire.
#ifndef INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_
#define INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_

#include <string>

#include "intrawarp/v1/volume.pb.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

v1::Volume VolumeToProto(const StoredVolume& volume);
// One that is durable but cannot be had.
v1::Volume FailedVolume(const std::string& id, const std::string& owner);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_
