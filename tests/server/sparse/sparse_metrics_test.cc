// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/sparse_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

TEST(SparseMetrics, ProductsCountTheirWorkWhenTheyEndWell) {
  Registry registry;
  const SparseMetrics metrics(registry);
  EXPECT_THAT(registry.Scrape(), HasSubstr("intrawarp_products_total{outcome=\"deadline_missed\"} 0\n"));
  metrics.ProductDone(ProductOutcome::kOk, std::chrono::milliseconds(40), 600, 70);
  metrics.ProductDone(ProductOutcome::kRejected, std::chrono::milliseconds(40), 600, 70);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"rejected\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_seconds_sum 0.04\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_flops_total 600\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_nonzeros_total 70\n"));
}

TEST(SparseMetrics, PlansAreCountedByWhereTheyCameFrom) {
  Registry registry;
  const SparseMetrics metrics(registry);
  metrics.PlanUsed(PlanUse::kMade);
  metrics.PlanUsed(PlanUse::kReused);
  metrics.PlanUsed(PlanUse::kReused);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_product_plans_total{plan=\"made\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_plans_total{plan=\"reused\"} 2\n"));
}

}  // namespace
}  // namespace intrawarp::server
