// SPDX-License-Identifier: Apache-2.0
#include "server/audit/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/audit/audit_verify.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::audit {
namespace {

using state::Fault;
using state::FaultyFiles;
using state::FileLayer;
using state::MemoryDisk;
using state::OpenMode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFolder[] = "audit";
constexpr char kFirstFile[] = "audit/audit-00000001.log";

AuditOptions Options(const std::string& key = "") {
  AuditOptions options;
  options.directory = kFolder;
  options.key = key;
  options.retry = std::chrono::milliseconds(1);
  return options;
}

AuditRecord Record(int i) {
  AuditRecord record;
  record.time = std::chrono::system_clock::time_point(std::chrono::seconds(1000 + i));
  record.action = absl::StrCat("event-", i, "-");
  record.outcome = "OK";
  return record;
}

// Counts what a log answered.
class Answers {
 public:
  AuditLog::DoneFn Next() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++asked_;
    return [this](const absl::Status& status) {
      std::lock_guard<std::mutex> inner(mutex_);
      ++(status.ok() ? ok_ : failed_);
      changed_.notify_all();
    };
  }
  void WaitForAll() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ok_ + failed_ == asked_; });
  }
  int ok() const { return ok_; }
  int failed() const { return failed_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int asked_ = 0, ok_ = 0, failed_ = 0;
};

std::string ReadAll(FileLayer& files, const std::string& path) {
  auto file = files.Open(path, OpenMode::kRead);
  if (!file.ok()) return "";
  std::string text(static_cast<size_t>(*(*file)->Size()), '\0');
  EXPECT_TRUE((*file)->ReadAt(0, text.data(), text.size()).ok());
  return text;
}

void Replace(MemoryDisk& disk, const std::string& path, const std::string& text) {
  auto file = disk.Open(path, OpenMode::kWriteExisting);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Truncate(0).ok());
  ASSERT_TRUE((*file)->WriteAt(0, text.data(), text.size()).ok());
}

// A log of this many records, written one by one.
void WriteLog(FileLayer& files, int records, AuditOptions options = Options()) {
  auto log = AuditLog::Open(files, std::move(options));
  ASSERT_TRUE(log.ok()) << log.status();
  for (int i = 0; i < records; ++i) {
    Answers answers;
    (*log)->Append(Record(i), answers.Next());
    answers.WaitForAll();
    EXPECT_EQ(answers.ok(), 1);
  }
}

AuditFindings Verify(FileLayer& files, const std::string& key = "", const AuditExpectations& expected = {}) {
  absl::StatusOr<AuditFindings> found = VerifyAudit(files, kFolder, ChainHash(key), expected);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.value_or(AuditFindings());
}

TEST(AuditLogTest, ARecordIsOneLineOfTheChain) {
  AuditRecord record = Record(0);
  record.action = "intrawarp.v1.RegistrationService/Register";
  record.who = "theatre \"1\"\n";
  record.digests = {{"fixed", std::string(32, '\1')}, {"moving", ""}};
  record.options = R"({"stages":[{"affine":{}}]})";
  record.quality = "no JSON";
  record.milliseconds = 1.5;
  EXPECT_EQ(ToJson(record, 7, ""),
            R"({"seq":7,"time":"1970-01-01T00:16:40.000Z","action":"intrawarp.v1.RegistrationService/Register",)"
            R"("who":"theatre \"1\"\n","sha256":{"fixed":")" +
                std::string("01010101010101010101010101010101") + "01010101010101010101010101010101" +
                R"("},"options":{"stages":[{"affine":{}}]},"outcome":"OK","ms":1.5})");
  EXPECT_THAT(ToJson(record, 7, "before"), HasSubstr(R"("previous":"before"})"));
}

TEST(AuditLogTest, VerificationTellsWhatBeganAndHasNoEnd) {
  MemoryDisk disk;
  auto log = AuditLog::Open(disk, Options());
  ASSERT_TRUE(log.ok()) << log.status();
  const std::pair<const char*, const char*> calls[] = {
      {"a", kBegun}, {"b", kBegun}, {"a", "OK"}, {"c", "UNAVAILABLE"}, {"d", kBegun}};
  for (const auto& [call, outcome] : calls) {
    AuditRecord record = Record(0);
    record.outcome = outcome;
    record.notes = {{"call", call}};
    Answers answers;
    (*log)->Append(std::move(record), answers.Next());
    answers.WaitForAll();
  }
  const AuditFindings found = Verify(disk);
  EXPECT_TRUE(found.errors.empty());
  EXPECT_THAT(found.unfinished, testing::ElementsAre(2, 5));
}

