// SPDX-License-Identifier: Apache-2.0
#include "server/state/orphans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "io/file/digest.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::state {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'700'000'000 * kSecond;

std::string DigestOf(const std::string& bytes) { return io::Sha256Of(bytes.data(), bytes.size()); }
std::string Hex(const std::string& bytes) { return absl::BytesToHexString(DigestOf(bytes)); }

std::string ReadAll(FileLayer& files, const std::string& path) {
  const auto file = files.Open(path, OpenMode::kRead);
  if (!file.ok()) return "missing";
  std::string bytes(static_cast<size_t>(*(*file)->Size()), '\0');
  EXPECT_TRUE((*file)->ReadAt(0, bytes.data(), bytes.size()).ok());
  return bytes;
}

void Touch(FileLayer& files, const std::string& path) {
  const auto file = files.Open(path, OpenMode::kWrite);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->WriteAt(0, "x", 1).ok());
}

class OrphansTest : public testing::Test {
 protected:
  // A payload of these bytes in the spool; its digest.
  std::string Put(const std::string& bytes) {
    EXPECT_TRUE(spool_.Write(DigestOf(bytes), bytes).ok());
    return DigestOf(bytes);
  }
  std::string Brought(const std::string& bytes) { return ReadAll(disk_, "d/spool/" + Hex(bytes)); }
  Orphans::Amount Counted() {
    const auto amount = orphans_.Count();
    EXPECT_TRUE(amount.ok()) << amount.status();
    return amount.value_or(Orphans::Amount{-1, -1});
  }

  MemoryDisk disk_;
  PayloadSpool spool_{disk_, "d/spool"};
  Orphans orphans_{disk_, spool_, "d/orphaned"};
};

TEST_F(OrphansTest, LieWithTheirTimeAndComeBackWhole) {
  const std::vector<std::string> digests = {Put("one"), Put(""), Put("three")};
  const std::string stays = Put("stays");
  ASSERT_TRUE(orphans_.Take(digests, kNow + kSecond - 1).ok());
  EXPECT_THAT(disk_.Paths("d/spool/"), ElementsAre("d/spool/" + Hex("stays")));
  EXPECT_EQ(ReadAll(disk_, "d/orphaned/1700000000-" + Hex("one")), "one") << "whole seconds";
  EXPECT_EQ(Counted().files, 3);
  EXPECT_EQ(Counted().bytes, 3 + 0 + 5);

  // Payloads that are elsewhere are left where they are.
  const auto brought = orphans_.BringBack({digests[0], DigestOf("unknown"), digests[1], stays});
  ASSERT_TRUE(brought.ok()) << brought.status();
  EXPECT_EQ(*brought, 2);
  EXPECT_EQ(Brought("one"), "one");
  EXPECT_EQ(Brought(""), "");
  EXPECT_EQ(Brought("stays"), "stays");
  EXPECT_EQ(Counted().files, 1);
  EXPECT_EQ(Counted().bytes, 5);
}

TEST_F(OrphansTest, NothingIsDoneForNobody) {
  FaultyFiles files(disk_, Fault::kBroken);
  files.Unplug();
  Orphans orphans(files, spool_, "d/orphaned");
  EXPECT_TRUE(orphans.Take({}, kNow).ok());
  const auto brought = orphans.BringBack({});
  ASSERT_TRUE(brought.ok());
  EXPECT_EQ(*brought, 0);
}

TEST_F(OrphansTest, GoWhenTheyAreOlderThanTheAge) {
  ASSERT_TRUE(orphans_.Take({Put("old")}, kNow).ok());
  ASSERT_TRUE(orphans_.Take({Put("young")}, kNow + kSecond).ok());
  constexpr int64_t kAge = 100 * kSecond;
  EXPECT_EQ(orphans_.RemoveOld(kNow + kAge, kAge)->files, 0) << "not before its age is over";
  const auto removed = orphans_.RemoveOld(kNow + kAge + 1, kAge);
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->files, 1);
  EXPECT_EQ(removed->bytes, 3);
  EXPECT_THAT(disk_.Paths("d/orphaned/"), ElementsAre(testing::EndsWith(Hex("young"))));
  // A clock that went back removes nothing.
  EXPECT_EQ(orphans_.RemoveOld(0, kAge)->files, 0);
  EXPECT_EQ(Counted().files, 1);
}

TEST_F(OrphansTest, OtherFilesAreNobodysAndStay) {
  const std::string hex = Hex("theirs");
  const std::vector<std::string> names = {"notes",
                                          hex,
                                          absl::StrCat("-", hex),
                                          absl::StrCat("-5-", hex),
                                          absl::StrCat("8589934593-", hex),
                                          absl::StrCat("99999999999999999999-", hex),
                                          absl::StrCat("5-", absl::AsciiStrToUpper(hex)),
                                          absl::StrCat("5-", hex.substr(1)),
                                          absl::StrCat("5-", hex, "0"),
                                          absl::StrCat("5-", hex, ".tmp"),
                                          absl::StrCat("5--", hex),
                                          "5-"};
  for (const std::string& name : names) Touch(disk_, "d/orphaned/" + name);
  EXPECT_EQ(Counted().files, 0);
  EXPECT_EQ(*orphans_.BringBack({DigestOf("theirs")}), 0);
  EXPECT_EQ(orphans_.RemoveOld(kNow, 0)->files, 0);
  EXPECT_THAT(disk_.Paths("d/orphaned/"), SizeIs(names.size()));
  // The last second that counts, and the first.
  Touch(disk_, absl::StrCat("d/orphaned/8589934592-", hex));
  Touch(disk_, absl::StrCat("d/orphaned/0-", hex));
  EXPECT_EQ(Counted().files, 2);
  EXPECT_EQ(orphans_.RemoveOld(kNow, 0)->files, 1) << "one is of a time to come";
}

