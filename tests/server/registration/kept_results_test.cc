// SPDX-License-Identifier: Apache-2.0
#include "server/registration/kept_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class KeptResultsTest : public testing::Test {
 protected:
  // Stores a result of so many bytes and keeps it.
  std::shared_ptr<ResidentReservation> Keep(const std::string& id, int64_t bytes) {
    auto reservation = std::make_shared<ResidentReservation>(*budget_.Reserve(bytes));
    const auto stored = std::make_shared<const StoredTransform>(
        StoredTransform{id, {}, std::nullopt, reservation, Transform(AffineMap::Identity())});
    EXPECT_TRUE(store_.Insert(stored).ok());
    kept_.Keep(stored);
    return reservation;
  }
  std::vector<std::string> Ids() const {
    std::vector<std::string> ids;
    for (const auto& stored : store_.List("", 100)) ids.push_back(stored->id);
    return ids;
  }

  ResidentBudget budget_{100};
  TransformStore store_;
  KeptResults kept_{store_, 3};
};

TEST_F(KeptResultsTest, KeepsTheLastOnesAndDropsAllInTheEnd) {
  {
    KeptResults kept(store_, 2);
    for (const char* id : {"a", "b", "c"}) {
      const auto stored = std::make_shared<const StoredTransform>(
          StoredTransform{id, {}, std::nullopt, nullptr, Transform(AffineMap::Identity())});
      ASSERT_TRUE(store_.Insert(stored).ok());
      kept.Keep(stored);
    }
    EXPECT_THAT(Ids(), ElementsAre("b", "c"));
  }
  EXPECT_THAT(Ids(), IsEmpty());
}

TEST_F(KeptResultsTest, TheOldestMakeRoomAndNoMoreThanAreNeeded) {
  for (const char* id : {"a", "b", "c"}) Keep(id, 30);
  kept_.MakeRoom(10, budget_);
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "c"));
  kept_.MakeRoom(50, budget_);
  EXPECT_THAT(Ids(), ElementsAre("c"));
  EXPECT_EQ(budget_.used_bytes(), 30);
}

TEST_F(KeptResultsTest, NothingIsDroppedInVain) {
  const ResidentReservation others = *budget_.Reserve(40);
  for (const char* id : {"a", "b"}) Keep(id, 30);
  kept_.MakeRoom(61, budget_);
  EXPECT_THAT(Ids(), ElementsAre("a", "b"));
}

TEST_F(KeptResultsTest, AResultWhoseMemoryOthersHoldStays) {
  const auto held = Keep("a", 30);
  Keep("b", 30);
  kept_.MakeRoom(60, budget_);
  EXPECT_THAT(Ids(), ElementsAre("a"));
  kept_.MakeRoom(90, budget_);
  EXPECT_THAT(Ids(), ElementsAre("a"));
}

}  // namespace
}  // namespace intrawarp::server
