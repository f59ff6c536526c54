// SPDX-License-Identifier: Apache-2.0
// ResidentStore: objects that are resident on the device, by id.
//
// An object is admitted by the ledger before anything is allocated for it, carries its grant, and is inserted once it
// is complete. Users hold a shared_ptr: a deleted object's memory is freed, and its grant is given back, when the last
// user lets go. An object with an expiry is erased by Expire once its time is over.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_STORE_RESIDENT_STORE_H_
#define INTRAWARP_SERVER_STORE_RESIDENT_STORE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/ledger/ledger.h"
#include "server/rpc/errors.h"
#include "server/rpc/rpc_support.h"

namespace intrawarp::server {

// The end of an object's life: as clients see it, and by the clock that ends it.
struct Expiry {
  std::chrono::system_clock::time_point time;
  std::chrono::steady_clock::time_point end;
};
// `ttl` from now on; nullopt for nullopt.
std::optional<Expiry> ExpiryAfter(const Seams& seams, std::optional<std::chrono::nanoseconds> ttl);

// The request that an object is the result of (request_table.h).
struct RequestKey {
  std::string id;
  std::string fingerprint;
};

// `Stored` has `id` and `expiry`, and says with Name(id) how clients call it; it is immutable once stored. FindByDigest
// needs `digest` and `id_was_chosen`, FindByRequest needs `request`.
template <typename Stored>
class ResidentStore {
 public:
  using Pointer = std::shared_ptr<const Stored>;

  // ALREADY_EXISTS when the id is taken.
  absl::Status Insert(Pointer object) {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string id = object->id;
    if (objects_.count(id) != 0 || lost_.count(id) != 0) return AlreadyExists(Stored::Name(id));
    objects_.emplace(id, std::move(object));
    return absl::OkStatus();
  }

  // NOT_FOUND names it; the error that MarkLost was given.
  absl::StatusOr<Pointer> Find(const std::string& id) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(id);
    if (it != objects_.end()) return it->second;
    const auto lost = lost_.find(id);
    if (lost != lost_.end()) return lost->second;
    return NotFound(Stored::Name(id));
  }

  // An object of this id is kept but cannot be had, for this reason: its id stays taken until it is erased.
  void MarkLost(const std::string& id, const absl::Status& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    lost_[id] = why;
  }

  // One whose id the server chose; null when there is none.
  Pointer FindByDigest(const std::string& digest) const {
    return FindIf([&](const Stored& object) { return object.id_was_chosen && object.digest == digest; });
  }

  // The result of the request with this id; null when there is none.
  Pointer FindByRequest(const std::string& request_id) const {
    return FindIf([&](const Stored& object) { return object.request && object.request->id == request_id; });
  }

  absl::Status Erase(const std::string& id) {
    Pointer erased;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(id);
    if (it == objects_.end()) return lost_.erase(id) != 0 ? absl::OkStatus() : NotFound(Stored::Name(id));
    erased = std::move(it->second);
    objects_.erase(it);
    return absl::OkStatus();
  }

  // Erases this very object, unless it went before; another one with its id stays.
  void Erase(const Pointer& object) {
    Pointer erased;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(object->id);
    if (it == objects_.end() || it->second != object) return;
    erased = std::move(it->second);
    objects_.erase(it);
  }

  // Erases the objects that end at `now` or before.
  void Expire(std::chrono::steady_clock::time_point now) {
    std::vector<Pointer> expired;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = objects_.begin(); it != objects_.end();) {
      const bool ends = it->second->expiry && it->second->expiry->end <= now;
      if (ends) expired.push_back(std::move(it->second));
      it = ends ? objects_.erase(it) : std::next(it);
    }
  }

  // The objects that end at `now` or before.
  std::vector<Pointer> Expired(std::chrono::steady_clock::time_point now) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Pointer> expired;
    for (const auto& [id, object] : objects_) {
      if (object->expiry && object->expiry->end <= now) expired.push_back(object);
    }
    return expired;
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
  template <typename Predicate>
  Pointer FindIf(const Predicate& matches) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, object] : objects_) {
      if (matches(*object)) return object;
    }
    return nullptr;
  }

  mutable std::mutex mutex_;
  std::map<std::string, Pointer> objects_;
  std::map<std::string, absl::Status> lost_;
};

// ALREADY_EXISTS when an object has the id; the error that MarkLost was given when it is a lost object's.
template <typename Stored>
absl::Status CheckIdIsFree(const ResidentStore<Stored>& store, const std::string& id) {
  const absl::Status found = store.Find(id).status();
  if (found.ok()) return AlreadyExists(Stored::Name(id));
  return absl::IsNotFound(found) ? absl::OkStatus() : found;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_RESIDENT_STORE_H_
