// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/product_plans.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/status/statusor.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {
namespace {

// By owner, so that a pattern at the address of one that is gone is another pattern.
bool IsPattern(const std::weak_ptr<const CsrPattern>& known, const std::shared_ptr<const CsrPattern>& pattern) {
  return !known.owner_before(pattern) && !pattern.owner_before(known);
}

// Bit for bit: a factor of -0 gives other zeros than 0.
bool SameOptions(const MultiplyOptions& a, const MultiplyOptions& b) {
  return a.precision == b.precision && a.semiring == b.semiring && a.path == b.path &&
         a.many_executions == b.many_executions && a.transpose_a == b.transpose_a &&
         std::bit_cast<uint64_t>(a.alpha) == std::bit_cast<uint64_t>(b.alpha);
}

// Whether nobody but the cache holds the plan.
bool IsUnusedOn(const std::shared_ptr<const HeldPlan>& plan, int device) {
  return plan->reservation.device() == device && plan.use_count() == 1;
}

}  // namespace

std::vector<ProductPlans::Entry>::iterator ProductPlans::FindEntry(const ProductKey& key) {
  return std::find_if(entries_.begin(), entries_.end(), [&key](const Entry& entry) {
    return IsPattern(entry.a, key.a) && IsPattern(entry.b, key.b) && SameOptions(entry.options, key.options);
  });
}

std::shared_ptr<const HeldPlan> ProductPlans::Find(const ProductKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = FindEntry(key);
  if (found == entries_.end()) return nullptr;
  std::rotate(found, found + 1, entries_.end());
  return entries_.back().plan;
}

void ProductPlans::Insert(const ProductKey& key, int device, const std::shared_ptr<HeldPlan>& plan) {
  Expire();
  const int64_t bytes = ChargedBytes(plan->plan.bytes());
  // A cache takes no memory that would have to be freed for it.
  if (bytes > ledger_.available(Resource::kResident, Share::kCommon, device)) return;
  absl::StatusOr<Grant> reservation = ledger_.Admit({{.resident_bytes = bytes}, JobClass::kBatch, device});
  if (!reservation.ok()) return;
  Pointer dropped;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  if (FindEntry(key) != entries_.end()) return;
  if (entries_.size() == kMostPlans) {
    dropped = std::move(entries_.front().plan);
    entries_.erase(entries_.begin());
  }
  plan->reservation = *std::move(reservation);
  entries_.push_back({key.a, key.b, key.options, plan});
}

template <typename Goes>
bool ProductPlans::DropIf(const Goes& goes) {
  std::vector<Pointer> dropped;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (!goes(*entry)) {
      ++entry;
      continue;
    }
    dropped.push_back(std::move(entry->plan));
    entry = entries_.erase(entry);
  }
  return !dropped.empty();
}

void ProductPlans::Drop(int device, int64_t bytes) {
  DropIf([&bytes, device](const Entry& entry) {
    if (bytes <= 0 || !IsUnusedOn(entry.plan, device)) return false;
    bytes -= entry.plan->reservation.resident_bytes();
    return true;
  });
}

void ProductPlans::Expire() {
  // The pattern of a triple product's first product may go with the plan of that product.
  while (DropIf([](const Entry& entry) { return entry.a.expired() || entry.b.expired(); })) {
  }
}

int64_t ProductPlans::EvictableBytes(int device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (IsUnusedOn(entry.plan, device)) bytes += entry.plan->reservation.resident_bytes();
  }
  return bytes;
}

int64_t ProductPlans::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

}  // namespace intrawarp::server
