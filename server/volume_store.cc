// SPDX-License-Identifier: Apache-2.0
#include "server/volume_store.h"

#include "absl/strings/str_cat.h"
#include "server/rpc_support.h"

namespace intrawarp {

ResidentReservation::~ResidentReservation() {
  if (budget_ == nullptr) return;
  std::lock_guard<std::mutex> lock(budget_->mutex_);
  budget_->used_bytes_ -= bytes_;
}

void ResidentReservation::Shrink(int64_t bytes) {
  if (budget_ == nullptr || bytes >= bytes_) return;
  std::lock_guard<std::mutex> lock(budget_->mutex_);
  budget_->used_bytes_ -= bytes_ - bytes;
  bytes_ = bytes;
}

absl::StatusOr<ResidentReservation> ResidentBudget::Reserve(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes < 0 || bytes > capacity_bytes_ - used_bytes_) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat("device memory for resident objects: ", bytes, " bytes asked, ",
                                                  used_bytes_, " of ", capacity_bytes_, " in use")),
        "RESIDENT_MEMORY");
  }
  used_bytes_ += bytes;
  return ResidentReservation(this, bytes);
}

int64_t ResidentBudget::used_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_bytes_;
}

absl::Status VolumeStore::Insert(std::shared_ptr<const StoredVolume> volume) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string id = volume->id;
  if (!volumes_.emplace(id, std::move(volume)).second) {
    return absl::AlreadyExistsError(absl::StrCat(VolumeName(id), " exists already, with other content"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StoredVolume>> VolumeStore::Find(const std::string& id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = volumes_.find(id);
  if (it == volumes_.end()) return absl::NotFoundError(absl::StrCat("there is no ", VolumeName(id)));
  return it->second;
}

std::shared_ptr<const StoredVolume> VolumeStore::FindByDigest(const std::string& digest) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, volume] : volumes_) {
    if (volume->id_was_chosen && volume->digest == digest) return volume;
  }
  return nullptr;
}

absl::Status VolumeStore::Erase(const std::string& id) {
  std::shared_ptr<const StoredVolume> erased;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = volumes_.find(id);
  if (it == volumes_.end()) return absl::NotFoundError(absl::StrCat("there is no ", VolumeName(id)));
  erased = std::move(it->second);
  volumes_.erase(it);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<const StoredVolume>> VolumeStore::List(const std::string& after, int limit) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<const StoredVolume>> page;
  for (auto it = volumes_.upper_bound(after); it != volumes_.end() && static_cast<int>(page.size()) < limit; ++it) {
    page.push_back(it->second);
  }
  return page;
}

int64_t VolumeStore::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(volumes_.size());
}

}  // namespace intrawarp
