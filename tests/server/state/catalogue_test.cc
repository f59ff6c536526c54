// SPDX-License-Identifier: Apache-2.0
#include "server/state/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/state/test_files.h"

namespace intrawarp::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// With zeros and bytes above 127 in everything that is not text.
ObjectRow Row(ObjectKind kind, const std::string& id) {
  ObjectRow row;
  row.kind = kind;
  row.id = id;
  row.id_was_chosen = true;
  row.header = std::string("h\0\xff", 3) + id;
  row.payload = std::string(32, '\x80');
  row.payload_bytes = int64_t{1} << 40;
  row.identity = std::string(32, '\0');
  row.create_time = 1'700'000'000'123'456'789;
  row.expire_time = row.create_time + 1;
  row.request_id = "r-" + id;
  row.request_fingerprint = std::string("\0f", 2);
  return row;
}

std::unique_ptr<Catalogue> OpenIn(FileLayer& files) {
  auto catalogue = Catalogue::Open(files, "d/c.db");
  EXPECT_TRUE(catalogue.ok()) << catalogue.status();
  return catalogue.ok() ? *std::move(catalogue) : nullptr;
}

TEST(Catalogue, RowsComeBackAsTheyWent) {
  MemoryDisk disk;
  ObjectRow plain;
  plain.kind = ObjectKind::kTransform;
  plain.id = "plain";
  const ObjectRow full = Row(ObjectKind::kVolume, "full");
  {
    const auto catalogue = OpenIn(disk);
    ASSERT_TRUE(catalogue->Insert(plain).ok());
    ASSERT_TRUE(catalogue->Insert(full).ok());
    EXPECT_EQ(catalogue->Insert(full).code(), absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE(*catalogue->UsesPayload(full.payload));
    EXPECT_FALSE(*catalogue->UsesPayload(std::string(32, 'x')));
  }
  const auto catalogue = OpenIn(disk);
  const auto rows = catalogue->List();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(*rows, ElementsAre(full, plain));
  EXPECT_TRUE(catalogue->CheckIntegrity().ok());
}

TEST(Catalogue, ARemovedRowIsGoneAndItsIdIsFree) {
  MemoryDisk disk;
  const auto catalogue = OpenIn(disk);
  const ObjectRow row = Row(ObjectKind::kVolume, "a");
  ASSERT_TRUE(catalogue->Insert(row).ok());
  ASSERT_TRUE(catalogue->Insert(Row(ObjectKind::kTransform, "a")).ok()) << "ids belong to a kind";
  EXPECT_TRUE(catalogue->Remove(row.kind, row.id).ok());
  EXPECT_EQ(catalogue->Remove(row.kind, row.id).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(catalogue->PayloadOf(row.kind, row.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(catalogue->Insert(row).ok());
}

TEST(Catalogue, AnInsertedRowOutlivesALossOfPower) {
  for (int seed = 0; seed < 20; ++seed) {
    MemoryDisk disk;
    FaultyFiles files(disk, Fault::kGone);
    auto catalogue = OpenIn(files);
    for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(catalogue->Insert(Row(ObjectKind::kVolume, id)).ok());
    ASSERT_TRUE(catalogue->Remove(ObjectKind::kVolume, "b").ok());
    files.Unplug();
    disk.LosePower(seed);
    const auto after = OpenIn(disk);
    ASSERT_NE(after, nullptr);
    EXPECT_THAT(*after->List(), ElementsAre(Row(ObjectKind::kVolume, "a"), Row(ObjectKind::kVolume, "c"))) << seed;
  }
}

TEST(Catalogue, AnOlderVersionIsBroughtForwardAndANewerOneRefused) {
  MemoryDisk disk;
  ASSERT_TRUE(OpenIn(disk)->Insert(Row(ObjectKind::kVolume, "a")).ok());
  std::vector<const char*> later(Catalogue::Schema().begin(), Catalogue::Schema().end());
  later.push_back("CREATE TABLE more (x INTEGER);");
  {
    const auto migrated = Catalogue::Open(disk, "d/c.db", later);
    ASSERT_TRUE(migrated.ok()) << migrated.status();
    EXPECT_THAT(*(*migrated)->List(), ElementsAre(Row(ObjectKind::kVolume, "a")));
  }
  const absl::Status refused = Catalogue::Open(disk, "d/c.db").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("has version 6, this program knows versions up to 5"));
}

// Rows as version 1 wrote them.
std::string FirstVersion() {
  return std::string(Catalogue::Schema()[0]) +
         "INSERT INTO objects VALUES (1, 'a', 1, x'68', x'', x'80ff', 7, x'00', 123, 456, 'r', x'66');"
         "INSERT INTO objects VALUES (3, 'b', 0, x'68', x'64', x'', 0, x'', 124, NULL, '', x'');";
}

TEST(Catalogue, WhatWasKeptBeforeThereWereOwnersIsNobodys) {
  MemoryDisk disk;
  const std::string first = FirstVersion();
  const std::vector<const char*> old = {first.c_str()};
  ASSERT_TRUE(Catalogue::Open(disk, "d/c.db", old).ok());
  ObjectRow a;
  a.kind = ObjectKind::kVolume;
  a.id = "a";
  a.id_was_chosen = true;
  a.header = "h";
  a.payload = "\x80\xff";
  a.payload_bytes = 7;
  a.identity = std::string(1, '\0');
  a.create_time = 123;
  a.expire_time = 456;
  a.request_id = "r";
  a.request_fingerprint = "f";
  ObjectRow b;
  b.kind = ObjectKind::kTransform;
  b.id = "b";
  b.header = "h";
  b.description = "d";
  b.create_time = 124;
  const auto catalogue = OpenIn(disk);
  ASSERT_NE(catalogue, nullptr);
  EXPECT_THAT(*catalogue->List(), ElementsAre(a, b));
  EXPECT_TRUE(*catalogue->UsesPayload(a.payload));
  EXPECT_TRUE(catalogue->CheckIntegrity().ok());
  ObjectRow owned = a;
  owned.owner = "or3";
  EXPECT_TRUE(catalogue->Insert(owned).ok()) << "an id belongs to its owner";
  EXPECT_EQ(catalogue->Insert(owned).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(*catalogue->List(), ElementsAre(a, owned, b));
  EXPECT_TRUE(catalogue->Remove(a.kind, a.id).ok());
  EXPECT_TRUE(*catalogue->UsesPayload(a.payload)) << "the other owner's";
  EXPECT_THAT(*catalogue->List(), ElementsAre(owned, b));
}

SessionRow Session(const std::string& id, const std::string& owner) {
  SessionRow row;
  row.id = id;
  row.owner = owner;
  row.incarnation = "first";
  row.by_admin = true;
  row.config = std::string("c\0\xff", 3) + id;
  row.resident = std::string(32, '\x81');
  row.description = std::string("d\0", 2);
  row.start_header = std::string("h\0", 2);
  row.start_description = "t";
  row.chosen = std::string(1, '\0');
  row.payload = std::string(32, '\x82');
  row.payload_bytes = int64_t{1} << 40;
  return row;
}

TEST(Catalogue, SessionsComeBackAsTheyWent) {
  MemoryDisk disk;
  SessionRow full = Session("s", "or3"), plain;
  plain.id = "s";
  {
    const auto catalogue = OpenIn(disk);
    ASSERT_TRUE(catalogue->InsertSession(full).ok());
    ASSERT_TRUE(catalogue->InsertSession(plain).ok()) << "an id belongs to its owner";
    EXPECT_TRUE(*catalogue->UsesPayload(full.payload));
    EXPECT_EQ(*catalogue->SessionPayload("s", "or3"), full.payload);
    EXPECT_EQ(*catalogue->SessionPayload("s", ""), "") << "one of 0 bytes";
    EXPECT_EQ(*catalogue->SessionPayload("t", ""), "");
  }
  const auto catalogue = OpenIn(disk);
  EXPECT_THAT(*catalogue->ListSessions(), ElementsAre(plain, full));
  full.description = "later";
  full.payload = std::string(32, '\x83');
  ASSERT_TRUE(catalogue->UpdateSession(full).ok());
  EXPECT_THAT(*catalogue->ListSessions(), ElementsAre(plain, full));
  EXPECT_FALSE(*catalogue->UsesPayload(Session("s", "").payload));
  EXPECT_TRUE(catalogue->RemoveSession("s", "", "").ok());
  EXPECT_THAT(*catalogue->ListSessions(), ElementsAre(full));
  EXPECT_TRUE(catalogue->CheckIntegrity().ok());
}

TEST(Catalogue, LateChangesOfAnEarlierSessionAreNotThoseOfTheNext) {
  MemoryDisk disk;
  const auto catalogue = OpenIn(disk);
  const SessionRow first = Session("s", "");
  SessionRow second = first;
  second.incarnation = "second";
  second.config = "other";
  ASSERT_TRUE(catalogue->InsertSession(first).ok());
  ASSERT_TRUE(catalogue->InsertSession(second).ok());
  EXPECT_EQ(catalogue->UpdateSession(first).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(catalogue->RemoveSession("s", "", "first").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(*catalogue->ListSessions(), ElementsAre(second));
}

TEST(Catalogue, ACatalogueWithoutSessionsIsBroughtForward) {
  MemoryDisk disk;
  const auto schema = Catalogue::Schema();
  const std::vector<const char*> second(schema.begin(), schema.begin() + 2);
  {
    const auto old = Catalogue::Open(disk, "d/c.db", second);
    ASSERT_TRUE(old.ok()) << old.status();
    ASSERT_TRUE((*old)->Insert(Row(ObjectKind::kVolume, "a")).ok());
  }
  const auto catalogue = OpenIn(disk);
  ASSERT_NE(catalogue, nullptr);
  EXPECT_THAT(*catalogue->List(), ElementsAre(Row(ObjectKind::kVolume, "a")));
  EXPECT_THAT(*catalogue->ListSessions(), testing::IsEmpty());
  EXPECT_TRUE(catalogue->InsertSession(Session("s", "")).ok());
  EXPECT_EQ(Catalogue::Open(disk, "d/c.db", second).status().code(), absl::StatusCode::kFailedPrecondition)
      << "the program before";
}

TEST(Catalogue, AnOperationTakesThePlaceOfTheOneBefore) {
  MemoryDisk disk;
  const OperationRow first{"o", "ann", std::string("\0f", 2), "queued"}, last{"o", "ann", "g", "done"};
  const OperationRow other{"o", "bob", "f", "queued"};
  {
    const auto catalogue = OpenIn(disk);
    ASSERT_TRUE(catalogue->PutOperation(first).ok());
    EXPECT_THAT(*catalogue->ListOperations(), ElementsAre(first));
    ASSERT_TRUE(catalogue->PutOperation(other).ok());
    ASSERT_TRUE(catalogue->PutOperation(last).ok());
  }
  const auto catalogue = OpenIn(disk);
  EXPECT_THAT(*catalogue->ListOperations(), ElementsAre(last, other));
  EXPECT_TRUE(catalogue->RemoveOperation("o", "ann").ok());
  EXPECT_TRUE(catalogue->RemoveOperation("o", "ann").ok()) << "it is gone";
  EXPECT_THAT(*catalogue->ListOperations(), ElementsAre(other));
}

TEST(Catalogue, TheClockComesBackAndBeginsWithTheNewestObject) {
  MemoryDisk disk;
  EXPECT_EQ(*OpenIn(disk)->Clock(), CatalogueClock());
  const CatalogueClock clock{1'700'000'000'123'456'789, -5, 7};
  ASSERT_TRUE(OpenIn(disk)->SetClock(clock).ok());
  EXPECT_EQ(*OpenIn(disk)->Clock(), clock);
  // A catalogue of a version that kept no time.
  MemoryDisk older;
  const std::string first = FirstVersion();
  const std::vector<const char*> old = {first.c_str()};
  ASSERT_TRUE(Catalogue::Open(older, "d/c.db", old).ok());
  EXPECT_EQ(*OpenIn(older)->Clock(), (CatalogueClock{124, 0, 0}));
}

TEST(Catalogue, AMigrationThatFailsLeavesTheOldVersion) {
  MemoryDisk disk;
  ASSERT_TRUE(OpenIn(disk)->Insert(Row(ObjectKind::kVolume, "a")).ok());
  std::vector<const char*> wrong(Catalogue::Schema().begin(), Catalogue::Schema().end());
  wrong.push_back("CREATE TABLE more (x INTEGER); INSERT INTO nowhere VALUES (1);");
  EXPECT_FALSE(Catalogue::Open(disk, "d/c.db", wrong).ok());
  EXPECT_THAT(*OpenIn(disk)->List(), ElementsAre(Row(ObjectKind::kVolume, "a")));
}

TEST(Catalogue, AFileThatIsNoCatalogueIsDataLoss) {
  MemoryDisk disk;
  const std::string text(8192, 'x');
  ASSERT_TRUE((*disk.Open("d/c.db", OpenMode::kWrite))->WriteAt(0, text.data(), text.size()).ok());
  EXPECT_EQ(Catalogue::Open(disk, "d/c.db").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace intrawarp::state
