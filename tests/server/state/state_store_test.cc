// SPDX-License-Identifier: Apache-2.0
#include "server/state/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "io/file/digest.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kNow = 1'700'000'000'000'000'000;

std::string DigestOf(const std::string& bytes) { return io::Sha256Of(bytes.data(), bytes.size()); }

ObjectRow Row(const std::string& id) {
  ObjectRow row;
  row.id = id;
  row.header = "header of " + id;
  row.create_time = kNow;
  return row;
}

SessionRow Session(const std::string& id) {
  SessionRow row;
  row.id = id;
  row.incarnation = "i";
  row.config = "config of " + id;
  return row;
}

std::unique_ptr<StateStore> OpenIn(FileLayer& files, int64_t now = kNow) {
  auto store = StateStore::Open(files, "d", now);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

absl::Status Put(StateStore& store, const ObjectRow& row, const std::string& bytes) {
  const auto payload = store.Keep(DigestOf(bytes), bytes);
  return payload.ok() ? store.Commit(row, *payload) : payload.status();
}

absl::StatusOr<std::string> Get(StateStore& store, const ObjectRow& row) {
  std::string bytes(static_cast<size_t>(row.payload_bytes), '\x55');
  const absl::Status read = store.Read(row.payload, absl::MakeSpan(bytes));
  if (!read.ok()) return read;
  return bytes;
}

// Every object by id, with its payload.
std::map<std::string, std::string> Everything(StateStore& store) {
  std::map<std::string, std::string> all;
  const auto rows = store.List();
  EXPECT_TRUE(rows.ok()) << rows.status();
  for (const ObjectRow& row : *rows) {
    const auto bytes = Get(store, row);
    EXPECT_TRUE(bytes.ok()) << row.id << ": " << bytes.status();
    all[row.id] = bytes.value_or("?");
  }
  return all;
}

TEST(StateStore, WhatWasCommittedIsThereAfterAReopening) {
  MemoryDisk disk;
  {
    const auto store = OpenIn(disk);
    ASSERT_TRUE(Put(*store, Row("a"), "one").ok());
    ASSERT_TRUE(Put(*store, Row("b"), "").ok());
    ASSERT_TRUE(Put(*store, Row("c"), "one").ok());
    EXPECT_EQ(Put(*store, Row("a"), "two").code(), absl::StatusCode::kAlreadyExists);
    ASSERT_TRUE(store->Remove(ObjectKind::kVolume, "a").ok());
    EXPECT_EQ(store->Remove(ObjectKind::kVolume, "a").code(), absl::StatusCode::kNotFound);
  }
  const auto store = OpenIn(disk);
  EXPECT_EQ(Everything(*store), (std::map<std::string, std::string>{{"b", ""}, {"c", "one"}}));
  EXPECT_THAT(disk.Paths("d/spool/"), SizeIs(1));
}

TEST(StateStore, APayloadGoesWithTheLastThatNeedsIt) {
  MemoryDisk disk;
  const auto store = OpenIn(disk);
  ASSERT_TRUE(Put(*store, Row("a"), "one").ok());
  {
    const auto under_way = store->Keep(DigestOf("one"), "one");
    ASSERT_TRUE(under_way.ok());
    ASSERT_TRUE(store->Remove(ObjectKind::kVolume, "a").ok());
    EXPECT_THAT(disk.Paths("d/spool/"), SizeIs(1)) << "an upload of the same bytes is under way";
  }
  EXPECT_THAT(disk.Paths("d/spool/"), IsEmpty());
}

TEST(StateStore, WhatExpiredMeanwhileIsGone) {
  MemoryDisk disk;
  ObjectRow row = Row("a");
  row.expire_time = kNow + 10;
  ASSERT_TRUE(Put(*OpenIn(disk), row, "one").ok());
  EXPECT_THAT(*OpenIn(disk, kNow + 9)->List(), SizeIs(1));
  EXPECT_THAT(*OpenIn(disk, kNow + 10)->List(), IsEmpty());
  EXPECT_THAT(disk.Paths("d/spool/"), IsEmpty());
}

constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;
constexpr int64_t kDay = 24 * kHour;

// An object that lives for a day from kNow on, and one that lives for good.
void PutExpiring(FileLayer& files) {
  const auto store = OpenIn(files);
  ObjectRow row = Row("a");
  row.expire_time = kNow + kDay;
  ASSERT_TRUE(Put(*store, row, "one").ok());
  ASSERT_TRUE(Put(*store, Row("b"), "two").ok());
}

TEST(StateStore, AClockThatIsAheadAtOneStartTakesNothingAway) {
  MemoryDisk disk;
  PutExpiring(disk);
  {
    const auto ahead = OpenIn(disk, kNow + 3 * kDay);
    EXPECT_THAT(*ahead->List(), SizeIs(2));
    EXPECT_EQ(ahead->findings().clock_step, 3 * kDay);
    EXPECT_EQ(ahead->findings().expiring, 1);
    EXPECT_EQ(ahead->findings().expired, 0);
    EXPECT_EQ(ahead->start_time(), kNow) << "no time has passed";
    ASSERT_TRUE(ahead->Advance(ahead->start_time() + kHour).ok());
  }
  {
    // Still ahead: minutes have passed, not days.
    const auto still = OpenIn(disk, kNow + 3 * kDay + kHour + 10);
    EXPECT_THAT(*still->List(), SizeIs(2));
    EXPECT_EQ(still->findings().clock_step, 0);
    EXPECT_EQ(still->start_time(), kNow + kHour + 10);
  }
  const auto right = OpenIn(disk, kNow + kHour + 20);
  EXPECT_THAT(*right->List(), SizeIs(2));
  EXPECT_LT(right->findings().clock_step, 0);
  EXPECT_EQ(right->start_time(), kNow + kHour + 10) << "the time never goes back";
}

TEST(StateStore, WhatRanItsTimeGoesWhateverTheClockDid) {
  MemoryDisk disk;
  PutExpiring(disk);
  {
    const auto store = OpenIn(disk, kNow - 5 * kDay);
    EXPECT_EQ(store->findings().clock_step, -5 * kDay);
    ASSERT_TRUE(store->Advance(store->start_time() + kDay - 10).ok());
    EXPECT_TRUE(store->Advance(store->start_time()).ok()) << "is passed over";
  }
  EXPECT_THAT(*OpenIn(disk, kNow - 4 * kDay - 20)->List(), SizeIs(2));
  const auto store = OpenIn(disk, kNow - 4 * kDay + 10);
  EXPECT_THAT(*store->List(), SizeIs(1));
  EXPECT_EQ(store->findings().expired, 1);
  EXPECT_EQ(store->findings().expiring, 0);
}

TEST(StateStore, AStopOfAnHourCountsALongerOneDoesNot) {
  MemoryDisk disk;
  ASSERT_NE(OpenIn(disk), nullptr);
  EXPECT_EQ(OpenIn(disk, kNow + kHour)->start_time(), kNow + kHour);
  EXPECT_EQ(OpenIn(disk, kNow + 2 * kHour + 1)->start_time(), kNow + kHour);
}

// The catalogue's file as it lies on the disk, without its log.
std::string CopyOf(FileLayer& files, const std::string& path) {
  const auto file = files.Open(path, OpenMode::kRead);
  EXPECT_TRUE(file.ok()) << file.status();
  std::string bytes(static_cast<size_t>(*(*file)->Size()), '\0');
  EXPECT_TRUE((*file)->ReadAt(0, bytes.data(), bytes.size()).ok());
  return bytes;
}
void PutBack(FileLayer& files, const std::string& path, const std::string& bytes) {
  const auto file = files.Open(path, OpenMode::kWrite);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Truncate(0).ok());
  ASSERT_TRUE((*file)->WriteAt(0, bytes.data(), bytes.size()).ok());
  ASSERT_TRUE((*file)->Sync().ok());
}

