// SPDX-License-Identifier: Apache-2.0
// The store by owners, and with objects that are lost; transform_store_test.cc has the rest. The objects are plain: the
// store asks for no more.
#include "server/store/resident_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace intrawarp::server {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using std::chrono::system_clock;
using testing::ElementsAre;
using testing::IsEmpty;

struct Thing {
  static std::string Name(absl::string_view id) { return absl::StrCat("things/", id); }

  std::string id;
  std::string owner = {};
  std::optional<Expiry> expiry = std::nullopt;
  int form = 0;
};
using Things = ResidentStore<Thing>;

const Identity kAnn{"ann", Role::kFrame}, kBob{"bob", Role::kStage}, kEve{"eve", Role::kFrame};
const Identity kAdmin{"root", Role::kAdmin};

std::shared_ptr<const Thing> MakeThing(const std::string& id, const std::string& owner = "", int form = 0) {
  return std::make_shared<const Thing>(Thing{id, owner, std::nullopt, form});
}

std::vector<std::string> Keys(const std::vector<Things::Pointer>& page) {
  std::vector<std::string> keys;
  for (const Things::Pointer& thing : page) keys.push_back(absl::StrCat(thing->id, ":", thing->owner));
  return keys;
}

class ResidentStoreTest : public testing::Test {
 protected:
  void Insert(const std::string& id, const std::string& owner) {
    ASSERT_TRUE(things_.Insert(MakeThing(id, owner)).ok());
  }
  // The owner of what the caller finds, or the code of the error.
  std::string Owner(const std::string& id, const Identity& caller) const {
    const absl::StatusOr<Things::Pointer> found = things_.Find(id, caller);
    return found.ok() ? (*found)->owner : absl::StatusCodeToString(found.status().code());
  }
  static bool Any(const Thing&) { return true; }

  Things things_;
};