// Two starts with a wrong catalogue took the same payload: an upload had brought it again in between.
TEST_F(OrphansTest, APayloadThatWasTakenTwiceComesBackOnce) {
  const std::string digest = Put("again");
  ASSERT_TRUE(orphans_.Take({digest}, kNow).ok());
  Put("again");
  ASSERT_TRUE(orphans_.Take({digest}, kNow + kSecond).ok());
  EXPECT_EQ(Counted().files, 2);
  EXPECT_EQ(*orphans_.BringBack({digest}), 1);
  EXPECT_EQ(Brought("again"), "again");
  EXPECT_EQ(orphans_.RemoveOld(kNow + 10 * kSecond, kSecond)->files, 1);
  EXPECT_EQ(Brought("again"), "again");
}

TEST_F(OrphansTest, OutliveALossOfPowerAfterEachMove) {
  const std::vector<std::string> digests = {Put("one"), Put("two")};
  ASSERT_TRUE(orphans_.Take(digests, kNow).ok());
  disk_.LosePower(0);
  EXPECT_EQ(Counted().files, 2);
  EXPECT_THAT(disk_.Paths("d/spool/"), IsEmpty());
  EXPECT_EQ(*orphans_.BringBack(digests), 2);
  disk_.LosePower(0);
  EXPECT_EQ(Counted().files, 0);
  EXPECT_EQ(Brought("one"), "one");
  EXPECT_EQ(Brought("two"), "two");
}

// Any one operation fails: each payload is whole in one of the two places, and nothing is told that is not so.
TEST_F(OrphansTest, AnErrorLeavesEachPayloadInOneOfTheTwoPlaces) {
  const std::vector<std::string> all = {"one", "two", "three"};
  const auto expect_whole = [&](int at) {
    for (const std::string& bytes : all) {
      const std::string in_spool = Brought(bytes);
      const std::string with_orphans = ReadAll(disk_, "d/orphaned/1700000000-" + Hex(bytes));
      EXPECT_TRUE((in_spool == bytes) != (with_orphans == bytes)) << bytes << ", operation " << at;
    }
  };
  int failures = 0;
  for (const Fault fault : {Fault::kBroken, Fault::kFull, Fault::kGone}) {
    for (int at = 1;; ++at) {
      std::vector<std::string> digests;
      for (const std::string& bytes : all) digests.push_back(Put(bytes));
      FaultyFiles files(disk_, fault, at);
      const PayloadSpool spool(files, "d/spool");
      Orphans orphans(files, spool, "d/orphaned");
      const absl::Status taken = orphans.Take(digests, kNow);
      expect_whole(at);
      const bool took = taken.ok();
      const auto brought = took ? orphans.BringBack(digests) : absl::StatusOr<int64_t>(0);
      expect_whole(at);
      EXPECT_EQ(took && brought.ok(), !files.has_failed()) << at;
      failures += files.has_failed() ? 1 : 0;
      ASSERT_TRUE(orphans_.BringBack(digests).ok());
      if (!files.has_failed()) break;
    }
  }
  EXPECT_GE(failures, 3 * 12) << "a folder, renames and syncs, there and back";
}

TEST_F(OrphansTest, AnErrorIsToldByWhoeverAsks) {
  ASSERT_TRUE(orphans_.Take({Put("one")}, kNow).ok());
  FaultyFiles files(disk_, Fault::kFull);
  files.Unplug();
  Orphans orphans(files, spool_, "d/orphaned");
  EXPECT_TRUE(absl::IsResourceExhausted(orphans.Count().status()));
  EXPECT_TRUE(absl::IsResourceExhausted(orphans.RemoveOld(kNow, 0).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(orphans.BringBack({DigestOf("one")}).status()));
  EXPECT_EQ(Counted().files, 1);
}

// On a real disk, where a folder that was never made has no list.
TEST(Orphans, AFolderThatWasNeverMadeHoldsNothing) {
  std::string folder = "/tmp/intrawarp-orphans-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  FileLayer& files = PosixFiles();
  PayloadSpool spool(files, folder + "/spool");
  Orphans orphans(files, spool, folder + "/orphaned");
  const std::string digest = DigestOf("one");
  EXPECT_EQ(orphans.Count()->files, 0);
  EXPECT_EQ(*orphans.BringBack({digest}), 0);
  EXPECT_EQ(orphans.RemoveOld(kNow, 0)->files, 0);
  ASSERT_TRUE(spool.Create().ok());
  ASSERT_TRUE(spool.Write(digest, std::string("one")).ok());
  ASSERT_TRUE(orphans.Take({digest}, kNow).ok());
  EXPECT_EQ(orphans.Count()->bytes, 3);
  EXPECT_EQ(*orphans.BringBack({digest}), 1);
  EXPECT_TRUE(spool.Verify(digest, 3).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace intrawarp::state
