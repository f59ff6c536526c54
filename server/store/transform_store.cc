// SPDX-License-Identifier: Apache-2.0
#include "server/store/transform_store.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace intrawarp::server {

absl::Status TransformStore::Insert(std::shared_ptr<const StoredTransform> transform) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (transforms_.count(transform->id) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("transforms/", transform->id, " exists"));
  }
  if (static_cast<int64_t>(transforms_.size()) >= max_transforms_) {
    return absl::ResourceExhaustedError(absl::StrCat("transforms: ", max_transforms_, " are stored, the most allowed"));
  }
  transforms_.emplace(transform->id, std::move(transform));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StoredTransform>> TransformStore::Find(const std::string& id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = transforms_.find(id);
  if (it == transforms_.end()) return absl::NotFoundError(absl::StrCat("transforms/", id, " does not exist"));
  return it->second;
}

TransformStore::Pointer TransformStore::FindByDigest(const std::string& digest) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, transform] : transforms_) {
    if (transform->id_was_chosen && transform->digest == digest) return transform;
  }
  return nullptr;
}

absl::Status TransformStore::Erase(const std::string& id) {
  std::shared_ptr<const StoredTransform> erased;  // let go after the lock: it may free device memory
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = transforms_.find(id);
  if (it == transforms_.end()) return absl::NotFoundError(absl::StrCat("transforms/", id, " does not exist"));
  erased = std::move(it->second);
  transforms_.erase(it);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<const StoredTransform>> TransformStore::List(const std::string& after, int limit) const {
  std::vector<std::shared_ptr<const StoredTransform>> page;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = transforms_.upper_bound(after); it != transforms_.end() && static_cast<int>(page.size()) < limit;
       ++it) {
    page.push_back(it->second);
  }
  return page;
}

int64_t TransformStore::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(transforms_.size());
}

}  // namespace intrawarp::server