constexpr char kCatalogue[] = "d/catalogue.db";

TEST(StateStore, AnOlderCatalogueTakesNoPayloadAway) {
  MemoryDisk disk;
  ASSERT_TRUE(Put(*OpenIn(disk), Row("a"), "one").ok());
  const std::string older = CopyOf(disk, kCatalogue);
  {
    const auto store = OpenIn(disk);
    ASSERT_TRUE(Put(*store, Row("b"), "two").ok());
    ASSERT_TRUE(Put(*store, Row("c"), "three").ok());
  }
  const std::string newer = CopyOf(disk, kCatalogue);
  PutBack(disk, kCatalogue, older);
  EXPECT_THAT(CheckState(disk, "d")->errors, ElementsAre(HasSubstr("older copy")));
  {
    const auto store = OpenIn(disk);
    EXPECT_TRUE(store->findings().catalogue_is_older());
    EXPECT_EQ(store->findings().orphaned, 2);
    EXPECT_EQ(store->findings().orphans.files, 2);
    EXPECT_EQ(store->findings().orphans.bytes, 8);
    EXPECT_EQ(Everything(*store), (std::map<std::string, std::string>{{"a", "one"}}));
  }
  EXPECT_THAT(disk.Paths("d/spool/"), SizeIs(1));
  EXPECT_THAT(disk.Paths("d/orphaned/"), SizeIs(2));
  EXPECT_EQ(CheckState(disk, "d")->orphans.bytes, 8);
  EXPECT_THAT(CheckState(disk, "d")->errors, IsEmpty()) << "it is the one in use now";
  PutBack(disk, kCatalogue, newer);
  const auto store = OpenIn(disk);
  EXPECT_TRUE(store->findings().catalogue_is_older());
  EXPECT_EQ(store->findings().brought_back, 2);
  EXPECT_EQ(Everything(*store), (std::map<std::string, std::string>{{"a", "one"}, {"b", "two"}, {"c", "three"}}));
  EXPECT_THAT(disk.Paths("d/orphaned/"), IsEmpty());
}

