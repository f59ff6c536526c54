// SPDX-License-Identifier: Apache-2.0
#include "server/store/replicas.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace intrawarp::server {
namespace {

using Copies = Replicas<int>;

TEST(Replicas, ACopyIsFoundOnItsDevice) {
  Copies copies;
  EXPECT_EQ(copies.Find(1), nullptr);
  EXPECT_FALSE(copies.Has(1));
  copies.Insert(1, std::make_shared<const int>(10));
  copies.Insert(2, std::make_shared<const int>(20));
  EXPECT_TRUE(copies.Has(1));
  EXPECT_FALSE(copies.Has(0));
  EXPECT_EQ(*copies.Find(1), 10);
  EXPECT_EQ(*copies.Find(2), 20);
  EXPECT_EQ(copies.Find(0), nullptr);
}

TEST(Replicas, ACopyInUseIsNotDropped) {
  Copies copies;
  copies.Insert(1, std::make_shared<const int>(10));
  Copies::Pointer user = copies.Find(1);
  EXPECT_FALSE(copies.Droppable(1).has_value());
  EXPECT_EQ(copies.Drop(1), nullptr);
  EXPECT_TRUE(copies.Has(1));
  user.reset();
  EXPECT_TRUE(copies.Droppable(1).has_value());
  const Copies::Pointer dropped = copies.Drop(1);
  ASSERT_NE(dropped, nullptr);
  EXPECT_EQ(*dropped, 10);
  EXPECT_EQ(dropped.use_count(), 1);
  EXPECT_FALSE(copies.Has(1));
}

TEST(Replicas, WhereThereIsNoneThereIsNothingToDrop) {
  Copies copies;
  copies.Insert(1, std::make_shared<const int>(10));
  EXPECT_FALSE(copies.Droppable(2).has_value());
  EXPECT_EQ(copies.Drop(2), nullptr);
  EXPECT_TRUE(copies.Has(1));
}

// Room is made by the copy that was used longest ago, whichever object it is of.
TEST(Replicas, UsesAreInOneOrderForAllObjects) {
  Copies first, second;
  first.Insert(1, std::make_shared<const int>(10));
  second.Insert(1, std::make_shared<const int>(20));
  EXPECT_LT(*first.Droppable(1), *second.Droppable(1));
  (void)first.Find(1);
  EXPECT_GT(*first.Droppable(1), *second.Droppable(1));
  const std::optional<int64_t> last = first.Droppable(1);
  (void)first.Has(1);
  EXPECT_EQ(first.Droppable(1), last) << "a look is not a use";
}

}  // namespace
}  // namespace intrawarp::server
