// SPDX-License-Identifier: Apache-2.0
#include "server/operation/operation_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;

std::string Series(OperationKind kind, OperationState state, int64_t count) {
  return absl::StrCat("intrawarp_operations{kind=\"", NameOf(kind), "\",state=\"", NameOf(state), "\"} ", count, "\n");
}

TEST(OperationMetrics, EverySeriesExistsBeforeAnythingHappens) {
  Registry registry;
  const OperationMetrics metrics(registry);
  const std::string text = registry.Scrape();
  for (const OperationKind kind : kOperationKinds) {
    for (const OperationState state : kOperationStates) EXPECT_THAT(text, HasSubstr(Series(kind, state, 0)));
  }
}

TEST(OperationMetrics, EachCountGoesToItsKindAndState) {
  Registry registry;
  const OperationMetrics metrics(registry);
  OperationCounts counts{};
  int64_t next = 1;
  for (auto& of_kind : counts) {
    for (int64_t& count : of_kind) count = next++;
  }
  metrics.Set(counts);
  std::string text = registry.Scrape();
  next = 1;
  for (const OperationKind kind : kOperationKinds) {
    for (const OperationState state : kOperationStates) EXPECT_THAT(text, HasSubstr(Series(kind, state, next++)));
  }
  // What is forgotten is counted no more.
  metrics.Set({});
  text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr(Series(kOperationKinds.front(), kOperationStates.back(), 0)));
}

}  // namespace
}  // namespace intrawarp::server