TEST(StateStore, AnEmptiedCatalogueTakesNoPayloadAway) {
  MemoryDisk disk;
  ASSERT_NE(OpenIn(disk), nullptr);
  const std::string empty = CopyOf(disk, kCatalogue);
  ASSERT_TRUE(Put(*OpenIn(disk), Row("a"), "one").ok());
  PutBack(disk, kCatalogue, empty);
  EXPECT_THAT(*OpenIn(disk)->List(), IsEmpty());
  EXPECT_THAT(disk.Paths("d/orphaned/"), SizeIs(1));
}

TEST(StateStore, OrphansGoAfterTheirAge) {
  MemoryDisk disk;
  ASSERT_NE(OpenIn(disk), nullptr);
  const std::string empty = CopyOf(disk, kCatalogue);
  ASSERT_TRUE(Put(*OpenIn(disk), Row("a"), "one").ok());
  PutBack(disk, kCatalogue, empty);
  {
    const auto store = OpenIn(disk);
    ASSERT_TRUE(store->Advance(kNow + kOrphanAge).ok());
    EXPECT_EQ(store->CountOrphans()->files, 1);
  }
  // A clock that is ahead ages nobody.
  EXPECT_EQ(OpenIn(disk, kNow + 5 * kOrphanAge)->findings().orphans.files, 1);
  const auto store = OpenIn(disk, kNow + kOrphanAge);
  ASSERT_TRUE(store->Advance(kNow + kOrphanAge + 2'000'000'000).ok());
  EXPECT_EQ(store->CountOrphans()->files, 0);
  EXPECT_THAT(disk.Paths("d/orphaned/"), IsEmpty());
}

TEST(StateStore, ACrashLeavesTheGenerationsEqual) {
  MemoryDisk disk;
  for (int seed = 0; seed < 8; ++seed) {
    ASSERT_TRUE(Put(*OpenIn(disk), Row(std::to_string(seed)), "one").ok());
    disk.LosePower(seed);
    EXPECT_FALSE(OpenIn(disk)->findings().catalogue_is_older()) << seed;
  }
}

TEST(StateStore, TwoServersDoNotShareADirectory) {
  MemoryDisk disk;
  const auto store = OpenIn(disk);
  EXPECT_EQ(StateStore::Open(disk, "d", kNow).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CheckState(disk, "d").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(StateStore, ADamagedPayloadIsNamedAndWrittenAgainByTheSameUpload) {
  MemoryDisk disk;
  ASSERT_TRUE(Put(*OpenIn(disk), Row("a"), "one").ok());
  disk.FlipBit(disk.Paths("d/spool/").front(), 1);
  const auto report = CheckState(disk, "d");
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_THAT(report->errors, SizeIs(1));
  EXPECT_THAT(report->errors[0], HasSubstr("volumes/a: spool/"));
  const auto store = OpenIn(disk);
  const auto rows = store->List();
  EXPECT_EQ(Get(*store, rows->front()).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(Put(*store, Row("b"), "one").ok());
  EXPECT_EQ(*Get(*store, rows->front()), "one");
}

TEST(StateStore, ARowWithANegativeSizeIsNamedAndKeepsItsPayload) {
  MemoryDisk disk;
  const std::string bytes(0x123457, 'p');
  ASSERT_TRUE(Put(*OpenIn(disk), Row("a"), bytes).ok());
  // SQLite stores the size as these three bytes, in the catalogue or its log.
  const std::string size("\x12\x34\x57", 3), negative("\x92\x34\x57", 3);
  int changed = 0;
  for (const char* name : {"d/catalogue.db", "d/catalogue.db-wal"}) {
    auto file = disk.Open(name, OpenMode::kWrite);
    if (!file.ok()) continue;
    std::string all(static_cast<size_t>(*(*file)->Size()), '\0');
    ASSERT_TRUE((*file)->ReadAt(0, all.data(), all.size()).ok());
    for (size_t at = all.find(size); at != std::string::npos; at = all.find(size, at + 1), ++changed) {
      ASSERT_TRUE((*file)->WriteAt(static_cast<int64_t>(at), negative.data(), negative.size()).ok());
    }
  }
  ASSERT_GT(changed, 0);
  const auto report = CheckState(disk, "d");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->errors, ElementsAre(HasSubstr("its size is damaged")));
  EXPECT_EQ(report->payload_bytes, 0);
  // The sweep of a start leaves the payload for whoever mends the row.
  OpenIn(disk).reset();
  EXPECT_EQ(CheckState(disk, "d")->leftover_files, 0);
  auto store = OpenIn(disk);
  std::string read(bytes.size(), '\0');
  ASSERT_TRUE(store->Read(DigestOf(bytes), absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, bytes);
}

TEST(StateStore, PayloadsWithoutACatalogueAreNotSweptAway) {
  for (const bool is_missing : {true, false}) {
    MemoryDisk disk;
    ASSERT_TRUE(Put(*OpenIn(disk), Row("a"), "one").ok());
    if (is_missing) {
      ASSERT_TRUE(disk.Remove("d/catalogue.db").ok());
    } else {
      disk.Cut("d/catalogue.db", 0);
    }
    for (int i = 0; i < 2; ++i) {
      const absl::Status refused = StateStore::Open(disk, "d", kNow).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("catalogue.db is missing or empty, and spool/ holds 1"));
      EXPECT_THAT(disk.Paths("d/spool/"), SizeIs(1));
    }
    ASSERT_TRUE(disk.Remove(disk.Paths("d/spool/").front()).ok());
    EXPECT_THAT(*OpenIn(disk)->List(), IsEmpty());
  }
}

// A life of a store. Everything that was acknowledged is in `kept`; an operation that failed leaves its id in `open`:
// the disk may or may not have it.
struct Life {
  std::map<std::string, std::string> kept;
  std::map<std::string, std::string> sessions;
  std::set<std::string> open;

  void PutIn(StateStore& store, const std::string& id, const std::string& bytes) {
    if (Put(store, Row(id), bytes).ok()) {
      kept[id] = bytes;
    } else {
      open.insert(id);
    }
  }
  void RemoveFrom(StateStore& store, const std::string& id) {
    const absl::Status removed = store.Remove(ObjectKind::kVolume, id);
    if (!removed.ok() && !absl::IsNotFound(removed)) open.insert(id);
    if (removed.ok()) kept.erase(id);
  }
  // A session that opens, goes on from one start to the next, and of which "closed" closes.
  void RunSession(StateStore& store, const std::string& id, const std::string& start) {
    const auto none = DurablePayload();
    SessionRow row = Session(id);
    if (!store.CommitSession(row, none).ok()) {
      open.insert("sessions/" + id);
      return;
    }
    sessions[id] = "";
    const auto payload = store.Keep(DigestOf(start), start);
    if (!payload.ok()) return;
    row.description = start;
    if (store.UpdateSession(row, *payload).ok()) {
      sessions[id] = start;
    } else {
      open.insert("sessions/" + id);
    }
  }
  void EndSession(StateStore& store, const std::string& id) {
    const absl::Status removed = store.RemoveSession(id, "", "i");
    if (removed.ok()) sessions.erase(id);
    if (!removed.ok() && !absl::IsNotFound(removed)) open.insert("sessions/" + id);
  }
  void Live(StateStore& store) {
    RunSession(store, "closed", "start of closed");
    RunSession(store, "s", "one");
    EndSession(store, "closed");
    PutIn(store, "a", "one");
    PutIn(store, "b", std::string(100'000, 'b'));
    PutIn(store, "c", "one");
    RemoveFrom(store, "a");
    PutIn(store, "d", std::string(5000, 'd'));
    RemoveFrom(store, "b");
    PutIn(store, "e", "");
    PutIn(store, "f", "six");
    RunSession(store, "s", "seven");
  }
};

// The start of every session by id.
std::map<std::string, std::string> Sessions(StateStore& store) {
  std::map<std::string, std::string> all;
  const auto rows = store.ListSessions();
  EXPECT_TRUE(rows.ok()) << rows.status();
  for (const SessionRow& row : *rows) {
    std::string bytes(static_cast<size_t>(row.payload_bytes), '\x55');
    EXPECT_TRUE(store.Read(row.payload, absl::MakeSpan(bytes)).ok()) << row.id;
    EXPECT_EQ(row.description, bytes) << "the row and its payload belong together";
    all[row.id] = bytes;
  }
  return all;
}

// Compares a store after a restart with the life before it.
void ExpectDurable(StateStore& store, const Life& life) {
  const std::map<std::string, std::string> all = Everything(store);
  for (const auto& [id, bytes] : life.kept) {
    if (life.open.count(id) != 0) continue;  // its removal failed
    ASSERT_EQ(all.count(id), 1u) << id << " was acknowledged";
    EXPECT_TRUE(all.at(id) == bytes) << id;
  }
  for (const auto& [id, bytes] : all) {
    EXPECT_TRUE(life.kept.count(id) != 0 || life.open.count(id) != 0) << id << " was deleted or never there";
  }
  const std::map<std::string, std::string> sessions = Sessions(store);
  for (const std::string id : {"s", "closed"}) {
    if (life.open.count("sessions/" + id) != 0) continue;
    const auto expected = life.sessions.find(id), found = sessions.find(id);
    ASSERT_EQ(found != sessions.end(), expected != life.sessions.end()) << id;
    if (found == sessions.end()) continue;
    EXPECT_EQ(found->second, expected->second) << id;
  }
}

// Fails one operation of a life after the other, ends each with a loss of power, and looks at what is left.
void SweepFaults(Fault fault, int seed) {
  for (int at = 1;; ++at) {
    SCOPED_TRACE(absl::StrCat("operation ", at, ", seed ", seed));
    MemoryDisk disk;
    FaultyFiles files(disk, fault, at);
    Life life;
    {
      auto store = StateStore::Open(files, "d", kNow);
      if (store.ok()) life.Live(**store);
      files.Unplug();
    }
    disk.LosePower(seed);
    const auto after = OpenIn(disk);
    ASSERT_NE(after, nullptr);
    ExpectDurable(*after, life);
    std::set<std::string> payloads;
    const auto rows = after->List();
    ASSERT_TRUE(rows.ok()) << rows.status();
    for (const ObjectRow& row : *rows) {
      if (row.payload_bytes > 0) payloads.insert(row.payload);
    }
    const auto sessions = after->ListSessions();
    ASSERT_TRUE(sessions.ok()) << sessions.status();
    for (const SessionRow& row : *sessions) {
      if (row.payload_bytes > 0) payloads.insert(row.payload);
    }
    EXPECT_THAT(disk.Paths("d/spool/"), SizeIs(payloads.size())) << "space did not come back";
    if (testing::Test::HasFailure()) return;
    if (!files.has_failed()) {
      EXPECT_THAT(life.open, IsEmpty());
      EXPECT_GT(at, 50);
      return;
    }
  }
}

TEST(StateStoreFaults, AFullDisk) {
  for (int seed = 0; seed < 4; ++seed) SweepFaults(Fault::kFull, seed);
}
TEST(StateStoreFaults, AnErrorOfTheDisk) {
  for (int seed = 0; seed < 4; ++seed) SweepFaults(Fault::kBroken, seed);
}
TEST(StateStoreFaults, AShortWrite) {
  for (int seed = 0; seed < 4; ++seed) SweepFaults(Fault::kShortWrite, seed);
}
// Also the transaction that would settle a failed one fails.
TEST(StateStoreFaults, TwoErrorsInARow) {
  for (int seed = 0; seed < 16; ++seed) SweepFaults(Fault::kTwice, seed);
}
// The same as a loss of power before each operation.
TEST(StateStoreFaults, ADiskThatIsGone) {
  for (int seed = 0; seed < 16; ++seed) SweepFaults(Fault::kGone, seed);
}

// A process is killed at any operation, and what it wrote stays in the memory of the machine. The next one answers from
// what it finds, is killed too, and then the power is lost.
TEST(StateStoreFaults, WhatWasFoundAfterAKillOutlivesALossOfPower) {
  bool has_failed = true;
  for (int at = 1; has_failed; ++at) {
    SCOPED_TRACE(absl::StrCat("operation ", at));
    MemoryDisk disk;
    FaultyFiles first(disk, Fault::kGone, at);
    {
      auto store = StateStore::Open(first, "d", kNow);
      if (store.ok()) Life().Live(**store);
      first.Unplug();
    }
    has_failed = first.has_failed();
    FaultyFiles second(disk, Fault::kGone);
    std::map<std::string, std::string> found;
    {
      const auto store = OpenIn(second);
      ASSERT_NE(store, nullptr);
      found = Everything(*store);
      second.Unplug();
    }
    disk.LosePower(0);
    const auto after = OpenIn(disk);
    ASSERT_NE(after, nullptr);
    EXPECT_TRUE(Everything(*after) == found);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(StateStoreFaults, AFullDiskHidesWhatExpired) {
  MemoryDisk disk;
  ObjectRow expiring = Row("a");
  expiring.expire_time = kNow + 10;
  {
    const auto store = OpenIn(disk);
    ASSERT_TRUE(Put(*store, expiring, "one").ok());
    ASSERT_TRUE(Put(*store, Row("b"), "two").ok());
  }
  FaultyFiles files(disk, Fault::kFull);
  files.set_fails_writes(true);
  const auto store = OpenIn(files, kNow + 10);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(Everything(*store), (std::map<std::string, std::string>{{"b", "two"}}));
  EXPECT_EQ(Put(*store, Row("a"), "").code(), absl::StatusCode::kResourceExhausted);
  files.set_fails_writes(false);
  EXPECT_TRUE(Put(*store, Row("a"), "").ok());
  EXPECT_EQ(Everything(*store), (std::map<std::string, std::string>{{"a", ""}, {"b", "two"}}));
  EXPECT_THAT(disk.Paths("d/spool/"), SizeIs(1));
}

// After one fault the store goes on: what failed can be asked for again.
TEST(StateStoreFaults, ARetryAfterAFaultSucceeds) {
  for (int at = 1;; ++at) {
    MemoryDisk disk;
    ASSERT_NE(OpenIn(disk), nullptr);  // makes the files
    FaultyFiles files(disk, Fault::kFull, at);
    auto store = StateStore::Open(files, "d", kNow);
    if (!store.ok()) continue;
    if (!Put(**store, Row("a"), "one").ok()) {
      const absl::Status again = Put(**store, Row("a"), "one");
      EXPECT_TRUE(again.ok()) << at << ": " << again;
    }
    if (!files.has_failed()) break;
    EXPECT_EQ(Everything(**store), (std::map<std::string, std::string>{{"a", "one"}})) << at;
  }
}

// On real files.
class PosixState : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/stateXXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<StateStore>> Open() { return StateStore::Open(PosixFiles(), folder_, kNow); }

  std::string folder_;
};

TEST_F(PosixState, KeepsAcrossAReopeningAndChecks) {
  {
    const auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE(Put(**store, Row("a"), "one").ok());
    EXPECT_EQ(Open().status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_GT((*store)->FreeBytes(), 0);
  }
  std::ofstream(folder_ + "/spool/new-0") << "torn";
  auto report = CheckState(PosixFiles(), folder_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->objects, 1);
  EXPECT_EQ(report->sessions, 0);
  EXPECT_EQ(report->payload_bytes, 3);
  EXPECT_EQ(report->leftover_files, 1);
  EXPECT_THAT(report->errors, IsEmpty());
  const auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Everything(**store), (std::map<std::string, std::string>{{"a", "one"}}));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/spool/new-0"));
}

TEST_F(PosixState, AFolderThatIsNotThereIsRefused) {
  EXPECT_EQ(StateStore::Open(PosixFiles(), folder_ + "/nowhere", kNow).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CheckState(PosixFiles(), folder_).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace intrawarp::state
