// SPDX-License-Identifier: Apache-2.0
// ProductPlans: plans of sparse products that stay for later products whose operands share the same patterns.
//
// A plan here is a cache. It counts as resident memory of nobody, is taken in only where there is room, and goes when
// that memory is wanted (Drop), when there are more than kMostPlans, the one used longest ago first, and when no matrix
// has the pattern of one of its operands any more (Expire). Whoever uses a plan holds it. Patterns are told apart by
// their pointers, never by their content.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_SPARSE_PRODUCT_PLANS_H_
#define INTRAWARP_SERVER_SPARSE_PRODUCT_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/sparse/multiply.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

// What a plan was made of: products with the same key get the same plan. `options` has neither mask nor addend.
struct ProductKey {
  std::shared_ptr<const CsrPattern> a, b;
  MultiplyOptions options;
};

// Member order matters: the plan is freed before its memory is given back.
struct HeldPlan {
  Grant reservation;  // empty: the plan belongs to one product, which has reserved its memory
  MultiplyPlan plan;
  MultiplyEstimate estimate;  // of the product that it was made for
};

class ProductPlans {
 public:
  static constexpr size_t kMostPlans = 64;

  // The ledger outlives it.
  explicit ProductPlans(Ledger& ledger) : ledger_(ledger) {}

  // Null when there is none.
  std::shared_ptr<const HeldPlan> Find(const ProductKey& key);
  // Takes in a plan of a product on `device`, unless there is one with its key or too little memory is free.
  void Insert(const ProductKey& key, int device, const std::shared_ptr<HeldPlan>& plan);

  // For Ledger::set_reclaim: drops plans on a device that nobody uses, those used longest ago first, until `bytes` are
  // freed.
  void Drop(int device, int64_t bytes);
  // Drops the plans of patterns that no matrix has any more; after a delete, and now and then. Insert does so, too.
  void Expire();
  // Resident memory of a device that Drop could free.
  int64_t EvictableBytes(int device) const;
  int64_t size() const;

 private:
  using Pointer = std::shared_ptr<const HeldPlan>;

  // In order of use, the one used longest ago first.
  struct Entry {
    std::weak_ptr<const CsrPattern> a, b;
    MultiplyOptions options;
    Pointer plan;
  };

  // Drops the plans that `goes` names; false when there is none.
  template <typename Goes>
  bool DropIf(const Goes& goes);
  // With the mutex held.
  std::vector<Entry>::iterator FindEntry(const ProductKey& key);

  Ledger& ledger_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SPARSE_PRODUCT_PLANS_H_
