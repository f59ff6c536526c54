// SPDX-License-Identifier: Apache-2.0
#include "server/registration/recent_results.h"

#include <utility>
#include <vector>

namespace intrawarp::server {
namespace {

// Bytes that come free when the store and its keeper let go of the result: none while others hold it or its memory.
int64_t FreedBytes(const std::shared_ptr<const StoredTransform>& result, absl::FunctionRef<bool(const Grant&)> counts) {
  const bool held_by_two = result.use_count() <= 2;
  const auto& reservation = result->reservation;
  const bool is_freed = held_by_two && reservation != nullptr && reservation.use_count() == 1;
  return is_freed && counts(*reservation) ? reservation->resident_bytes() : 0;
}

}  // namespace

RecentResults::~RecentResults() {
  for (const auto& result : results_) store_.Erase(result);
}

void RecentResults::Add(std::shared_ptr<const StoredTransform> result) {
  results_.push_back(std::move(result));
  if (results_.size() <= count_) return;
  store_.Erase(results_.front());
  results_.pop_front();
}

void RecentResults::MakeRoom(int64_t needed, const Ledger& ledger, int device) {
  ledger.Reclaim(needed, Share::kSession, device);
  MakeRoom(needed, ledger.available(Resource::kResident, Share::kSession, device),
           [](const Grant& grant) { return !grant.is_lent(); });
}

void RecentResults::MakeRoom(int64_t needed, const GrantPool& pool) {
  MakeRoom(needed, pool.resident_bytes(), [&pool](const Grant& grant) { return pool.Lent(grant); });
}

void RecentResults::MakeRoom(int64_t needed, int64_t room, absl::FunctionRef<bool(const Grant&)> counts) {
  std::vector<std::shared_ptr<const StoredTransform>> dropped;
  std::deque<std::shared_ptr<const StoredTransform>> left;
  for (const auto& result : results_) {
    const int64_t freed = room < needed ? FreedBytes(result, counts) : 0;
    room += freed;
    if (freed > 0) {
      dropped.push_back(result);
    } else {
      left.push_back(result);
    }
  }
  if (room < needed || dropped.empty()) return;
  for (const auto& result : dropped) store_.Erase(result);
  results_ = std::move(left);
}

}  // namespace intrawarp::server
