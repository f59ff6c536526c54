// SPDX-License-Identifier: Apache-2.0
#include "server/registration/recent_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RecentResultsTest : public testing::Test {
 protected:
  // Stores a result of so many bytes and keeps it.
  std::shared_ptr<Grant> Keep(const std::string& id, int64_t bytes) {
    return Store(id, std::make_shared<Grant>(*ledger_.Admit({{.resident_bytes = bytes}})));
  }
  std::shared_ptr<Grant> Store(const std::string& id, std::shared_ptr<Grant> reservation) {
    const auto stored = std::make_shared<const StoredTransform>(
        StoredTransform{id, {}, std::nullopt, reservation, Transform(AffineMap::Identity())});
    EXPECT_TRUE(store_.Insert(stored).ok());
    recent_.Add(stored);
    return reservation;
  }
  std::vector<std::string> Ids() const {
    std::vector<std::string> ids;
    for (const auto& stored : store_.List("", 100)) ids.push_back(stored->id);
    return ids;
  }

  static LedgerOptions Capacity() {
    LedgerOptions options;
    options.capacity.resident_bytes = 100;
    return options;
  }

  Ledger ledger_{Capacity()};
  TransformStore store_;
  RecentResults recent_{store_, 3};
};

TEST_F(RecentResultsTest, KeepsTheLastOnesAndDropsAllInTheEnd) {
  {
    RecentResults recent(store_, 2);
    for (const char* id : {"a", "b", "c"}) {
      const auto stored = std::make_shared<const StoredTransform>(
          StoredTransform{id, {}, std::nullopt, nullptr, Transform(AffineMap::Identity())});
      ASSERT_TRUE(store_.Insert(stored).ok());
      recent.Add(stored);
    }
    EXPECT_THAT(Ids(), ElementsAre("b", "c"));
  }
  EXPECT_THAT(Ids(), IsEmpty());
}

TEST_F(RecentResultsTest, TheOldestMakeRoomAndNoMoreThanAreNeeded) {
  for (const char* id : {"a", "b", "c"}) Keep(id, 30);
  recent_.MakeRoom(10, ledger_);
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "c"));
  recent_.MakeRoom(50, ledger_);
  EXPECT_THAT(Ids(), ElementsAre("c"));
  EXPECT_EQ(ledger_.in_use(Resource::kResident), 30);
}

TEST_F(RecentResultsTest, NothingIsDroppedInVain) {
  const Grant others = *ledger_.Admit({{.resident_bytes = 40}});
  for (const char* id : {"a", "b"}) Keep(id, 30);
  recent_.MakeRoom(61, ledger_);
  EXPECT_THAT(Ids(), ElementsAre("a", "b"));
}

TEST_F(RecentResultsTest, AResultWhoseMemoryOthersHoldStays) {
  const auto held = Keep("a", 30);
  Keep("b", 30);
  recent_.MakeRoom(60, ledger_);
  EXPECT_THAT(Ids(), ElementsAre("a"));
  recent_.MakeRoom(90, ledger_);
  EXPECT_THAT(Ids(), ElementsAre("a"));
}

TEST_F(RecentResultsTest, RoomInAPoolComesFromItsOwnPartsAlone) {
  const auto pool = GrantPool::Create(*ledger_.Admit({{.resident_bytes = 50}}));
  Keep("a", 30);
  Store("b", std::make_shared<Grant>(*pool->Lend({.resident_bytes = 30})));
  recent_.MakeRoom(51, *pool);
  EXPECT_THAT(Ids(), ElementsAre("a", "b"));
  recent_.MakeRoom(50, ledger_);
  EXPECT_THAT(Ids(), ElementsAre("b"));
  recent_.MakeRoom(50, *pool);
  EXPECT_THAT(Ids(), IsEmpty());
  EXPECT_EQ(pool->resident_bytes(), 50);
}

}  // namespace
}  // namespace intrawarp::server
