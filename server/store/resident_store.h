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

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/names.h"
#include "server/base/seams.h"
#include "server/identity/identity.h"
#include "server/ledger/ledger.h"
#include "server/status/errors.h"

namespace intrawarp::server {

// The end of an object's life: as clients see it, and by the clock that ends it.
struct Expiry {
  std::chrono::system_clock::time_point time;
  std::chrono::steady_clock::time_point end;
};
// `ttl` from now on; nullopt for nullopt.
std::optional<Expiry> ExpiryAfter(const Seams& seams, std::optional<std::chrono::nanoseconds> ttl);

// The request that an object is the result of (request_table.h). The id is its owner's.
struct RequestKey {
  std::string id;
  std::string fingerprint;
  std::string owner = {};
};

// An id belongs to its owner: two owners may have the same one, and neither learns of the other's.
inline std::string OwnedKey(absl::string_view id, absl::string_view owner) {
  // Lower than every character of an id, so that keys are in order of id.
  return absl::StrCat(id, "\x01", owner);
}

// The parts of such a key.
inline std::string IdIn(absl::string_view key) { return std::string(key.substr(0, key.find('\x01'))); }
inline std::string OwnerIn(absl::string_view key) { return std::string(key.substr(key.find('\x01') + 1)); }

// An object takes host memory beside its own, however small it is: none is charged less than this.
inline constexpr int64_t kLeastObjectBytes = 4096;
inline int64_t ChargedBytes(int64_t bytes) { return std::max(bytes, kLeastObjectBytes); }

// FAILED_PRECONDITION: an admin names an object by an id that several others have, and not the admin.
absl::Status SeveralOwners(absl::string_view name);

// `Stored` has `id`, `owner` and `expiry`, and says with Name(id) how clients call it; it is immutable once stored.
// FindByDigest needs `digest` and `id_was_chosen`, FindByRequest needs `request`.
//
// Functions with a caller see what is the caller's; an admin sees the objects of all owners, the own one first where
// ids are the same.
template <typename Stored>
class ResidentStore {
 public:
  using Pointer = std::shared_ptr<const Stored>;

  // ALREADY_EXISTS when the owner has the id.
  absl::Status Insert(Pointer object) {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string key = OwnedKey(object->id, object->owner);
    if (objects_.count(key) != 0 || lost_.count(key) != 0) return AlreadyExists(Stored::Name(object->id));
    Index(key, *object);
    objects_.emplace(key, std::move(object));
    return absl::OkStatus();
  }

  // NOT_FOUND names it; the error that MarkLost was given; SeveralOwners.
  absl::StatusOr<Pointer> Find(const std::string& id, const Identity& caller = Nobody()) const {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::StatusOr<std::string> key = KeyOf(id, caller);
    if (!key.ok()) return key.status();
    const auto it = objects_.find(*key);
    if (it != objects_.end()) return it->second;
    return lost_.find(*key)->second;
  }
  // The same for the objects of one owner.
  absl::StatusOr<Pointer> FindOf(const std::string& owner, const std::string& id) const {
    return Find(id, Identity{owner, Roles()});
  }
  // The owner of the object that Find finds, or finds lost.
  absl::StatusOr<std::string> OwnerOf(const std::string& id, const Identity& caller) const {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::StatusOr<std::string> key = KeyOf(id, caller);
    if (!key.ok()) return key.status();
    return key->substr(id.size() + 1);
  }

  // An object of this id is durable but cannot be had, for this reason: its id stays taken until it is erased.
  void MarkLost(const std::string& id, const absl::Status& why, const std::string& owner = "") {
    std::lock_guard<std::mutex> lock(mutex_);
    lost_[OwnedKey(id, owner)] = why;
  }

  // One of the owner's whose id the server chose; null when there is none.
  Pointer FindByDigest(const std::string& digest, const std::string& owner = "") const {
    std::lock_guard<std::mutex> lock(mutex_);
    return FirstIn(by_digest_, OwnedKey(digest, owner));
  }

  // The result of the owner's request with this id; null when there is none.
  Pointer FindByRequest(const std::string& request_id, const std::string& owner = "") const {
    std::lock_guard<std::mutex> lock(mutex_);
    return FirstIn(by_request_, OwnedKey(request_id, owner));
  }

  // The errors of OwnerOf.
  absl::Status Erase(const std::string& id, const Identity& caller = Nobody()) {
    Pointer erased;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const absl::StatusOr<std::string> key = KeyOf(id, caller);
    if (!key.ok()) return key.status();
    lost_.erase(*key);
    const auto it = objects_.find(*key);
    if (it != objects_.end()) erased = Remove(it);
    return absl::OkStatus();
  }

  // Erases this very object, unless it went before; another one with its id stays.
  void Erase(const Pointer& object) {
    Pointer erased;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(OwnedKey(object->id, object->owner));
    if (it == objects_.end() || it->second != object) return;
    erased = Remove(it);
  }

