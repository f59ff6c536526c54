// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/sparse_metrics.h"

namespace intrawarp::server {
namespace {

constexpr const char* kProductOutcomes[] = {"ok", "rejected", "cancelled", "deadline_missed", "failed"};
constexpr const char* kPlanUses[] = {"made", "reused"};

}  // namespace

SparseMetrics::SparseMetrics(Registry& registry)
    : products_(registry.Counters("intrawarp_products_total", "Sparse products, by how they ended.", {"outcome"}),
                kProductOutcomes),
      seconds_(registry.NewHistogram("intrawarp_product_seconds",
                                     "From the request of a sparse product to the last byte handed to the transport.",
                                     kLongBuckets)),
      flops_(registry.NewCounter("intrawarp_product_flops_total",
                                 "Multiplications and additions of sparse products that ended well.")),
      entries_(registry.NewCounter("intrawarp_product_nonzeros_total",
                                   "Entries of the results of sparse products that ended well.")),
      plans_(registry.Counters("intrawarp_product_plans_total",
                               "Products of two factors with reuse_plan, by where their plan came from.", {"plan"}),
             kPlanUses) {}

void SparseMetrics::ProductDone(ProductOutcome outcome, std::chrono::nanoseconds elapsed, int64_t flops,
                                int64_t entries) const {
  products_[outcome].Add();
  if (outcome != ProductOutcome::kOk) return;
  seconds_.Observe(Seconds(elapsed));
  flops_.Add(static_cast<double>(flops));
  entries_.Add(static_cast<double>(entries));
}

}  // namespace intrawarp::server
