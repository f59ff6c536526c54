// SPDX-License-Identifier: Apache-2.0
#include "server/store/resident_store.h"

#include "server/rpc/rpc_support.h"

namespace intrawarp::server {

ResidentReservation::~ResidentReservation() { ShrinkTo(0); }

void ResidentReservation::ShrinkTo(int64_t bytes) {
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

}  // namespace intrawarp::server