TEST(AuditLogTest, TheChainIsWhatItsHeaderSays) {
  MemoryDisk disk;
  WriteLog(disk, 2);
  const std::vector<std::string> lines = absl::StrSplit(ReadAll(disk, kFirstFile), '\n');
  ASSERT_EQ(lines.size(), 3u);
  const std::string first_json = lines[0].substr(65);
  // sha256sum of 64 zeros and the first JSON; then of that digest and the second one.
  EXPECT_EQ(lines[0].substr(0, 64), ChainHash("").Next(std::string(64, '0'), first_json));
  EXPECT_EQ(lines[1].substr(0, 64), ChainHash("").Next(lines[0].substr(0, 64), lines[1].substr(65)));
  EXPECT_EQ(ChainHash("").Next("", "abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // RFC 4231, test case 2.
  EXPECT_EQ(ChainHash("Jefe").Next("what do ya want ", "for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const Position first{1, lines[0].substr(0, 64)}, second{2, lines[1].substr(0, 64)};
  EXPECT_EQ(ReadAll(disk, "audit/head"), FormatHeadLine(second) + FormatHeadLine(first));
  EXPECT_EQ(FormatHeadLine(second).size(), kHeadLineBytes);
}

TEST(AuditLogTest, GoesOnAfterARestartAndOverFiles) {
  MemoryDisk disk;
  AuditOptions options = Options("key");
  options.file_bytes = 300;
  for (int start = 0; start < 5; ++start) WriteLog(disk, 4, options);
  EXPECT_GT(disk.Paths("audit/audit-").size(), 4u);
  const AuditFindings found = Verify(disk, "key");
  EXPECT_THAT(found.errors, IsEmpty());
  EXPECT_EQ(found.records, 20);
  EXPECT_EQ(found.end.seq, 20);
  EXPECT_FALSE(Verify(disk, "another key").errors.empty());
  EXPECT_TRUE(absl::IsDataLoss(AuditLog::Open(disk, Options("another key")).status()));
}

TEST(AuditLogTest, OlderFilesMayBeMovedAway) {
  MemoryDisk disk;
  AuditOptions options = Options();
  options.file_bytes = 300;
  WriteLog(disk, 12, options);
  const std::vector<std::string> lines = absl::StrSplit(ReadAll(disk, kFirstFile), '\n', absl::SkipEmpty());
  AuditExpectations after;
  after.after = {static_cast<int64_t>(lines.size()), lines.back().substr(0, 64)};
  ASSERT_TRUE(disk.Remove(kFirstFile).ok());
  EXPECT_THAT(Verify(disk).errors, ElementsAre(HasSubstr("are missing")));
  EXPECT_THAT(Verify(disk, "", after).errors, IsEmpty());
  WriteLog(disk, 3, options);
  EXPECT_THAT(Verify(disk, "", after).errors, IsEmpty());
  after.after.hash[0] = after.after.hash[0] == '0' ? '1' : '0';
  EXPECT_FALSE(Verify(disk, "", after).errors.empty());
}

// Each byte of a log but those that end it.
TEST(AuditLogTest, EveryFlippedBitIsFound) {
  MemoryDisk disk;
  WriteLog(disk, 4);
  const std::string text = ReadAll(disk, kFirstFile);
  for (size_t i = 0; i < text.size(); ++i) {
    disk.FlipBit(kFirstFile, i);
    const auto found = VerifyAudit(disk, kFolder, ChainHash(""));
    EXPECT_TRUE(!found.ok() || !found->errors.empty()) << "byte " << i;
    disk.FlipBit(kFirstFile, i);
  }
  EXPECT_THAT(Verify(disk).errors, IsEmpty());
}

TEST(AuditLogTest, ARemovedAChangedAndAMovedRecordAreFound) {
  MemoryDisk disk;
  WriteLog(disk, 6);
  const std::string sound = ReadAll(disk, kFirstFile);
  const std::vector<std::string> lines = absl::StrSplit(sound, '\n', absl::SkipEmpty());
  const auto verify = [&](const std::vector<std::string>& changed) {
    Replace(disk, kFirstFile, absl::StrCat(absl::StrJoin(changed, "\n"), changed.empty() ? "" : "\n"));
    return Verify(disk).errors;
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    std::vector<std::string> removed = lines;
    removed.erase(removed.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(verify(removed), ElementsAre(HasSubstr("missing"))) << i;

    // Someone who knows the form gives it a hash that fits; the record after it tells, or the head.
    std::vector<std::string> changed = lines;
    const std::string previous = i == 0 ? std::string(64, '0') : lines[i - 1].substr(0, 64);
    std::string json = lines[i].substr(65);
    json.replace(json.find("event-"), 6, "forged");
    changed[i] = absl::StrCat(ChainHash("").Next(previous, json), " ", json);
    EXPECT_EQ(verify(changed).size(), 1u) << i;

    if (i == 0) continue;
    std::vector<std::string> moved = lines;
    std::swap(moved[i - 1], moved[i]);
    EXPECT_FALSE(verify(moved).empty()) << i;
  }
  for (size_t kept = 0; kept < lines.size(); ++kept) {
    EXPECT_THAT(verify({lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(kept)}),
                ElementsAre(HasSubstr(absl::StrCat("records ", kept + 1, " to 6 are missing"))));
  }
}

// A whole forged log, head and all: a head that was noted down tells, and so does the key.
TEST(AuditLogTest, AForgedLogIsFoundByItsKeyOrByAKnownHead) {
  MemoryDisk disk;
  WriteLog(disk, 3, Options("key"));
  const AuditFindings honest = Verify(disk, "key");
  MemoryDisk forged;
  WriteLog(forged, 3, Options("guess"));
  EXPECT_FALSE(Verify(forged, "key").errors.empty());
  AuditExpectations known;
  known.head = honest.end;
  EXPECT_FALSE(Verify(forged, "guess", known).errors.empty());
  EXPECT_THAT(Verify(disk, "key", known).errors, IsEmpty());
}

TEST(AuditLogTest, AHalfWrittenLineIsNoRecordAndGoes) {
  MemoryDisk disk;
  WriteLog(disk, 3);
  const std::string sound = ReadAll(disk, kFirstFile);
  Replace(disk, kFirstFile, sound + sound.substr(0, 40));
  EXPECT_EQ(Verify(disk).torn_bytes, 40);
  EXPECT_THAT(Verify(disk).errors, IsEmpty());
  WriteLog(disk, 1);
  EXPECT_EQ(Verify(disk).torn_bytes, 0);
  EXPECT_THAT(Verify(disk).errors, IsEmpty());
  EXPECT_EQ(Verify(disk).records, 4);
}

// Nobody hides the loss of the end by a restart.
TEST(AuditLogTest, ALogThatHasLostItsEndIsNotGoneOnWith) {
  MemoryDisk disk;
  WriteLog(disk, 4);
  const std::string sound = ReadAll(disk, kFirstFile);
  Replace(disk, kFirstFile, sound.substr(0, sound.rfind("\n", sound.size() - 2) + 1));
  EXPECT_TRUE(absl::IsDataLoss(AuditLog::Open(disk, Options()).status()));
  Replace(disk, kFirstFile, "");
  EXPECT_TRUE(absl::IsDataLoss(AuditLog::Open(disk, Options()).status()));
  Replace(disk, kFirstFile, sound);
  EXPECT_TRUE(AuditLog::Open(disk, Options()).ok());
}

// Either of its two lines may be torn.
TEST(AuditLogTest, ATornHeadIsTheOneBefore) {
  for (const size_t at : {size_t{30}, kHeadLineBytes + 30}) {
    MemoryDisk disk;
    WriteLog(disk, 4);
    std::string torn = ReadAll(disk, "audit/head");
    torn[at] = torn[at] == '0' ? '1' : '0';
    Replace(disk, "audit/head", torn);
    const absl::StatusOr<std::optional<Head>> head = ReadHead(disk, kFolder);
    ASSERT_TRUE(head.ok() && head->has_value());
    EXPECT_GE((*head)->position.seq, 3);
    WriteLog(disk, 1);
    EXPECT_THAT(Verify(disk).errors, IsEmpty());
  }
}

TEST(AuditLogTest, ARecordThatIsTooLongLosesItsDetails) {
  MemoryDisk disk;
  {
    auto log = AuditLog::Open(disk, Options());
    ASSERT_TRUE(log.ok());
    AuditRecord record = Record(1);
    record.checksum = std::string(2 * kMaxLineBytes, 'f');
    record.action = std::string(kMaxLineBytes, 'a');
    (*log)->Append(record);
  }
  EXPECT_THAT(Verify(disk).errors, IsEmpty());
  EXPECT_THAT(ReadAll(disk, kFirstFile), HasSubstr("the record was too long"));
  WriteLog(disk, 1);
  EXPECT_EQ(Verify(disk).records, 2);
}

TEST(AuditLogTest, OneProcessAtATime) {
  MemoryDisk disk;
  auto log = AuditLog::Open(disk, Options());
  ASSERT_TRUE(log.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(AuditLog::Open(disk, Options()).status()));
}

TEST(AuditLogTest, ALogThatIsNoneIsRefused) {
  MemoryDisk disk;
  EXPECT_TRUE(absl::IsNotFound(VerifyAudit(disk, kFolder, ChainHash("")).status()));
  WriteLog(disk, 1);
  Replace(disk, kFirstFile, std::string(300000, 'x'));
  EXPECT_FALSE(Verify(disk).errors.empty());
  EXPECT_TRUE(absl::IsDataLoss(AuditLog::Open(disk, Options()).status()));
  Replace(disk, "audit/head", "gibberish");
  EXPECT_TRUE(absl::IsDataLoss(VerifyAudit(disk, kFolder, ChainHash("")).status()));
}

// Every operation of a log's life fails once, then the power is lost: what was acknowledged is there.
class FaultTest : public testing::TestWithParam<Fault> {};

TEST_P(FaultTest, WhatWasAcknowledgedOutlivesEveryFault) {
  bool went_on = true;
  for (int at = 1; went_on; ++at) {
    ASSERT_LT(at, 500);
    MemoryDisk disk;
    FaultyFiles files(disk, GetParam(), at);
    AuditOptions options = Options();
    options.file_bytes = 400;
    int acknowledged = 0;
    if (auto log = AuditLog::Open(files, options); log.ok()) {
      for (int i = 0; i < 12; ++i) {
        Answers answers;
        (*log)->Append(Record(i), answers.Next());
        answers.WaitForAll();
        acknowledged += answers.ok();
      }
      if (GetParam() != Fault::kGone) {
        while (!(*log)->available()) std::this_thread::yield();
        Answers last;
        (*log)->Append(Record(12), last.Next());
        last.WaitForAll();
        acknowledged += last.ok();
      }
    }
    went_on = files.has_failed();
    disk.LosePower(at);
    auto again = AuditLog::Open(disk, options);
    ASSERT_TRUE(again.ok()) << at << ": " << again.status();
    again->reset();
    const AuditFindings found = Verify(disk);
    EXPECT_THAT(found.errors, IsEmpty()) << at;
    EXPECT_GE(found.records, acknowledged) << at;
    if (!went_on) {
      EXPECT_GE(acknowledged, 12);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultTest,
                         testing::Values(Fault::kFull, Fault::kBroken, Fault::kShortWrite, Fault::kTwice,
                                         Fault::kGone));

TEST(AuditLogTest, RecordsWaitForADiskThatFailsAndLossesAreCounted) {
  MemoryDisk disk;
  FaultyFiles files(disk, Fault::kBroken);
  auto log = AuditLog::Open(files, Options());
  ASSERT_TRUE(log.ok());
  files.Unplug();
  Answers answers;
  constexpr int kRecords = static_cast<int>(kMaxPending) + 50;
  for (int i = 0; i < kRecords; ++i) (*log)->Append(Record(i), answers.Next());
  answers.WaitForAll();
  EXPECT_EQ(answers.failed(), kRecords);
  EXPECT_FALSE((*log)->available());
  EXPECT_EQ((*log)->lost(), 50);
  files.Replug();
  while (!(*log)->available()) std::this_thread::yield();
  Answers after;
  (*log)->Append(Record(0), after.Next());
  after.WaitForAll();
  EXPECT_EQ(after.ok(), 1);
  log->reset();
  const AuditFindings found = Verify(disk);
  EXPECT_THAT(found.errors, IsEmpty());
  EXPECT_EQ(found.records, static_cast<int64_t>(kMaxPending) + 2);
  EXPECT_THAT(ReadAll(disk, kFirstFile), HasSubstr(R"("action":"lost","records":"50")"));
}

// A file whose syncs wait until they are let go.
class HangingFiles final : public FileLayer {
 public:
  explicit HangingFiles(FileLayer& inner) : inner_(inner) {}
  void Hang() { Set(true); }
  void LetGo() { Set(false); }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !hangs_; });
  }

  absl::StatusOr<std::unique_ptr<state::File>> Open(const std::string& path, OpenMode mode) override {
    auto file = inner_.Open(path, mode);
    if (!file.ok()) return file.status();
    return std::make_unique<HangingFile>(*this, *std::move(file));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override { return inner_.Rename(from, to); }
  absl::Status Remove(const std::string& path) override { return inner_.Remove(path); }
  absl::Status MakeDirectory(const std::string& path) override { return inner_.MakeDirectory(path); }
  absl::Status SyncDirectory(const std::string& path) override { return inner_.SyncDirectory(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return inner_.List(path); }
  absl::StatusOr<bool> Exists(const std::string& path) override { return inner_.Exists(path); }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override { return inner_.FreeBytes(path); }
  absl::StatusOr<std::unique_ptr<state::DirectoryLock>> Lock(const std::string& path) override {
    return inner_.Lock(path);
  }

 private:
  class HangingFile final : public state::File {
   public:
    HangingFile(HangingFiles& files, std::unique_ptr<state::File> inner) : files_(files), inner_(std::move(inner)) {}
    absl::StatusOr<size_t> ReadAt(int64_t offset, void* to, size_t size) override {
      return inner_->ReadAt(offset, to, size);
    }
    absl::Status WriteAt(int64_t offset, const void* from, size_t size) override {
      return inner_->WriteAt(offset, from, size);
    }
    absl::Status Truncate(int64_t size) override { return inner_->Truncate(size); }
    absl::Status Sync() override {
      files_.Wait();
      return inner_->Sync();
    }
    absl::StatusOr<int64_t> Size() override { return inner_->Size(); }

   private:
    HangingFiles& files_;
    const std::unique_ptr<state::File> inner_;
  };

  void Set(bool hangs) {
    std::lock_guard<std::mutex> lock(mutex_);
    hangs_ = hangs;
    changed_.notify_all();
  }

  FileLayer& inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hangs_ = false;
};

TEST(AuditLogTest, ADiskThatDoesNotAnswerKeepsNobodyWaiting) {
  MemoryDisk disk;
  HangingFiles files(disk);
  auto log = AuditLog::Open(files, Options());
  ASSERT_TRUE(log.ok());
  files.Hang();
  Answers answers;
  for (int i = 0; i < 3; ++i) (*log)->Append(Record(i), answers.Next());
  const auto now = std::chrono::steady_clock::now();
  (*log)->Check(now);
  EXPECT_TRUE((*log)->available()) << "it may still answer";
  (*log)->Check(now + std::chrono::seconds(6));
  answers.WaitForAll();
  EXPECT_EQ(answers.failed(), 3);
  EXPECT_FALSE((*log)->available());
  Answers at_once;
  (*log)->Append(Record(3), at_once.Next());
  at_once.WaitForAll();
  EXPECT_EQ(at_once.failed(), 1);
  files.LetGo();
  while (!(*log)->available()) std::this_thread::yield();
  log->reset();
  EXPECT_EQ(Verify(disk).records, 4);
}

TEST(AuditLogTest, ManyThreadsAppendAtOnce) {
  MemoryDisk disk;
  auto log = AuditLog::Open(disk, Options());
  ASSERT_TRUE(log.ok());
  Answers answers;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) (*log)->Append(Record(i), answers.Next());
    });
  }
  for (std::thread& thread : threads) thread.join();
  answers.WaitForAll();
  EXPECT_EQ(answers.ok(), 2000);
  log->reset();
  EXPECT_THAT(Verify(disk).errors, IsEmpty());
  EXPECT_EQ(Verify(disk).records, 2000);
}

}  // namespace
}  // namespace intrawarp::audit
