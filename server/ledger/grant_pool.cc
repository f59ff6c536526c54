// SPDX-License-Identifier: Apache-2.0
#include "server/ledger/grant_pool.h"

#include <utility>

namespace intrawarp::server {

std::shared_ptr<GrantPool> GrantPool::Create(Grant grant) {
  return std::shared_ptr<GrantPool>(new GrantPool(std::move(grant)));
}

std::optional<Grant> GrantPool::Lend(const Amounts& amounts) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < kResources; ++i) {
    const auto resource = static_cast<Resource>(i);
    if (amounts[resource] > free_.held()[resource]) return std::nullopt;
  }
  Grant part = free_.Split(amounts);
  part.pool_ = shared_from_this();
  return part;
}

int64_t GrantPool::resident_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return free_.resident_bytes();
}

void GrantPool::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  free_.Shrink(Amounts());
}

void GrantPool::TakeBack(Grant part) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_closed_) free_.Merge(std::move(part));
}

}  // namespace intrawarp::server
