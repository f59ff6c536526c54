// SPDX-License-Identifier: Apache-2.0
#include "server/store/transform_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/object/new_object.h"
#include "server/store/request_table.h"

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
  TransformStore store;
  ASSERT_TRUE(store.Insert(Stored("a")).ok());

  EXPECT_EQ((*store.Find("a"))->id, "a");
  EXPECT_EQ(store.Find("b").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store.Find("b").status().message(), "there is no transforms/b");
}

TEST(TransformStoreTest, RefusesATakenId) {
  TransformStore store;
  ASSERT_TRUE(store.Insert(Stored("a")).ok());

  EXPECT_EQ(store.Insert(Stored("a")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(store.Insert(Stored("b")).ok());
  EXPECT_EQ(store.size(), 2);
}

TEST(TransformStoreTest, ListsInOrderAfterAPosition) {
  TransformStore store;
  for (const char* id : {"c", "a", "d", "b"}) ASSERT_TRUE(store.Insert(Stored(id)).ok());

  EXPECT_THAT(Ids(store.List("", 2)), testing::ElementsAre("a", "b"));
  EXPECT_THAT(Ids(store.List(OwnedKey("b", ""), 2)), testing::ElementsAre("c", "d"));
  EXPECT_THAT(Ids(store.List("bb", 8)), testing::ElementsAre("c", "d"));
  EXPECT_TRUE(store.List(OwnedKey("d", ""), 8).empty());
}

TEST(TransformStoreTest, ErasesAnObjectAndNotItsNamesake) {
  TransformStore store;
  const std::shared_ptr<const StoredTransform> first = Stored("a"), second = Stored("a");
  ASSERT_TRUE(store.Insert(first).ok());
  ASSERT_TRUE(store.Erase("a").ok());
  ASSERT_TRUE(store.Insert(second).ok());

  store.Erase(first);
  EXPECT_EQ(*store.Find("a"), second);
  store.Erase(second);
  EXPECT_EQ(store.size(), 0);
}

TEST(TransformStoreTest, ExpiresWhatEndsThenOrBefore) {
  const auto now = std::chrono::steady_clock::now();
  TransformStore store;
  const auto insert = [&](const std::string& id, std::optional<Expiry> expiry) {
    EXPECT_TRUE(store
                    .Insert(std::make_shared<StoredTransform>(
                        StoredTransform{id, {}, std::nullopt, nullptr, Transform(AffineMap::Identity()), expiry}))
                    .ok());
  };
  insert("stays", std::nullopt);
  insert("now", Expiry{{}, now});
  insert("later", Expiry{{}, now + std::chrono::nanoseconds(1)});

  store.Expire(now - std::chrono::nanoseconds(1));
  EXPECT_EQ(store.size(), 3);
  store.Expire(now);
  EXPECT_THAT(Ids(store.List("", 8)), testing::ElementsAre("later", "stays"));
}

TEST(TransformStoreTest, FindsTheResultOfARequestWhileItExists) {
  TransformStore store;
  const auto stored = std::make_shared<const StoredTransform>(StoredTransform{"a",
                                                                              {},
                                                                              std::nullopt,
                                                                              nullptr,
                                                                              Transform(AffineMap::Identity()),
                                                                              std::nullopt,
                                                                              RequestKey{"request", "content"}});
  ASSERT_TRUE(store.Insert(stored).ok());

  EXPECT_EQ(*FindResult(store, {"request", "content"}), stored);
  EXPECT_EQ(*FindResult(store, {"another", "content"}), nullptr);
  EXPECT_EQ(*FindResult(store, {"", "content"}), nullptr);
  EXPECT_EQ(ReasonOf(FindResult(store, {"request", "other"}).status()), v1::REQUEST_ID_REUSED);
  ASSERT_TRUE(store.Erase("a").ok());
  EXPECT_EQ(*FindResult(store, {"request", "content"}), nullptr);
}

TEST(TransformStoreTest, FindsUploadsByDigestWhateverHappenedToOthers) {
  const auto uploaded = [](const std::string& id, const std::string& digest, bool chosen,
                           const std::string& owner = "") {
    StoredTransform stored{id, {}, std::nullopt, nullptr, Transform(AffineMap::Identity())};
    stored.digest = digest;
    stored.id_was_chosen = chosen;
    stored.owner = owner;
    return std::make_shared<const StoredTransform>(std::move(stored));
  };
  const auto found = [](const TransformStore& store, const std::string& digest, const std::string& owner = "") {
    const auto object = store.FindByDigest(digest, owner);
    return object == nullptr ? std::string() : object->id;
  };
  TransformStore store;
  ASSERT_TRUE(store.Insert(uploaded("b", "x", true)).ok());
  ASSERT_TRUE(store.Insert(uploaded("a", "x", false)).ok());
  EXPECT_EQ(found(store, "x"), "b") << "a client chose the id of the other";
  EXPECT_EQ(found(store, "x", "ann"), "");
  ASSERT_TRUE(store.Insert(uploaded("c", "x", true)).ok());
  ASSERT_TRUE(store.Insert(uploaded("b", "x", true, "ann")).ok());
  EXPECT_EQ(found(store, "x"), "b") << "the first by id";
  EXPECT_EQ(found(store, "x", "ann"), "b");
  const auto is_it = [](const StoredTransform&) { return true; };
  ASSERT_TRUE(store.Exchange(OwnedKey("b", ""), is_it, uploaded("b", "x", true)));
  EXPECT_EQ(found(store, "x"), "b");
  ASSERT_TRUE(store.Lose(OwnedKey("b", ""), is_it, absl::DataLossError("")));
  EXPECT_EQ(found(store, "x"), "c");
  store.Erase(*store.FindOf("", "c"));
  EXPECT_EQ(found(store, "x"), "");
  EXPECT_EQ(found(store, "x", "ann"), "b");
}

TEST(TransformStoreTest, TheNumberOfObjectsIsBounded) {
  TransformStore store;
  for (int64_t i = 0; i < kMostObjects; ++i) {
    ASSERT_TRUE(CheckCount(store).ok()) << i;
    ASSERT_TRUE(store.Insert(Stored(std::to_string(i))).ok());
  }
  const absl::Status full = CheckCount(store);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_EQ(ReasonOf(full), v1::RESIDENT_MEMORY);
  ASSERT_TRUE(store.Erase("7").ok());
  EXPECT_TRUE(CheckCount(store).ok());
}

TEST(TransformStoreTest, AnErasedTransformLivesAsLongAsItsUsers) {
  TransformStore store;
  ASSERT_TRUE(store.Insert(Stored("a")).ok());
  std::shared_ptr<const StoredTransform> user = *store.Find("a");

  EXPECT_TRUE(store.Erase("a").ok());
  EXPECT_EQ(store.Erase("a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store.size(), 0);
  EXPECT_EQ(user.use_count(), 1);
}

}  // namespace
}  // namespace intrawarp::server
