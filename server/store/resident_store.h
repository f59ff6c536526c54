// SPDX-License-Identifier: Apache-2.0
// ResidentStore: objects that are resident on the device, by id, and ResidentBudget, the accounting of their memory.
//
// An object is reserved (its bytes are counted) before anything is allocated for it, and inserted once it is complete.
// Users hold a shared_ptr: a deleted object's memory is freed, and its bytes are given back, when the last user lets
// go.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_STORE_RESIDENT_STORE_H_
#define INTRAWARP_SERVER_STORE_RESIDENT_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace intrawarp::server {

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
  // Gives back what is beyond `bytes`.
  void ShrinkTo(int64_t bytes);

 private:
  class ResidentBudget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

// The cap on device memory held by resident objects: volumes, stored fields, matrices, uploads and products under way.
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

// `Stored` has `id`, `digest`, `id_was_chosen`, and says with Name(id) what a client calls it; it is immutable once
// stored.
template <typename Stored>
class ResidentStore {
 public:
  using Pointer = std::shared_ptr<const Stored>;

  // ALREADY_EXISTS when the id is taken.
  absl::Status Insert(Pointer object) {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string id = object->id;
    if (objects_.emplace(id, std::move(object)).second) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(Stored::Name(id), " exists already, with other content"));
  }

  // NOT_FOUND names it.
  absl::StatusOr<Pointer> Find(const std::string& id) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(id);
    if (it == objects_.end()) return absl::NotFoundError(absl::StrCat("there is no ", Stored::Name(id)));
    return it->second;
  }

  // One whose id the server chose; null when there is none.
  Pointer FindByDigest(const std::string& digest) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, object] : objects_) {
      if (object->id_was_chosen && object->digest == digest) return object;
    }
    return nullptr;
  }

  absl::Status Erase(const std::string& id) {
    Pointer erased;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(id);
    if (it == objects_.end()) return absl::NotFoundError(absl::StrCat("there is no ", Stored::Name(id)));
    erased = std::move(it->second);
    objects_.erase(it);
    return absl::OkStatus();
  }

  // In order of id, those after `after`, at most `limit`.
  std::vector<Pointer> List(const std::string& after, int limit) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Pointer> page;
    for (auto it = objects_.upper_bound(after); it != objects_.end() && static_cast<int>(page.size()) < limit; ++it) {
      page.push_back(it->second);
    }
    return page;
  }

  int64_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(objects_.size());
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Pointer> objects_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_RESIDENT_STORE_H_
