// SPDX-License-Identifier: Apache-2.0
// Replicas: the copies of a resident object on other devices than its own. A copy is a cache: it goes with the object,
// and before it when room is needed and nobody uses it. Users of a copy hold it themselves.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_STORE_REPLICAS_H_
#define INTRAWARP_SERVER_STORE_REPLICAS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace intrawarp::server {

// Grows with each use of any replica.
inline int64_t NextReplicaUse() {
  static std::atomic<int64_t> uses{0};
  return ++uses;
}

template <typename Stored>
class Replicas {
 public:
  using Pointer = std::shared_ptr<const Stored>;

  // The copy on a device; null when there is none.
  Pointer Find(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = copies_.find(device);
    if (it == copies_.end()) return nullptr;
    it->second.last_use = NextReplicaUse();
    return it->second.object;
  }
  bool Has(int device) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return copies_.contains(device);
  }
  // `copy` lies on `device`, where there was none.
  void Insert(int device, Pointer copy) {
    std::lock_guard<std::mutex> lock(mutex_);
    copies_[device] = {std::move(copy), NextReplicaUse()};
  }
  // The last use of the copy on a device; nullopt when there is none that could be dropped.
  std::optional<int64_t> Droppable(int device) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = copies_.find(device);
    if (it == copies_.end() || it->second.object.use_count() > 1) return std::nullopt;
    return it->second.last_use;
  }
  // Drops the copy on a device unless somebody uses it; null when it stays.
  Pointer Drop(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = copies_.find(device);
    if (it == copies_.end() || it->second.object.use_count() > 1) return nullptr;
    Pointer dropped = std::move(it->second.object);
    copies_.erase(it);
    return dropped;
  }

 private:
  struct Copy {
    Pointer object;
    int64_t last_use = 0;
  };

  mutable std::mutex mutex_;
  std::map<int, Copy> copies_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_REPLICAS_H_
