// SPDX-License-Identifier: Apache-2.0
#include "server/store/transform_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace intrawarp::server {
namespace {

std::shared_ptr<const StoredTransform> Stored(const std::string& id) {
  return std::make_shared<StoredTransform>(
      StoredTransform{id, {}, std::nullopt, nullptr, Transform(AffineMap::Identity())});
}

std::vector<std::string> Ids(const std::vector<std::shared_ptr<const StoredTransform>>& page) {
  std::vector<std::string> ids;
  for (const auto& stored : page) ids.push_back(stored->id);
  return ids;
}

TEST(TransformStoreTest, FindsWhatWasInserted) {
  TransformStore store(8);
  ASSERT_TRUE(store.Insert(Stored("a")).ok());

  EXPECT_EQ((*store.Find("a"))->id, "a");
  EXPECT_EQ(store.Find("b").status(), absl::NotFoundError("transforms/b does not exist"));
}

TEST(TransformStoreTest, RefusesATakenIdAndMoreThanItsCount) {
  TransformStore store(2);
  ASSERT_TRUE(store.Insert(Stored("a")).ok());

  EXPECT_EQ(store.Insert(Stored("a")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(store.Insert(Stored("b")).ok());
  EXPECT_EQ(store.Insert(Stored("c")).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store.size(), 2);
}

TEST(TransformStoreTest, ListsInOrderAfterAPosition) {
  TransformStore store(8);
  for (const char* id : {"c", "a", "d", "b"}) ASSERT_TRUE(store.Insert(Stored(id)).ok());

  EXPECT_THAT(Ids(store.List("", 2)), testing::ElementsAre("a", "b"));
  EXPECT_THAT(Ids(store.List("b", 2)), testing::ElementsAre("c", "d"));
  EXPECT_THAT(Ids(store.List("bb", 8)), testing::ElementsAre("c", "d"));
  EXPECT_TRUE(store.List("d", 8).empty());
}

TEST(TransformStoreTest, AnErasedTransformLivesAsLongAsItsUsers) {
  TransformStore store(8);
  ASSERT_TRUE(store.Insert(Stored("a")).ok());
  std::shared_ptr<const StoredTransform> user = *store.Find("a");

  EXPECT_TRUE(store.Erase("a").ok());
  EXPECT_EQ(store.Erase("a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store.size(), 0);
  EXPECT_EQ(user.use_count(), 1);
}

}  // namespace
}  // namespace intrawarp::server