TEST_F(ResidentStoreTest, AnIdBelongsToItsOwner) {
  Insert("a", "ann");
  Insert("a", "bob");
  EXPECT_EQ(things_.Insert(MakeThing("a", "ann")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Owner("a", kAnn), "ann");
  EXPECT_EQ(Owner("a", kBob), "bob");
  EXPECT_EQ(Owner("a", kEve), "NOT_FOUND");
  EXPECT_EQ(Owner("a", Nobody()), "NOT_FOUND");
  EXPECT_EQ((*things_.FindOf("bob", "a"))->owner, "bob");
  EXPECT_EQ(things_.FindOf("", "a").status().message(), "there is no things/a");
}

TEST_F(ResidentStoreTest, AnAdminFindsTheOwnObjectFirstThenTheOnlyOneOfOthers) {
  Insert("a", "ann");
  EXPECT_EQ(Owner("a", kAdmin), "ann");
  EXPECT_EQ(*things_.OwnerOf("a", kAdmin), "ann");
  Insert("a", "bob");
  EXPECT_EQ(Owner("a", kAdmin), "FAILED_PRECONDITION") << "which one?";
  EXPECT_EQ(things_.OwnerOf("a", kAdmin).status(), SeveralOwners("things/a"));
  EXPECT_EQ(things_.Erase("a", kAdmin), SeveralOwners("things/a"));
  Insert("a", "root");
  EXPECT_EQ(Owner("a", kAdmin), "root");
  ASSERT_TRUE(things_.Erase("a", kAdmin).ok());
  EXPECT_EQ(Keys(things_.List("", 9)), (std::vector<std::string>{"a:ann", "a:bob"}));
}

// The keys of an id and of a longer one that begins with it are neighbours.
TEST_F(ResidentStoreTest, AnIdIsNotTheBeginningOfAnother) {
  Insert("a.b", "ann");
  Insert("a-1", "ann");
  EXPECT_EQ(Owner("a", kAdmin), "NOT_FOUND");
  Insert("a", "ann");
  EXPECT_EQ(Owner("a", kAdmin), "ann");
  EXPECT_EQ(*things_.OwnerOf("a.b", kAnn), "ann");
}

TEST_F(ResidentStoreTest, NobodyErasesWhatAnotherOwns) {
  Insert("a", "ann");
  EXPECT_EQ(things_.Erase("a", kBob).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(things_.Erase("a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Owner("a", kAnn), "ann");
  EXPECT_TRUE(things_.Erase("a", kAdmin).ok());
  EXPECT_EQ(Owner("a", kAnn), "NOT_FOUND");
}

TEST_F(ResidentStoreTest, PagesAreOfWhatTheCallerSees) {
  for (const char* id : {"c", "a", "b"}) Insert(id, "ann");
  Insert("b", "bob");
  EXPECT_THAT(Keys(things_.List("", 9, kAnn)), ElementsAre("a:ann", "b:ann", "c:ann"));
  EXPECT_THAT(Keys(things_.List("", 9, kBob)), ElementsAre("b:bob"));
  EXPECT_THAT(Keys(things_.List(OwnedKey("a", "ann"), 1, kBob)), ElementsAre("b:bob"))
      << "others' objects take no place on a page";
  EXPECT_THAT(Keys(things_.List("", 3, kAdmin)), ElementsAre("a:ann", "b:ann", "b:bob"));
  EXPECT_THAT(Keys(things_.List(OwnedKey("b", "ann"), 3, kAdmin)), ElementsAre("b:bob", "c:ann"));
  EXPECT_THAT(things_.List("", 9, kEve), IsEmpty());
  EXPECT_EQ(things_.size(), 4);
  EXPECT_EQ(things_.size(kAnn), 3);
  EXPECT_EQ(things_.size(kBob), 1);
  EXPECT_EQ(things_.size(kEve), 0);
}

TEST_F(ResidentStoreTest, ALostObjectKeepsItsIdUntilItIsErased) {
  const absl::Status damaged = ObjectDamaged("things/a", "a bit has turned");
  things_.MarkLost("a", damaged, "ann");
  EXPECT_EQ(things_.Find("a", kAnn).status(), damaged);
  EXPECT_EQ(things_.Find("a", kAdmin).status(), damaged);
  EXPECT_EQ(Owner("a", kBob), "NOT_FOUND");
  EXPECT_EQ(*things_.OwnerOf("a", kAdmin), "ann");
  EXPECT_EQ(things_.Insert(MakeThing("a", "ann")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(things_.Insert(MakeThing("a", "bob")).ok());
  EXPECT_EQ(things_.size(), 1);
  ASSERT_TRUE(things_.Erase("a", kAnn).ok());
  EXPECT_TRUE(things_.Insert(MakeThing("a", "ann")).ok());
}

TEST_F(ResidentStoreTest, LostObjectsHavePagesOfTheirOwn) {
  for (const char* id : {"b", "a", "c"}) things_.MarkLost(id, absl::DataLossError(""), "ann");
  things_.MarkLost("b", absl::DataLossError(""), "bob");
  Insert("d", "ann");
  EXPECT_THAT(things_.ListLost("", 2, kAnn), ElementsAre(OwnedKey("a", "ann"), OwnedKey("b", "ann")));
  EXPECT_THAT(things_.ListLost(OwnedKey("b", "ann"), 9, kAnn), ElementsAre(OwnedKey("c", "ann")));
  EXPECT_THAT(things_.ListLost("", 1, kBob), ElementsAre(OwnedKey("b", "bob")));
  EXPECT_EQ(things_.ListLost("", 9).size(), 4);
}

TEST_F(ResidentStoreTest, AnAdminTellsALostObjectFromItsNamesake) {
  Insert("a", "ann");
  things_.MarkLost("a", absl::DataLossError(""), "bob");
  EXPECT_EQ(Owner("a", kAdmin), "FAILED_PRECONDITION");
}

TEST_F(ResidentStoreTest, AnObjectIsLostOnlyWhileItIsTheOneThatWasMeant) {
  const auto thing = MakeThing("a", "ann", 1);
  ASSERT_TRUE(things_.Insert(thing).ok());
  const std::string key = OwnedKey("a", "ann");
  const auto is_second = [](const Thing& it) { return it.form == 2; };
  EXPECT_FALSE(things_.Lose(key, is_second, absl::DataLossError("")));
  EXPECT_EQ(Owner("a", kAnn), "ann");
  EXPECT_TRUE(things_.Lose(key, Any, absl::DataLossError("")));
  EXPECT_EQ(Owner("a", kAnn), "DATA_LOSS");
  EXPECT_FALSE(things_.Lose(key, Any, absl::DataLossError(""))) << "it is lost already";
  EXPECT_EQ(thing.use_count(), 1);
}

TEST_F(ResidentStoreTest, AnotherFormTakesThePlaceOfTheObjectThatWasMeant) {
  const auto first = MakeThing("a", "ann", 1), second = MakeThing("a", "ann", 2);
  ASSERT_TRUE(things_.Insert(first).ok());
  const std::string key = OwnedKey("a", "ann");
  const auto is_first = [](const Thing& it) { return it.form == 1; };
  EXPECT_TRUE(things_.Has(key, is_first));
  EXPECT_TRUE(things_.Exchange(key, is_first, second));
  EXPECT_FALSE(things_.Has(key, is_first));
  EXPECT_FALSE(things_.Exchange(key, is_first, first)) << "the object is another one";
  EXPECT_EQ(*things_.Find("a", kAnn), second);
  EXPECT_FALSE(things_.Exchange(OwnedKey("b", "ann"), Any, first));
  EXPECT_FALSE(things_.Has(OwnedKey("b", "ann"), Any));
}

TEST_F(ResidentStoreTest, OnlyAnObjectThatNobodyUsesIsReplaced) {
  const std::string key = OwnedKey("a", "ann");
  int made = 0;
  const auto make = [&made](const Thing& thing) {
    ++made;
    return MakeThing(thing.id, thing.owner, thing.form + 1);
  };
  Insert("a", "ann");
  {
    const Things::Pointer user = *things_.Find("a", kAnn);
    EXPECT_EQ(things_.ReplaceUnused(key, make), nullptr);
    EXPECT_EQ(made, 0);
  }
  const Things::Pointer replaced = things_.ReplaceUnused(key, make);
  ASSERT_NE(replaced, nullptr);
  EXPECT_EQ(replaced->form, 0);
  EXPECT_EQ((*things_.Find("a", kAnn))->form, 1);
  EXPECT_EQ(things_.ReplaceUnused(OwnedKey("b", "ann"), make), nullptr);
}

TEST_F(ResidentStoreTest, WhatHasExpiredIsToldBeforeItIsErased) {
  const steady_clock::time_point now{seconds(100)};
  const auto until = [](const std::string& id, steady_clock::time_point end) {
    return std::make_shared<const Thing>(Thing{id, "ann", Expiry{{}, end}});
  };
  ASSERT_TRUE(things_.Insert(until("past", now - seconds(1))).ok());
  ASSERT_TRUE(things_.Insert(until("now", now)).ok());
  ASSERT_TRUE(things_.Insert(until("later", now + seconds(1))).ok());
  Insert("stays", "ann");
  EXPECT_THAT(Keys(things_.Expired(now)), ElementsAre("now:ann", "past:ann"));
  EXPECT_EQ(things_.size(), 4);
}

TEST_F(ResidentStoreTest, AnIdIsFreeWhereTheOwnerHasNone) {
  Insert("a", "ann");
  EXPECT_EQ(CheckIdIsFree(things_, "a", "ann"), AlreadyExists("things/a"));
  EXPECT_TRUE(CheckIdIsFree(things_, "a", "bob").ok());
  const absl::Status damaged = ObjectDamaged("things/b", "a bit has turned");
  things_.MarkLost("b", damaged, "ann");
  EXPECT_EQ(CheckIdIsFree(things_, "b", "ann"), damaged);
}

TEST(OwnedKey, ComesApartAgain) {
  for (const char* owner : {"", "ann", "site/ann@example"}) {
    EXPECT_EQ(IdIn(OwnedKey("a.b", owner)), "a.b");
    EXPECT_EQ(OwnerIn(OwnedKey("a.b", owner)), owner);
  }
  EXPECT_LT(OwnedKey("a", "zoe"), OwnedKey("a-", "ann")) << "in order of id first";
}

TEST(ChargedBytes, NoObjectIsFree) {
  EXPECT_EQ(ChargedBytes(0), kLeastObjectBytes);
  EXPECT_EQ(ChargedBytes(kLeastObjectBytes + 1), kLeastObjectBytes + 1);
}

TEST(ExpiryAfter, IsByBothClocks) {
  const Seams seams{[] { return 7u; }, [] { return steady_clock::time_point(seconds(10)); },
                    [] { return system_clock::time_point(seconds(2000)); }};
  EXPECT_FALSE(ExpiryAfter(seams, std::nullopt).has_value());
  const std::optional<Expiry> expiry = ExpiryAfter(seams, seconds(5));
  ASSERT_TRUE(expiry.has_value());
  EXPECT_EQ(expiry->end, steady_clock::time_point(seconds(15)));
  EXPECT_EQ(expiry->time, system_clock::time_point(seconds(2005)));
}

}  // namespace
}  // namespace intrawarp::server
