// SPDX-License-Identifier: Apache-2.0
// The list of peers and the spool, without a network.
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/pacs/instance_spool.h"
#include "server/pacs/peers.h"
#include "server/pacs/put_volume.h"
#include "server/pacs/reading_memory.h"
#include "tests/io/io_test.h"

namespace intrawarp::server {
namespace {

using io::Fails;
using io::Succeeds;

TEST(DicomPeersTest, AreRead) {
  const auto peers = DicomPeers::Parse(
      "# a comment\n\nPACS 192.0.2.7 theatre-3 associations=4 bytes=2GiB instances=100\nCT_1 "
      "[2001:DB8::1] "
      "theatre-4\nMR 10.0.0.1 theatre-3\n",
      /*has_identities=*/true);
  ASSERT_THAT(peers, Succeeds());
  EXPECT_EQ(peers->size(), 3);
  const DicomPeer* const pacs = peers->Find("PACS");
  ASSERT_NE(pacs, nullptr);
  EXPECT_EQ(pacs->host, "192.0.2.7");
  EXPECT_EQ(pacs->owner, "theatre-3");
  EXPECT_EQ(pacs->max_associations, 4);
  EXPECT_EQ(pacs->max_bytes, int64_t{2} << 30);
  EXPECT_EQ(pacs->max_instances, 100);
  EXPECT_EQ(peers->Find("CT_1")->host, "2001:db8::1");
  EXPECT_EQ(peers->Find("pacs"), nullptr);
  EXPECT_TRUE(peers->HasHost("10.0.0.1"));
  EXPECT_FALSE(peers->HasHost("10.0.0.2"));
}

TEST(DicomPeersTest, WrongLinesAreNamedByNumberAlone) {
  for (const char* line :
       {"PACS", "PACS 1.2.3.4", "PACS host.example owner", "PACS 1.2.3.4:104 owner", "PACS 1.2.3.4 owner tls",
        "PACS 1.2.3.4:99999 owner", "PACS [::1 owner", "NAME_THAT_IS_TOO_LONG 1.2.3.4 owner", "PACS 1.2.3.4 own^er",
        "PACS 1.2.3.4 owner associations=0", "PACS 1.2.3.4 owner bytes=x", "PACS 1.2.3.4 owner geheim=1",
        "PACS 1.2.3.4 -"}) {
    const auto parsed = DicomPeers::Parse(absl::StrCat("A 1.2.3.4 o\n", line), /*has_identities=*/true);
    EXPECT_THAT(parsed, Fails(absl::StatusCode::kInvalidArgument, "line 2: ")) << line;
    EXPECT_EQ(parsed.status().message().find("geheim"), absl::string_view::npos);
  }
  EXPECT_THAT(DicomPeers::Parse("A 1.2.3.4 o\nA 1.2.3.5 o", true), Fails(absl::StatusCode::kInvalidArgument, "line 2"));
  EXPECT_THAT(DicomPeers::Parse("A 1.2.3.4 o", false), Fails(absl::StatusCode::kInvalidArgument, "line 1"));
  EXPECT_THAT(DicomPeers::Parse("A 1.2.3.4 -", false), Succeeds());
}

TEST(ReadingMemoryTest, IsSharedAndGivenBack) {
  ReadingMemory memory(100, std::chrono::milliseconds(1));
  EXPECT_THAT(memory.Take(101), Fails(absl::StatusCode::kResourceExhausted, "at most 100"));
  EXPECT_FALSE(MayPass(memory.Take(101).status()));
  auto first = memory.Take(60);
  ASSERT_THAT(first, Succeeds());
  EXPECT_THAT(memory.Take(41), Fails(absl::StatusCode::kResourceExhausted, "others"));
  EXPECT_TRUE(MayPass(memory.Take(41).status()));
  EXPECT_THAT(memory.Take(40), Succeeds());
  ReadingMemory patient(100, std::chrono::seconds(60));
  auto all = patient.Take(100);
  std::thread waiting([&] { EXPECT_THAT(patient.Take(100), Succeeds()); });
  all->reset();
  waiting.join();
}

class InstanceSpoolTest : public io::FileTest {
 protected:
  void Open(int64_t max_bytes, int64_t max_instances = 100, bool keep = false) {
    SpoolOptions options;
    options.folder = folder_.string();
    options.max_bytes = max_bytes;
    options.max_instances = max_instances;
    options.quiet = std::chrono::seconds(2);
    options.patience = std::chrono::minutes(10);
    options.now = [this] { return now_; };
    options.keep = keep;
    if (knows_peers_) {
      options.peer = [this](const std::string& ae_title) { return ae_title == peer_.ae_title ? &peer_ : nullptr; };
    }
    auto opened = InstanceSpool::Open(options);
    ASSERT_THAT(opened, Succeeds());
    spool_ = *std::move(opened);
  }
  std::unique_ptr<SpooledFile> File(const std::string& bytes) {
    auto file = spool_->NewFile(peer_);
    EXPECT_THAT(file, Succeeds());
    EXPECT_THAT((*file)->Append(bytes), Succeeds());
    EXPECT_THAT((*file)->Close(), Succeeds());
    return *std::move(file);
  }
  void Add(const std::string& series, const std::string& instance, int64_t association) {
    EXPECT_THAT(spool_->Add({"PEER", series}, instance, File("x"), association), Succeeds());
  }
  // Instances "1" to `count` in one association, of a series that says how many it has.
  void AddAll(const std::string& series, int count, int64_t announced = -1) {
    const int64_t association = ++associations_;
    for (int k = 1; k <= count; ++k) {
      EXPECT_THAT(spool_->Add({"PEER", series}, absl::StrCat(series, k), File("x"), association, announced),
                  Succeeds());
    }
    spool_->EndAssociation(association, true, association);
  }
  // A series that is ready `later`.
  std::unique_ptr<GatheredSeries> Ready(std::chrono::nanoseconds later) {
    Advance(later);
    auto series = spool_->TakeReady();
    EXPECT_NE(series, nullptr);
    return series;
  }
  void Advance(std::chrono::nanoseconds by) { now_ += std::chrono::duration_cast<decltype(now_)::duration>(by); }

