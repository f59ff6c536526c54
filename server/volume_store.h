// SPDX-License-Identifier: Apache-2.0
// VolumeStore: the volumes that are resident on the device, by id, and the accounting of their memory.
//
// A volume is reserved (its bytes are counted) before anything is allocated for it, and committed once it is prepared.
// Users hold a shared_ptr: a deleted volume's memory is freed, and its bytes are given back, when the last user lets
// go.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_VOLUME_STORE_H_
#define INTRAWARP_SERVER_VOLUME_STORE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/image/pyramid.h"

namespace intrawarp {

// A share of the resident capacity; gives it back when it goes. Movable.
class ResidentReservation {
 public:
  ResidentReservation() = default;
  ResidentReservation(class ResidentBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}
  ResidentReservation(ResidentReservation&& other) noexcept { *this = std::move(other); }
  ResidentReservation& operator=(ResidentReservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ResidentReservation();
  int64_t bytes() const { return bytes_; }
  // Gives back what is more than `bytes`.
  void Shrink(int64_t bytes);

 private:
  class ResidentBudget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

// The cap on device memory held by resident objects: volumes, stored fields, and uploads under way.
class ResidentBudget {
 public:
  explicit ResidentBudget(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
  // RESOURCE_EXHAUSTED, with what is asked, used and allowed, beyond the capacity.
  absl::StatusOr<ResidentReservation> Reserve(int64_t bytes);
  int64_t used_bytes() const;
  int64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  friend class ResidentReservation;
  const int64_t capacity_bytes_;
  mutable std::mutex mutex_;
  int64_t used_bytes_ = 0;
};

// Immutable once stored. Member order matters: the image is freed before its reservation is given back.
struct StoredVolume {
  std::string id;
  // By the server. Under an id that a client wanted, a volume is that client's, to delete when it likes.
  bool id_was_chosen = false;
  PixelType pixel_type = PixelType::kFloat32;
  std::string digest;          // SHA-256 over content_digest, pixel type, geometry and rescale
  std::string content_digest;  // SHA-256 of the uploaded bytes alone
  std::chrono::system_clock::time_point create_time;
  ResidentReservation reservation;
  PreparedImage image;
};

class VolumeStore {
 public:
  // ALREADY_EXISTS when the id is taken.
  absl::Status Insert(std::shared_ptr<const StoredVolume> volume);
  // NOT_FOUND names "volumes/{id}".
  absl::StatusOr<std::shared_ptr<const StoredVolume>> Find(const std::string& id) const;
  // One whose id the server chose; null when there is none.
  std::shared_ptr<const StoredVolume> FindByDigest(const std::string& digest) const;
  absl::Status Erase(const std::string& id);
  // In order of id, those after `after`, at most `limit`.
  std::vector<std::shared_ptr<const StoredVolume>> List(const std::string& after, int limit) const;
  int64_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const StoredVolume>> volumes_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_SERVER_VOLUME_STORE_H_
