// SPDX-License-Identifier: Apache-2.0
// TransformStore: transforms by id: results of registrations with their reports, and ones that clients brought.
// As VolumeStore; bounded by a count, too, since an affine transform takes no device memory.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_STORE_TRANSFORM_STORE_H_
#define INTRAWARP_SERVER_STORE_TRANSFORM_STORE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/transform/transform.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

struct StoredTransform {
  static std::string Name(absl::string_view id) { return TransformName(id); }

  std::string id;
  std::chrono::system_clock::time_point create_time;
  // Of the registration that made it.
  std::optional<v1::Report> report;
  // Shared by all who hold the transform's memory and may outlive its place in the store; null: it has none.
  std::shared_ptr<ResidentReservation> reservation;
  Transform transform;
  // Of an upload: the SHA-256 of all that tells it from others; empty for the result of a registration.
  std::string digest{};
  // By the server, for an upload. Under an id that a client wanted, a transform is that client's, to delete when it
  // likes.
  bool id_was_chosen = false;
};

class TransformStore {
 public:
  using Pointer = std::shared_ptr<const StoredTransform>;

  explicit TransformStore(int64_t max_transforms) : max_transforms_(max_transforms) {}
  // ALREADY_EXISTS when the id is taken; RESOURCE_EXHAUSTED beyond the count.
  absl::Status Insert(std::shared_ptr<const StoredTransform> transform);
  // NOT_FOUND names "transforms/{id}".
  absl::StatusOr<std::shared_ptr<const StoredTransform>> Find(const std::string& id) const;
  // An upload whose id the server chose; null when there is none.
  Pointer FindByDigest(const std::string& digest) const;
  absl::Status Erase(const std::string& id);
  // In order of id, those after `after`, at most `limit`.
  std::vector<std::shared_ptr<const StoredTransform>> List(const std::string& after, int limit) const;
  int64_t size() const;

 private:
  const int64_t max_transforms_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const StoredTransform>> transforms_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_TRANSFORM_STORE_H_