  DicomPeer peer_{"PEER", "127.0.0.1", ""};
  bool knows_peers_ = true;
  std::chrono::steady_clock::time_point now_{std::chrono::hours(1)};
  int64_t associations_ = 100;
  std::unique_ptr<InstanceSpool> spool_;
};

TEST_F(InstanceSpoolTest, CountsBytesAndGivesThemBack) {
  peer_.max_bytes = 8;
  Open(10, 3);
  auto first = File("12345678");
  EXPECT_EQ(spool_->bytes(), 8);
  auto second = spool_->NewFile(peer_);
  ASSERT_THAT(second, Succeeds());
  EXPECT_THAT((*second)->Append("9"), Fails(absl::StatusCode::kResourceExhausted, "the peer's bytes"));
  DicomPeer other{"OTHER", "127.0.0.1", ""};
  auto third = spool_->NewFile(other);
  ASSERT_THAT(third, Succeeds());
  EXPECT_THAT((*third)->Append("12"), Succeeds());
  EXPECT_THAT((*third)->Append("3"), Fails(absl::StatusCode::kResourceExhausted, "its bytes"));
  EXPECT_THAT(spool_->NewFile(other), Fails(absl::StatusCode::kResourceExhausted, "its instances"));
  const std::string path = first->path();
  EXPECT_TRUE(std::filesystem::exists(path));
  first.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  second->reset();
  third->reset();
  EXPECT_EQ(spool_->bytes(), 0);
  EXPECT_EQ(spool_->instances(), 0);
}

TEST_F(InstanceSpoolTest, ASeriesIsReadyOnceItIsQuietAndItsAssociationsHaveEnded) {
  Open(100);
  Add("a", "1", 7);
  Add("a", "2", 8);
  Advance(std::chrono::hours(1));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  spool_->EndAssociation(7, true, 7);
  spool_->EndAssociation(8, true, 8);
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  Advance(std::chrono::seconds(2));
  const auto series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->files.size(), 2);
  EXPECT_FALSE(series->given_up);
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  EXPECT_EQ(spool_->series(), 0);
}

TEST_F(InstanceSpoolTest, ASeriesThatBrokeOffWaitsForItsRepetition) {
  Open(100);
  Add("a", "1", 7);
  spool_->EndAssociation(7, false, 7);
  Advance(std::chrono::minutes(9));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  Add("a", "1", 8);  // replaces the first
  Add("a", "2", 8);
  EXPECT_EQ(spool_->instances(), 2);
  spool_->EndAssociation(8, true, 8);
  Advance(std::chrono::seconds(2));
  auto series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_FALSE(series->given_up);
  EXPECT_EQ(series->files.size(), 2);

  Add("b", "1", 9);
  spool_->EndAssociation(9, false, 9);
  Advance(std::chrono::minutes(10));
  series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_TRUE(series->given_up);
}

TEST_F(InstanceSpoolTest, AnInstanceThatIsAwaitedHoldsBackThePeersSeries) {
  Open(100);
  Add("a", "1", 1);
  spool_->EndAssociation(1, true, 1);
  EXPECT_THAT(spool_->Expect(peer_, "2"), Succeeds());
  Advance(std::chrono::seconds(5));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  Add("a", "2", 2);
  spool_->EndAssociation(2, true, 2);
  Advance(std::chrono::seconds(5));
  auto series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->files.size(), 2);
  EXPECT_FALSE(series->given_up);

