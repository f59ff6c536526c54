// SPDX-License-Identifier: Apache-2.0
#include "server/audit/audit_chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::audit {
namespace {

using state::Fault;
using state::FaultyFiles;
using state::MemoryDisk;
using state::OpenMode;
using testing::ElementsAre;

const std::string kHash(kHashDigits, 'a');

void Put(MemoryDisk& disk, const std::string& path, const std::string& text) {
  auto file = disk.Open(path, OpenMode::kWrite);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Truncate(0).ok());
  ASSERT_TRUE((*file)->WriteAt(0, text.data(), text.size()).ok());
}

TEST(ChainHash, DependsOnTheKeyAndOnEveryByteBefore) {
  const ChainHash plain(""), keyed("a key of 16 bytes");
  EXPECT_FALSE(plain.is_keyed());
  EXPECT_TRUE(keyed.is_keyed());
  EXPECT_NE(plain.Next(kHash, "{}"), keyed.Next(kHash, "{}"));
  EXPECT_NE(keyed.Next(kHash, "{}"), ChainHash("another key of 16").Next(kHash, "{}"));
  EXPECT_NE(plain.Next(kHash, "{}"), plain.Next(std::string(kHashDigits, 'b'), "{}"));
  EXPECT_NE(plain.Next(kHash, "{}"), plain.Next(kHash, "{} "));
  EXPECT_EQ(keyed.Next(kHash, "{}").size(), kHashDigits);
}

TEST(ParseLine, TakesARecordApart) {
  const std::string text = kHash + R"( {"seq":17,"action":"start"})";
  const std::optional<Line> line = ParseLine(text);
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->hash, kHash);
  EXPECT_EQ(line->json, R"({"seq":17,"action":"start"})");
  EXPECT_EQ(line->seq, 17);
  EXPECT_EQ(ParseLine(kHash + R"( {"seq":9223372036854775807})")->seq, 9223372036854775807);
}

TEST(ParseLine, WhatIsNotARecordIsNone) {
  const std::string json = R"({"seq":1})";
  EXPECT_TRUE(ParseLine(kHash + " " + json));
  for (const std::string& text :
       {std::string(), kHash, kHash + " ", kHash + json, kHash.substr(1) + " " + json, kHash + "  " + json,
        "A" + kHash.substr(1) + " " + json, "g" + kHash.substr(1) + " " + json, kHash + R"( {"seq":0})",
        kHash + R"( {"seq":-1})", kHash + R"( {"seq":x})", kHash + R"( {"seq":})",
        kHash + R"( {"seq":9223372036854775808})", kHash + R"( {"time":1})", kHash + R"( ["seq":1])"}) {
    EXPECT_FALSE(ParseLine(text).has_value()) << text;
  }
}

TEST(AuditFileNumber, IsOfTheNamesOfFilesAndNoOther) {
  EXPECT_EQ(AuditFileName(1), "audit-00000001.log");
  EXPECT_EQ(AuditFileName(123456789), "audit-123456789.log");
  for (const int64_t number : {int64_t{1}, int64_t{99999999}, int64_t{100000000}, int64_t{1} << 40}) {
    EXPECT_EQ(AuditFileNumber(AuditFileName(number)), number);
  }
  for (const char* const name : {"", "audit-", "audit-.log", "audit-00000000.log", "audit--0000001.log", "audit-1.log",
                                 "audit-000000001.log", "audit-+0000001.log", "audit-00000001.log.1", "head", "lock",
                                 "Audit-00000001.log", "audit-99999999999999999999.log", "audit-0000000a.log"}) {
    EXPECT_FALSE(AuditFileNumber(name)) << name;
  }
}

