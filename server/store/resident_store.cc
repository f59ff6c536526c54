// SPDX-License-Identifier: Apache-2.0
#include "server/store/resident_store.h"

#include "absl/strings/str_cat.h"

namespace intrawarp::server {

std::optional<Expiry> ExpiryAfter(const Seams& seams, std::optional<std::chrono::nanoseconds> ttl) {
  if (!ttl) return std::nullopt;
  const auto system_ttl = std::chrono::duration_cast<std::chrono::system_clock::duration>(*ttl);
  const auto steady_ttl = std::chrono::duration_cast<std::chrono::steady_clock::duration>(*ttl);
  return Expiry{seams.system_now() + system_ttl, seams.steady_now() + steady_ttl};
}

ResidentReservation::~ResidentReservation() { ShrinkTo(0); }

void ResidentReservation::ShrinkTo(int64_t bytes) {
  if (budget_ == nullptr || bytes >= bytes_) return;
  std::lock_guard<std::mutex> lock(budget_->mutex_);
  budget_->used_bytes_ -= bytes_ - bytes;
  bytes_ = bytes;
}

absl::StatusOr<ResidentReservation> ResidentBudget::Reserve(int64_t bytes) {
  if (bytes < 0 || bytes > capacity_bytes_) return ExceedsCapacity("resident_memory", bytes, capacity_bytes_);
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > capacity_bytes_ - used_bytes_) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat("device memory for resident objects: ", bytes, " bytes asked, ",
                                                  used_bytes_, " of ", capacity_bytes_, " in use")),
        v1::RESIDENT_MEMORY, InUse(bytes, used_bytes_, capacity_bytes_));
  }
  used_bytes_ += bytes;
  return ResidentReservation(this, bytes);
}

int64_t ResidentBudget::used_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_bytes_;
}

}  // namespace intrawarp::server
