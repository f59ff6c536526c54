// SPDX-License-Identifier: Apache-2.0
#include "server/ledger/grant_pool.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace intrawarp::server {
namespace {

LedgerOptions Capacity() {
  LedgerOptions options;
  options.capacity = {.resident_bytes = 100, .transforms = 10};
  return options;
}

class GrantPoolTest : public testing::Test {
 protected:
  std::shared_ptr<GrantPool> MakePool(const Amounts& amounts) {
    return GrantPool::Create(*ledger_.Admit({amounts}, Share::kSession));
  }
  int64_t in_use() const { return ledger_.in_use(Resource::kResident); }

  Ledger ledger_{Capacity()};
};

TEST_F(GrantPoolTest, WhatAPartGivesBackIsThePoolsAgain) {
  const auto pool = MakePool({.resident_bytes = 60, .transforms = 2});
  {
    std::optional<Grant> part = pool->Lend({.resident_bytes = 50, .transforms = 1});
    ASSERT_TRUE(part.has_value());
    EXPECT_TRUE(part->is_lent());
    EXPECT_TRUE(pool->Lent(*part));
    EXPECT_EQ(pool->resident_bytes(), 10);
    part->ShrinkResident(20);
    EXPECT_EQ(part->resident_bytes(), 20);
    EXPECT_EQ(pool->resident_bytes(), 40);
    const Grant split = part->Split({.resident_bytes = 5});
    EXPECT_TRUE(pool->Lent(split));
    EXPECT_EQ(in_use(), 60);
  }
  EXPECT_EQ(pool->resident_bytes(), 60);
  EXPECT_TRUE(pool->Lend({.resident_bytes = 60, .transforms = 2}).has_value());
  EXPECT_EQ(in_use(), 60);
  EXPECT_EQ(ledger_.in_use(Resource::kTransforms), 2);
}

TEST_F(GrantPoolTest, NothingIsLentBeyondWhatIsThere) {
  const auto pool = MakePool({.resident_bytes = 60, .transforms = 1});
  EXPECT_FALSE(pool->Lend({.resident_bytes = 61}).has_value());
  EXPECT_FALSE(pool->Lend({.resident_bytes = 1, .transforms = 2}).has_value());
  const std::optional<Grant> part = pool->Lend({.resident_bytes = 30, .transforms = 1});
  EXPECT_FALSE(pool->Lend({.resident_bytes = 1, .transforms = 1}).has_value());
  EXPECT_FALSE(pool->Lent(*ledger_.Admit({{.resident_bytes = 1}})));
}

TEST_F(GrantPoolTest, AClosedPoolGivesAllToTheLedger) {
  const auto pool = MakePool({.resident_bytes = 60});
  std::optional<Grant> part = pool->Lend({.resident_bytes = 20});
  pool->Close();
  EXPECT_EQ(in_use(), 20);
  EXPECT_FALSE(pool->Lend({.resident_bytes = 1}).has_value());
  part->ShrinkResident(5);
  EXPECT_EQ(in_use(), 5);
  part.reset();
  EXPECT_EQ(in_use(), 0);
}

TEST_F(GrantPoolTest, APartOutlivesItsPool) {
  auto pool = MakePool({.resident_bytes = 60});
  std::optional<Grant> part = pool->Lend({.resident_bytes = 20});
  pool.reset();
  EXPECT_EQ(in_use(), 60);
  part.reset();
  EXPECT_EQ(in_use(), 0);
}

TEST_F(GrantPoolTest, ThreadsLoseNothing) {
  const auto pool = MakePool({.resident_bytes = 60, .transforms = 8});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 2000; ++i) {
        std::optional<Grant> part =
            pool->Lend({.resident_bytes = static_cast<int64_t>(random() % 30), .transforms = 1});
        if (part) part->ShrinkResident(static_cast<int64_t>(random() % 30));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->resident_bytes(), 60);
  EXPECT_EQ(in_use(), 60);
  EXPECT_EQ(ledger_.in_use(Resource::kTransforms), 8);
}

}  // namespace
}  // namespace intrawarp::server