  Add("b", "1", 3);
  spool_->EndAssociation(3, true, 3);
  EXPECT_THAT(spool_->Expect(peer_, "text"), Succeeds());
  spool_->Unexpect(peer_, "text");
  Advance(std::chrono::seconds(5));
  EXPECT_NE(spool_->TakeReady(), nullptr);
}

TEST_F(InstanceSpoolTest, AMissingInstanceOfAKnownSeriesHoldsBackThatSeriesAlone) {
  Open(100);
  Add("a", "1", 1);
  Add("b", "1", 1);
  EXPECT_THAT(spool_->Expect(peer_, "2"), Succeeds());
  spool_->Attribute({"PEER", "a"}, "2");
  spool_->EndAssociation(1, true, 1);
  Advance(std::chrono::seconds(5));
  auto series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->key.series, "b");
  // An association that ends well makes up for nothing as long as the instance is missing.
  Add("a", "1", 2);
  spool_->EndAssociation(2, true, 2);
  Advance(std::chrono::seconds(5));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  Add("a", "2", 3);
  spool_->EndAssociation(3, true, 3);
  Advance(std::chrono::seconds(5));
  series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->files.size(), 2);

  // An instance of a series of which nothing else has come yet; it is not sent again.
  EXPECT_THAT(spool_->Expect(peer_, "3"), Succeeds());
  spool_->Attribute({"PEER", "c"}, "3");
  Advance(std::chrono::minutes(9));
  Add("c", "1", 4);
  Add("d", "1", 4);
  spool_->EndAssociation(4, true, 4);
  Advance(std::chrono::minutes(1));
  series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->key.series, "d");
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  Advance(std::chrono::minutes(9));
  series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->key.series, "c");
  EXPECT_TRUE(series->given_up);
}

TEST_F(InstanceSpoolTest, AnInstanceThatNeverComesLeavesNoWholeSeries) {
  Open(100);
  Add("a", "1", 1);
  spool_->EndAssociation(1, true, 1);
  EXPECT_THAT(spool_->Expect(peer_, "2"), Succeeds());
  Advance(std::chrono::minutes(10));
  const auto series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_TRUE(series->given_up);
}