TEST(ParsePosition, TakesWhatFormatPositionMade) {
  for (const int64_t seq : {int64_t{0}, int64_t{1}, int64_t{1} << 60}) {
    const Position position{seq, kHash};
    const auto parsed = ParsePosition("  " + FormatPosition(position) + "\n");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->seq, seq);
    EXPECT_EQ(parsed->hash, kHash);
  }
  EXPECT_EQ(Position().hash, std::string(64, '0')) << "before the first record";
  for (const std::string& text : {std::string(), std::string("7"), kHash, "7  " + kHash, "-1 " + kHash, "x " + kHash,
                                  "7 " + kHash.substr(1), "7 " + kHash + "a", "7 " + kHash + " 8"}) {
    const absl::Status status = ParsePosition(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_EQ(status.message().substr(0, 6), "head: ");
  }
}

TEST(ReadKey, HasBetween16And4096Bytes) {
  MemoryDisk disk;
  const auto read = [&](const std::string& text) {
    Put(disk, "key", text);
    return ReadKey(disk, "key");
  };
  EXPECT_EQ(read("0123456789abcdef").value_or("none"), "0123456789abcdef");
  EXPECT_EQ(read(" \r\n0123456789 abcdef\t\n").value_or("none"), "0123456789 abcdef")
      << "white space around it does not count";
  EXPECT_EQ(read(std::string(4096, 'k')).value_or("none").size(), 4096);
  for (const std::string& text :
       {std::string(), std::string("0123456789abcde"), "0123456789abcde" + std::string(9, '\n'), std::string(4097, 'k'),
        std::string(100, 'k') + std::string(4096, ' ')}) {
    const absl::Status status = read(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text.size();
    EXPECT_EQ(status.message().substr(0, 11), "audit_key: ");
  }
  EXPECT_TRUE(absl::IsNotFound(ReadKey(disk, "nowhere").status()));
}

TEST(ReadHead, IsTheNewestLineThatIsWhole) {
  MemoryDisk disk;
  const auto read = [&](const std::string& text) {
    Put(disk, "d/head", text);
    return ReadHead(disk, "d");
  };
  EXPECT_FALSE(ReadHead(disk, "d")->has_value()) << "a log that has none";
  EXPECT_FALSE(read("")->has_value()) << "nothing was written to it";
  const std::string older = FormatHeadLine({7, kHash}), newer = FormatHeadLine({8, kHash});
  ASSERT_EQ(older.size(), kHeadLineBytes);
  const std::string damaged(kHeadLineBytes, 'x');
  struct Case {
    std::string text;
    int64_t seq;
    int line;
  };
  for (const Case& each : std::vector<Case>{{older, 7, 0},
                                            {older + newer, 8, 1},
                                            {newer + older, 8, 0},
                                            {older + newer.substr(0, kHeadLineBytes - 1), 7, 0},
                                            {damaged + newer, 8, 1},
                                            {older + damaged, 7, 0},
                                            {older + newer + "more", 8, 1}}) {
    const auto head = read(each.text);
    ASSERT_TRUE(head.ok() && head->has_value()) << head.status();
    EXPECT_EQ((*head)->position.seq, each.seq);
    EXPECT_EQ((*head)->line, each.line);
    EXPECT_EQ((*head)->position.hash, kHash);
  }
  for (const std::string& text : {damaged, damaged + damaged, older.substr(1), std::string("\n")}) {
    EXPECT_TRUE(absl::IsDataLoss(read(text).status())) << text;
  }
  // Each byte of a line is checked.
  for (size_t at = 0; at < kHeadLineBytes; ++at) {
    std::string flipped = older;
    flipped[at] ^= 1;
    EXPECT_TRUE(absl::IsDataLoss(read(flipped).status())) << at;
  }
  FaultyFiles files(disk, Fault::kBroken, 2);
  EXPECT_EQ(ReadHead(files, "d").status().code(), absl::StatusCode::kUnknown);
}

class LineReaderTest : public testing::Test {
 protected:
  // The lines of this text, and how the reading ended.
  struct Lines {
    std::vector<std::string> texts;
    std::vector<int64_t> offsets;
    absl::Status status;
    int64_t torn = 0;
  };
  Lines Read(const std::string& text) {
    Put(disk_, "log", text);
    const auto file = disk_.Open("log", OpenMode::kRead);
    LineReader reader(**file);
    Lines lines;
    for (;;) {
      const absl::StatusOr<std::optional<absl::string_view>> next = reader.Next();
      lines.status = next.status();
      if (!next.ok()) return lines;
      if (!next->has_value()) {
        lines.torn = reader.torn_bytes();
        return lines;
      }
      lines.texts.emplace_back(**next);
      lines.offsets.push_back(reader.offset());
    }
  }

  MemoryDisk disk_;
};

TEST_F(LineReaderTest, GivesEachLineWithItsEndsOffset) {
  const Lines lines = Read("one\n\nthree\n");
  EXPECT_TRUE(lines.status.ok());
  EXPECT_THAT(lines.texts, ElementsAre("one", "", "three"));
  EXPECT_THAT(lines.offsets, ElementsAre(4, 5, 11));
  EXPECT_EQ(lines.torn, 0);
  EXPECT_EQ(Read("").texts.size(), 0);
}

TEST_F(LineReaderTest, ALineWithoutItsEndIsTorn) {
  const Lines lines = Read("one\ntw");
  EXPECT_THAT(lines.texts, ElementsAre("one"));
  EXPECT_EQ(lines.torn, 2);
  EXPECT_EQ(Read("abc").torn, 3);
}

TEST_F(LineReaderTest, LinesLieAcrossTheBordersOfItsReads) {
  constexpr int64_t kPiece = int64_t{64} << 10;
  for (const int64_t first : {kPiece - 2, kPiece - 1, kPiece, 2 * kPiece - 1, 2 * kPiece}) {
    const std::string line(static_cast<size_t>(first), 'x');
    const Lines lines = Read(absl::StrCat(line, "\nsecond\n", line, "\nt"));
    ASSERT_TRUE(lines.status.ok()) << first << ": " << lines.status;
    ASSERT_EQ(lines.texts.size(), 3) << first;
    EXPECT_EQ(lines.texts[0], line);
    EXPECT_EQ(lines.texts[1], "second");
    EXPECT_EQ(lines.texts[2], line);
    EXPECT_EQ(lines.offsets[2], 2 * first + 9);
    EXPECT_EQ(lines.torn, 1);
  }
}

// Wherever the file's reads end.
TEST_F(LineReaderTest, ALineThatIsTooLongIsDamage) {
  for (const size_t before : {size_t{0}, size_t{1}, size_t{40000}, size_t{65535}}) {
    const std::string first(before, 'y'), longest(kMaxLineBytes, 'x');
    const Lines lines = Read(absl::StrCat(first, "\n", longest, "\nlast\n"));
    ASSERT_TRUE(lines.status.ok()) << before << ": " << lines.status;
    EXPECT_THAT(lines.texts, ElementsAre(first, longest, "last"));
    for (const size_t more : {size_t{1}, size_t{1000}, size_t{1} << 16, size_t{1} << 18}) {
      const std::string longer = longest + std::string(more, 'x');
      const Lines damaged = Read(absl::StrCat(first, "\n", longer, "\nlast\n"));
      EXPECT_TRUE(absl::IsDataLoss(damaged.status)) << before << " " << more;
      EXPECT_THAT(damaged.texts, ElementsAre(first)) << before << " " << more;
      EXPECT_TRUE(absl::IsDataLoss(Read(first + "\n" + longest + std::string(1 << 18, 'x')).status));
    }
  }
}

TEST_F(LineReaderTest, AnErrorOfTheFileIsTold) {
  Put(disk_, "log", "one\n");
  FaultyFiles files(disk_, Fault::kBroken, 3);
  const auto file = files.Open("log", OpenMode::kRead);
  ASSERT_TRUE(file.ok());
  LineReader reader(**file);
  EXPECT_EQ(**reader.Next(), "one");
  EXPECT_EQ(reader.Next().status().code(), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace intrawarp::audit