  // Calls `visit` with each object and its key, with the lock held.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, object] : objects_) visit(key, object);
  }
  // Whether the object with the key is the one that `is_it` says.
  template <typename Predicate>
  bool Has(const std::string& key, const Predicate& is_it) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(key);
    return it != objects_.end() && is_it(*it->second);
  }
  // Puts `with`, another form of the same object, in its place. False when it is gone.
  template <typename Predicate>
  bool Exchange(const std::string& key, const Predicate& is_it, Pointer with) {
    std::lock_guard<std::mutex> lock(mutex_);  // `with` is freed after the lock
    const auto it = objects_.find(key);
    if (it == objects_.end() || !is_it(*it->second)) return false;
    it->second.swap(with);
    return true;
  }
  // It is durable but cannot be had any more, as MarkLost. False when it is gone.
  template <typename Predicate>
  bool Lose(const std::string& key, const Predicate& is_it, const absl::Status& why) {
    Pointer lost;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(key);
    if (it == objects_.end() || !is_it(*it->second)) return false;
    lost = Remove(it);
    lost_[key] = why;
    return true;
  }
  // Puts what `make` makes of an object, another form of it, in its place if nobody else holds it, and returns the
  // object; otherwise null.
  template <typename Make>
  Pointer ReplaceUnused(const std::string& key, const Make& make) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = objects_.find(key);
    if (it == objects_.end() || it->second.use_count() > 1) return nullptr;
    Pointer made = make(*it->second);
    return std::exchange(it->second, std::move(made));
  }
  // Erases the objects that end at `now` or before.
  void Expire(std::chrono::steady_clock::time_point now) {
    std::vector<Pointer> expired;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = objects_.begin(); it != objects_.end();) {
      const auto next = std::next(it);
      if (it->second->expiry && it->second->expiry->end <= now) expired.push_back(Remove(it));
      it = next;
    }
  }

  // The objects that end at `now` or before.
  std::vector<Pointer> Expired(std::chrono::steady_clock::time_point now) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Pointer> expired;
    for (const auto& [key, object] : objects_) {
      if (object->expiry && object->expiry->end <= now) expired.push_back(object);
    }
    return expired;
  }

  // In order of id, then of owner, those after the one with the key `after` (OwnedKey; "" is before all), at most
  // `limit`.
  std::vector<Pointer> List(const std::string& after, int limit, const Identity& caller = Anybody()) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Pointer> page;
    for (auto it = objects_.upper_bound(after); it != objects_.end() && static_cast<int>(page.size()) < limit; ++it) {
      if (caller.MaySee(it->second->owner)) page.push_back(it->second);
    }
    return page;
  }

  // The same for the lost objects: their keys.
  std::vector<std::string> ListLost(const std::string& after, int limit, const Identity& caller = Anybody()) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> page;
    for (auto it = lost_.upper_bound(after); it != lost_.end() && static_cast<int>(page.size()) < limit; ++it) {
      if (caller.MaySee(OwnerIn(it->first))) page.push_back(it->first);
    }
    return page;
  }

  int64_t size(const Identity& caller = Anybody()) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (caller.is_admin()) return static_cast<int64_t>(objects_.size());
    return std::count_if(objects_.begin(), objects_.end(),
                         [&](const auto& entry) { return caller.MaySee(entry.second->owner); });
  }

 private:
  using Objects = std::map<std::string, Pointer>;
  // From what an object is found by to the keys of those objects, so that a search takes no longer when there are many.
  using Keys = std::map<std::string, std::set<std::string>>;

  // All with the mutex held.

  Pointer FirstIn(const Keys& keys, const std::string& name) const {
    const auto it = keys.find(name);
    return it == keys.end() ? nullptr : objects_.find(*it->second.begin())->second;
  }
  // Calls `visit` with each index that has the object, and its name there.
  template <typename Visit>
  void ForEachIndex(const Stored& object, const Visit& visit) {
    if constexpr (requires {
                    object.digest;
                    object.id_was_chosen;
                  }) {
      if (object.id_was_chosen) visit(by_digest_, OwnedKey(object.digest, object.owner));
    }
    if constexpr (requires { object.request; }) {
      if (object.request) visit(by_request_, OwnedKey(object.request->id, object.owner));
    }
  }
  void Index(const std::string& key, const Stored& object) {
    ForEachIndex(object, [&](Keys& keys, const std::string& name) { keys[name].insert(key); });
  }
  Pointer Remove(typename Objects::iterator it) {
    Pointer removed = std::move(it->second);
    ForEachIndex(*removed, [&](Keys& keys, const std::string& name) {
      const auto found = keys.find(name);
      found->second.erase(it->first);
      if (found->second.empty()) keys.erase(found);
    });
    objects_.erase(it);
    return removed;
  }

  bool Has(const std::string& key) const { return objects_.count(key) != 0 || lost_.count(key) != 0; }
  // The key of the object, or of the lost one, that the caller means by an id.
  absl::StatusOr<std::string> KeyOf(const std::string& id, const Identity& caller) const {
    const std::string own = OwnedKey(id, caller.name);
    if (Has(own)) return own;
    if (!caller.is_admin()) return NotFound(Stored::Name(id));
    std::vector<std::string> keys;
    AddKeysOf(id, objects_, keys);
    AddKeysOf(id, lost_, keys);
    if (keys.empty()) return NotFound(Stored::Name(id));
    if (keys.size() > 1) return SeveralOwners(Stored::Name(id));
    return keys.front();
  }
  template <typename Map>
  static void AddKeysOf(const std::string& id, const Map& map, std::vector<std::string>& keys) {
    const std::string first = OwnedKey(id, "");
    for (auto it = map.lower_bound(first); it != map.end() && absl::StartsWith(it->first, first); ++it) {
      keys.push_back(it->first);
    }
  }

  mutable std::mutex mutex_;
  Objects objects_;  // by OwnedKey
  Keys by_digest_;   // objects whose id the server chose
  Keys by_request_;
  std::map<std::string, absl::Status> lost_;
};

// ALREADY_EXISTS when an object of the owner's has the id; the error that MarkLost was given when it is a lost
// object's.
template <typename Stored>
absl::Status CheckIdIsFree(const ResidentStore<Stored>& store, const std::string& id, const std::string& owner) {
  const absl::Status found = store.FindOf(owner, id).status();
  if (found.ok()) return AlreadyExists(Stored::Name(id));
  return absl::IsNotFound(found) ? absl::OkStatus() : found;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_RESIDENT_STORE_H_