TEST_F(InstanceSpoolTest, AnAssociationBesideABrokenOneMakesNothingWhole) {
  Open(100);
  Add("a", "1", 1);
  Add("a", "2", 2);
  spool_->EndAssociation(1, false, 2);
  spool_->EndAssociation(2, true, 2);
  Advance(std::chrono::seconds(5));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  Add("a", "3", 3);
  spool_->EndAssociation(3, true, 3);
  Advance(std::chrono::seconds(5));
  EXPECT_NE(spool_->TakeReady(), nullptr);
}

TEST_F(InstanceSpoolTest, WhatItKeepsOutlivesIt) {
  Open(100, 100, /*keep=*/true);
  Add("a", "1", 1);
  Add("a", "2", 1);
  spool_->EndAssociation(1, true, 1);
  Add("b", "1", 2);  // its association is open
  Add("c", "1", 3);
  spool_->EndAssociation(3, true, 3);
  EXPECT_THAT(spool_->Expect(peer_, "2"), Succeeds());
  spool_->Attribute({"PEER", "c"}, "2");
  Add("d", "1", 4);
  spool_->EndAssociation(4, true, 4);
  Add("d", "2", 5);  // broken off at the end
  Put("in77", "what had not come whole");
  for (int restart = 0; restart < 2; ++restart) {
    spool_.reset();
    Open(100, 100, /*keep=*/true);
    EXPECT_EQ(spool_->instances(), 6);
    EXPECT_EQ(spool_->bytes(), 6);
    EXPECT_EQ(spool_->series(), 4);
    EXPECT_FALSE(std::filesystem::exists(Path("in77")));
  }
  Advance(std::chrono::seconds(5));
  auto series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->key.series, "a");
  EXPECT_EQ(series->files.size(), 2);
  for (const auto& [instance, file] : series->files) EXPECT_EQ(Get(file->path()), "x");
  series.reset();
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  // The peer sends the rest of one, under numbers that begin again.
  Add("b", "2", 1);
  spool_->EndAssociation(1, true, 1);
  Advance(std::chrono::seconds(5));
  series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->files.size(), 2);
  series.reset();
  Advance(std::chrono::minutes(10));
  for (const char* key : {"c", "d"}) {
    series = spool_->TakeReady();
    ASSERT_NE(series, nullptr);
    EXPECT_EQ(series->key.series, key);
    EXPECT_TRUE(series->given_up);
  }
  series.reset();
  EXPECT_EQ(spool_->instances(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// A server that is killed while it removes the files of a series leaves some of them.
TEST_F(InstanceSpoolTest, ASeriesThatGoesIsNoWholeOneFromTheFirstFileOn) {
  Open(100, 100, /*keep=*/true);
  for (const char* instance : {"1", "2", "3"}) Add("a", instance, 1);
  spool_->EndAssociation(1, true, 1);
  Advance(std::chrono::seconds(5));
  auto series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(watch, 0);
  ASSERT_GE(inotify_add_watch(watch, series->folder.c_str(), IN_DELETE), 0);
  series.reset();
  alignas(inotify_event) char events[4096];
  const ssize_t bytes = read(watch, events, sizeof(events));
  close(watch);
  ASSERT_GT(bytes, 0);
  EXPECT_STREQ(reinterpret_cast<const inotify_event*>(events)->name, "whole");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// A slip in the list of peers costs no image: they come back with their peer's line.
TEST_F(InstanceSpoolTest, ImagesOfAPeerThatIsNotListedAnyMoreStay) {
  Open(100, 100, /*keep=*/true);
  AddAll("a", 3);
  spool_.reset();
  peer_.ae_title = "OTHER";
  for (int restart = 0; restart < 2; ++restart) {
    Open(4, 100, /*keep=*/true);
    EXPECT_EQ(spool_->unknown_instances(), 3);
    Advance(std::chrono::hours(24 * 365));
    EXPECT_EQ(spool_->TakeReady(), nullptr);
    // They count for the bounds, and give way to nothing.
    auto file = spool_->NewFile(peer_);
    ASSERT_THAT(file, Succeeds());
    EXPECT_THAT((*file)->Append("12"), Fails(absl::StatusCode::kResourceExhausted, "its bytes"));
    file->reset();
    spool_.reset();
  }
  peer_.ae_title = "PEER";
  Open(100, 100, /*keep=*/true);
  EXPECT_EQ(spool_->unknown_instances(), 0);
  EXPECT_EQ(Ready(std::chrono::seconds(5))->files.size(), 3);
}

// ---- Content --------------------------------------------------------------------------------------------------------

TEST_F(InstanceSpoolTest, AnInstanceHasOneContent) {
  for (const bool is_taken : {false, true}) {
    Open(100);
    AddAll("a", 2);
    std::unique_ptr<GatheredSeries> taken = is_taken ? Ready(std::chrono::seconds(5)) : nullptr;
    EXPECT_THAT(spool_->Add({"PEER", "a"}, "a1", File("y"), 1),
                Fails(absl::StatusCode::kAlreadyExists, "other content"));
    EXPECT_THAT(spool_->Add({"PEER", "b"}, "a1", File("y"), 1),
                Fails(absl::StatusCode::kAlreadyExists, "other content"));
    EXPECT_THAT(spool_->Add({"PEER", "a"}, "a1", File("x"), 1), Succeeds());
    // Another peer has instances of its own.
    EXPECT_THAT(spool_->Add({"OTHER", "a"}, "a1", File("y"), 1), Succeeds());
    taken.reset();
    spool_.reset();
  }
  Open(100);
  const auto import = spool_->NewSeries({"PEER", "c"});
  ASSERT_THAT(import, Succeeds());
  EXPECT_THAT(spool_->AddTo(**import, "1", File("x")), Succeeds());
  EXPECT_THAT(spool_->AddTo(**import, "1", File("x")), Succeeds());
  EXPECT_THAT(spool_->AddTo(**import, "1", File("y")), Fails(absl::StatusCode::kAlreadyExists, "other content"));
  EXPECT_EQ(Get((*import)->files["1"]->path()), "x");
}

TEST_F(InstanceSpoolTest, ASeriesWithAllItsAnnouncedImagesWaitsForNothing) {
  Open(100);
  AddAll("a", 5, 5);
  EXPECT_EQ(Ready(std::chrono::seconds(0))->files.size(), 5);
  // One that lacks some waits for them, and is given up.
  AddAll("b", 3, 4);
  Advance(std::chrono::minutes(9));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  EXPECT_TRUE(Ready(std::chrono::minutes(1))->given_up);
  AddAll("c", 3, 4);
  Advance(std::chrono::minutes(1));
  AddAll("c", 4, 4);
  const auto series = Ready(std::chrono::seconds(0));
  EXPECT_EQ(series->files.size(), 4);
  EXPECT_FALSE(series->given_up);
}

// ---- Settled series -------------------------------------------------------------------------------------------------

TEST_F(InstanceSpoolTest, ALateInstanceMakesAWholeSeriesOnceMore) {
  for (const bool keep : {false, true}) {
    for (const bool has_volumes : {false, true}) {
      Open(100, 100, keep);
      AddAll("a", 6);
      auto series = Ready(std::chrono::seconds(5));
      series->made["id"] = "volumes/id";
      spool_->Settle(std::move(series), has_volumes);
      EXPECT_EQ(spool_->instances(), 0);
      EXPECT_EQ(spool_->series(), 0);
      EXPECT_EQ(has_volumes ? spool_->made_instances() : spool_->unmade_instances(), 6);
      Advance(std::chrono::minutes(30));
      EXPECT_EQ(spool_->TakeReady(), nullptr);
      if (keep) {
        spool_.reset();
        Open(100, 100, keep);
        EXPECT_EQ(has_volumes ? spool_->made_instances() : spool_->unmade_instances(), 6);
        Advance(std::chrono::minutes(30));
        EXPECT_EQ(spool_->TakeReady(), nullptr);
      }
      AddAll("a", 10);
      EXPECT_EQ(spool_->instances(), 10);
      series = Ready(std::chrono::seconds(5));
      EXPECT_EQ(series->files.size(), 10);
      EXPECT_TRUE(series->made.empty());
      series.reset();
      EXPECT_TRUE(std::filesystem::is_empty(folder_));
      spool_.reset();
    }
  }
}

TEST_F(InstanceSpoolTest, ASlowSenderMakesFewVolumes) {
  Open(1000, 1000);
  int made = 0;
  for (int count = 1; count <= 60; ++count) {
    AddAll("a", count);
    for (int second = 0; second < 3; ++second) {  // longer than `quiet`
      Advance(std::chrono::seconds(1));
      if (auto series = spool_->TakeReady()) {
        ++made;
        spool_->Settle(std::move(series), true);
      }
    }
  }
  EXPECT_LT(made, 10);
  EXPECT_EQ(Ready(std::chrono::minutes(10))->files.size(), 60);
}

TEST_F(InstanceSpoolTest, WhatComesWhileASeriesIsMadeIsPartOfIt) {
  for (const bool settles : {false, true}) {
    Open(100);
    AddAll("a", 6);
    auto series = Ready(std::chrono::seconds(5));
    AddAll("a", 10);
    series->made["id"] = "volumes/id";
    settles ? spool_->Settle(std::move(series), true) : spool_->PutBack(std::move(series), now_);
    series = Ready(std::chrono::seconds(5));
    EXPECT_EQ(series->files.size(), 10);
    // Made of a part.
    EXPECT_TRUE(series->made.empty());
    series.reset();
    spool_.reset();
  }
}

TEST_F(InstanceSpoolTest, SettledSeriesGiveWay) {
  Open(20);
  AddAll("a", 6);
  spool_->Settle(Ready(std::chrono::seconds(5)), /*has_volumes=*/false);
  AddAll("b", 6);
  spool_->Settle(Ready(std::chrono::seconds(5)), /*has_volumes=*/true);
  AddAll("c", 6);
  spool_->Settle(Ready(std::chrono::seconds(5)), /*has_volumes=*/true);
  // The oldest one with volumes goes first, and one without stays for a day.
  AddAll("d", 6);
  EXPECT_EQ(spool_->made_instances(), 6);
  EXPECT_EQ(spool_->unmade_instances(), 6);
  AddAll("e", 6);
  EXPECT_EQ(spool_->made_instances(), 0);
  EXPECT_EQ(spool_->unmade_instances(), 6);
  auto file = spool_->NewFile(peer_);
  ASSERT_THAT(file, Succeeds());
  EXPECT_THAT((*file)->Append("123"), Fails(absl::StatusCode::kResourceExhausted, "its bytes"));
  EXPECT_EQ(spool_->dropped_instances(), 0);
  Advance(std::chrono::hours(24));
  EXPECT_THAT((*file)->Append("123"), Succeeds());
  EXPECT_EQ(spool_->dropped_instances(), 6);
  EXPECT_EQ(spool_->unmade_instances(), 0);
}

TEST_F(InstanceSpoolTest, SettledSeriesGoOneDay) {
  Open(100);
  AddAll("a", 2);
  spool_->Settle(Ready(std::chrono::seconds(5)), /*has_volumes=*/true);
  AddAll("b", 3);
  spool_->Settle(Ready(std::chrono::seconds(5)), /*has_volumes=*/false);
  Advance(std::chrono::hours(1));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  EXPECT_EQ(spool_->made_instances(), 0);
  EXPECT_EQ(spool_->unmade_instances(), 3);
  Advance(std::chrono::hours(24 * 7));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  EXPECT_EQ(spool_->unmade_instances(), 0);
  EXPECT_EQ(spool_->dropped_instances(), 3);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// The files of a series have gone: what comes later is not a series without them.
TEST_F(InstanceSpoolTest, TheRestOfASeriesThatWentIsNoSeries) {
  Open(100);
  AddAll("a", 6);
  spool_->Settle(Ready(std::chrono::seconds(5)), /*has_volumes=*/true);
  Advance(std::chrono::hours(1));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  Add("a", "a7", 1);
  spool_->EndAssociation(1, true, 1);
  Advance(std::chrono::minutes(5));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  AddAll("a", 6);
  const auto series = Ready(std::chrono::seconds(5));
  EXPECT_EQ(series->files.size(), 7);
  EXPECT_FALSE(series->given_up);
}

TEST_F(InstanceSpoolTest, ASpoolThatKnowsNoPeersLeavesWhatWasKept) {
  Open(10, 100, /*keep=*/true);
  Add("a", "1", 1);
  Add("a", "2", 1);
  spool_->EndAssociation(1, true, 1);
  Add("b", "1", 2);  // broken off
  spool_.reset();
  knows_peers_ = false;
  Open(10, 100, /*keep=*/true);
  EXPECT_EQ(spool_->instances(), 3);
  EXPECT_EQ(spool_->bytes(), 3);
  Advance(std::chrono::hours(24));
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  // An import has the rest of the room.
  {
    auto import = spool_->NewSeries({"archive", "c"});
    ASSERT_THAT(import, Succeeds());
    auto file = spool_->NewPassingFile(peer_);
    ASSERT_THAT(file, Succeeds());
    EXPECT_THAT((*file)->Append("1234567"), Succeeds());
    EXPECT_THAT((*file)->Append("8"), Fails(absl::StatusCode::kResourceExhausted, "its bytes"));
    EXPECT_THAT((*file)->Close(), Succeeds());
    EXPECT_THAT(spool_->AddTo(**import, "1", *std::move(file)), Succeeds());
  }
  EXPECT_EQ(spool_->bytes(), 3);
  spool_.reset();
  knows_peers_ = true;
  Open(10, 100, /*keep=*/true);
  EXPECT_EQ(spool_->instances(), 3);
  EXPECT_EQ(spool_->series(), 2);
  Advance(std::chrono::seconds(5));
  const auto series = spool_->TakeReady();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->key.series, "a");
  EXPECT_EQ(series->files.size(), 2);
  for (const auto& [instance, file] : series->files) EXPECT_EQ(Get(file->path()), "x");
}

TEST_F(InstanceSpoolTest, AnInstanceThatAnImportTookIsMissingWhereItsPeerHadBegunToSendTheSeries) {
  Open(100);
  Add("a", "1", 1);
  Add("b", "1", 1);
  Add("c", "1", 1);
  for (const auto& [series, instance] : {std::pair("a", "2"), std::pair("b", "1"), std::pair("d", "1")}) {
    EXPECT_THAT(spool_->Expect(peer_, instance), Succeeds());
    spool_->Divert({"PEER", series}, instance);
  }
  spool_->EndAssociation(1, true, 1);
  Advance(std::chrono::seconds(5));
  for (const char* key : {"b", "c"}) {
    const auto series = spool_->TakeReady();
    ASSERT_NE(series, nullptr) << key;
    EXPECT_EQ(series->key.series, key);
    EXPECT_FALSE(series->given_up);
  }
  EXPECT_EQ(spool_->TakeReady(), nullptr);
  Advance(std::chrono::minutes(10));
  EXPECT_TRUE(spool_->TakeReady()->given_up);
}

TEST_F(InstanceSpoolTest, WhatAnImportGathersDoesNotOutliveIt) {
  Open(100, 100, /*keep=*/true);
  const SeriesKey key{"PEER", "a"};
  auto series = spool_->NewSeries(key);
  ASSERT_THAT(series, Succeeds());
  auto file = spool_->NewPassingFile(peer_);
  ASSERT_THAT(file, Succeeds());
  EXPECT_THAT((*file)->Append("x"), Succeeds());
  EXPECT_THAT((*file)->Close(), Succeeds());
  EXPECT_THAT(spool_->AddTo(**series, "1", *std::move(file)), Succeeds());
  Add("a", "2", 1);  // the peer's own
  EXPECT_EQ(spool_->instances(), 2);
  // The state after a crash: the files of both are there.
  const auto left = folder_ / "left";
  std::filesystem::copy((*series)->folder, left, std::filesystem::copy_options::recursive);
  const std::string folder = (*series)->folder;
  series->reset();
  spool_.reset();
  std::filesystem::rename(left, folder);
  Open(100, 100, /*keep=*/true);
  EXPECT_EQ(spool_->instances(), 1);
  EXPECT_EQ(spool_->series(), 1);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(InstanceSpoolTest, ASeriesThatIsPutBackComesAgain) {
  for (const bool keep : {false, true}) {
    Open(100, 100, keep);
    Add("a", "1", 1);
    Add("a", "2", 1);
    spool_->EndAssociation(1, true, 1);
    Advance(std::chrono::seconds(5));
    auto series = spool_->TakeReady();
    ASSERT_NE(series, nullptr);
    spool_->PutBack(std::move(series), now_ + std::chrono::seconds(30));
    Advance(std::chrono::seconds(29));
    EXPECT_EQ(spool_->TakeReady(), nullptr);
    Advance(std::chrono::seconds(1));
    series = spool_->TakeReady();
    ASSERT_NE(series, nullptr);
    EXPECT_EQ(series->files.size(), 2);
    EXPECT_TRUE(series->was_put_back);
    // One of its instances comes again while it is away, and a new one.
    Add("a", "2", 2);
    Add("a", "3", 2);
    const std::string newer = [&] {
      spool_->EndAssociation(2, true, 2);
      std::string path;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
        if (absl::StartsWith(entry.path().filename().string(), "2.")) path = std::max(path, entry.path().string());
      }
      return path;
    }();
    spool_->PutBack(std::move(series), now_);
    Advance(std::chrono::seconds(5));
    series = spool_->TakeReady();
    ASSERT_NE(series, nullptr);
    EXPECT_EQ(series->files.size(), 3);
    EXPECT_EQ(series->files["2"]->path(), newer);
    EXPECT_EQ(spool_->instances(), 3);
    for (const auto& [instance, file] : series->files) {
      EXPECT_EQ(std::filesystem::path(file->path()).parent_path(), series->folder);
    }
    series.reset();
    EXPECT_EQ(spool_->instances(), 0);
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
    spool_.reset();
  }
}

TEST_F(InstanceSpoolTest, EmptiesItsFolder) {
  std::filesystem::create_directories(folder_ / "series7");
  Put("series7/3", "left by a crash");
  Put("in9", "left by a crash");
  Open(100);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  { auto file = File("x"); }
  Add("a", "1", 1);
  EXPECT_FALSE(std::filesystem::is_empty(folder_));
  spool_.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(InstanceSpoolTest, WantsAFolderOfItsOwn) {
  for (const char* name : {"precious", "in", "series", "index", "in7x"}) {
    Put(name, "someone's");
    SpoolOptions options;
    options.folder = folder_.string();
    EXPECT_THAT(InstanceSpool::Open(options).status(), Fails(absl::StatusCode::kFailedPrecondition, "nothing but"));
    EXPECT_EQ(Get(Path(name)), "someone's");
    std::filesystem::remove(Path(name));
  }
}

TEST_F(InstanceSpoolTest, FilesAreTheOwnersAlone) {
  Open(100);
  const auto file = File("x");
  const auto permissions = std::filesystem::status(file->path()).permissions();
  EXPECT_EQ(permissions, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

}  // namespace
}  // namespace intrawarp::server
