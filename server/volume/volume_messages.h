// SPDX-License-Identifier: Apache-2.0
// Volumes from the stores to the wire.
#ifndef INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_
#define INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_

#include <string>

#include "intrawarp/v1/volume.pb.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// Volume.provisional, kept in the provenance of a stored volume, with which it goes to the volume's other forms and
// copies: as a field that the wire does not know and that VolumeToProto leaves out.
void SetProvisional(v1::Provenance& provenance);
bool IsProvisional(const v1::Provenance& provenance);

v1::Volume VolumeToProto(const StoredVolume& volume);
// One that is kept but cannot be had.
v1::Volume FailedVolume(const std::string& id, const std::string& owner);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_
