// SPDX-License-Identifier: Apache-2.0
// SparseMetrics: sparse products.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_SPARSE_SPARSE_METRICS_H_
#define INTRAWARP_SERVER_SPARSE_SPARSE_METRICS_H_

#include <chrono>
#include <cstdint>

#include "server/monitor/registry.h"

namespace intrawarp::server {

// Values of the label outcome.
enum class ProductOutcome { kOk, kRejected, kCancelled, kDeadlineMissed, kFailed };

// Values of the label plan, for products that may reuse plans.
enum class PlanUse { kMade, kReused };

class SparseMetrics {
 public:
  explicit SparseMetrics(Registry& registry);

  // One product: its duration from request to result, multiplications and additions, entries of the result; the latter
  // three are recorded for outcome kOk only.
  void ProductDone(ProductOutcome outcome, std::chrono::nanoseconds elapsed, int64_t flops, int64_t entries) const;

  // A product of two factors that may reuse plans has its plan.
  void PlanUsed(PlanUse use) const { plans_[use].Add(); }

 private:
  const EnumCounters<ProductOutcome> products_;
  const Histogram seconds_;
  const Counter flops_;
  const Counter entries_;
  const EnumCounters<PlanUse> plans_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SPARSE_SPARSE_METRICS_H_
