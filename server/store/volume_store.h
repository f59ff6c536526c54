// SPDX-License-Identifier: Apache-2.0
// The volumes of a server. On one that keeps its objects some of them may be without their voxels (residency.h).
#ifndef INTRAWARP_SERVER_STORE_VOLUME_STORE_H_
#define INTRAWARP_SERVER_STORE_VOLUME_STORE_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/image/pyramid.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/base/names.h"
#include "server/state/catalogue.h"
#include "server/store/replicas.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

class Residency;

// Member order matters: the image is freed before its reservation is given back.
struct StoredVolume {
  static std::string Name(absl::string_view id) { return VolumeName(id); }
  static constexpr state::ObjectKind kKind = state::ObjectKind::kVolume;

  std::string id;
  std::string owner;
  // By the server. Under an id that a client wanted, a volume is that client's, to delete when it likes.
  bool id_was_chosen = false;
  // Whether its voxels may leave the device while nobody uses it (residency.h).
  bool evictable = true;
  PixelType pixel_type = PixelType::kFloat32;
  std::string digest;           // SHA-256 over content_digest, pixel type, geometry, rescale and known provenance
  std::string content_digest;   // SHA-256 of the uploaded bytes alone
  v1::Provenance provenance;    // without a source: unknown
  bool is_provisional = false;  // Volume.provisional
  std::chrono::system_clock::time_point create_time;
  std::optional<Expiry> expiry;
  Grant reservation;
  PreparedImage image;
  // Shared with the other forms of the volume; null for one that cannot be loaded again (residency.h).
  std::shared_ptr<Residency> residency;
  const std::shared_ptr<Replicas<StoredVolume>> replicas = std::make_shared<Replicas<StoredVolume>>();
};

using VolumeStore = ResidentStore<StoredVolume>;

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_VOLUME_STORE_H_
