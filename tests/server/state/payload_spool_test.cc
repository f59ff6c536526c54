// SPDX-License-Identifier: Apache-2.0
#include "server/state/payload_spool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "io/file/digest.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::state {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Larger than one piece of a write.
std::string Payload(char seed, size_t size = (size_t{4} << 20) + 17) {
  std::string bytes(size, seed);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(seed + static_cast<char>(i * i % 251));
  return bytes;
}
std::string DigestOf(const std::string& bytes) { return io::Sha256Of(bytes.data(), bytes.size()); }

absl::StatusOr<std::string> ReadBack(const PayloadSpool& spool, const std::string& digest, size_t size) {
  std::string bytes(size, '\x55');
  const absl::Status status = spool.Read(digest, absl::MakeSpan(bytes));
  if (!status.ok()) return status;
  return bytes;
}

class PayloadSpoolTest : public testing::Test {
 protected:
  std::string PathOf(const std::string& digest) const { return "s/" + absl::BytesToHexString(digest); }

  MemoryDisk disk_;
  PayloadSpool spool_{disk_, "s"};
};

TEST_F(PayloadSpoolTest, APayloadComesBackAsItWent) {
  for (const size_t size : {size_t{1}, size_t{4} << 20, (size_t{4} << 20) + 17}) {
    const std::string bytes = Payload('a', size);
    ASSERT_TRUE(spool_.Write(DigestOf(bytes), bytes).ok());
    const absl::StatusOr<std::string> back = ReadBack(spool_, DigestOf(bytes), size);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == bytes);
    EXPECT_TRUE(spool_.Verify(DigestOf(bytes), static_cast<int64_t>(size)).ok());
  }
}

TEST_F(PayloadSpoolTest, AWrittenPayloadOutlivesALossOfPower) {
  const std::string bytes = Payload('p');
  ASSERT_TRUE(spool_.Write(DigestOf(bytes), bytes).ok());
  disk_.LosePower(0);
  EXPECT_TRUE(ReadBack(spool_, DigestOf(bytes), bytes.size()).ok());
}

TEST_F(PayloadSpoolTest, DamageIsReportedByNameAndNeverServed) {
  const std::string bytes = Payload('d');
  const std::string digest = DigestOf(bytes);
  ASSERT_TRUE(spool_.Write(digest, bytes).ok());
  disk_.FlipBit(PathOf(digest), bytes.size() - 1);
  const absl::Status flipped = ReadBack(spool_, digest, bytes.size()).status();
  EXPECT_EQ(flipped.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(flipped.message(), HasSubstr("spool/" + absl::BytesToHexString(digest)));
  EXPECT_EQ(spool_.Verify(digest, static_cast<int64_t>(bytes.size())).code(), absl::StatusCode::kDataLoss);

  disk_.Cut(PathOf(digest), 100);
  EXPECT_EQ(ReadBack(spool_, digest, bytes.size()).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(spool_.Remove(digest).ok());
  EXPECT_EQ(ReadBack(spool_, digest, bytes.size()).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(spool_.Remove(digest).ok());
}

TEST_F(PayloadSpoolTest, WhatIsTornGoes) {
  const std::string whole = Payload('u', 10);
  ASSERT_TRUE(spool_.Write(DigestOf(whole), whole).ok());
  ASSERT_TRUE(disk_.Open("s/new-7", OpenMode::kWrite).ok());
  const auto removed = spool_.RemoveTemporary();
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(*removed, 1);
  EXPECT_THAT(disk_.Paths("s/"), testing::ElementsAre(PathOf(DigestOf(whole))));
}

// Each operation of a write fails once: no error is passed over, and the space comes back.
TEST_F(PayloadSpoolTest, AFaultAtEachOperationOfAWriteIsAnErrorThatLeavesNothingForGood) {
  const std::string bytes = Payload('f');
  for (const Fault fault : {Fault::kFull, Fault::kBroken, Fault::kShortWrite, Fault::kGone}) {
    for (int at = 1;; ++at) {
      MemoryDisk disk;
      FaultyFiles files(disk, fault, at);
      const absl::Status written = PayloadSpool(files, "s").Write(DigestOf(bytes), bytes);
      if (!files.has_failed()) {
        EXPECT_GE(at, 6) << "open, two writes, sync, rename, sync of the folder";
        break;
      }
      EXPECT_FALSE(written.ok()) << at;
      ASSERT_TRUE(PayloadSpool(disk, "s").RemoveTemporary().ok());
      ASSERT_TRUE(PayloadSpool(disk, "s").Remove(DigestOf(bytes)).ok());
      EXPECT_THAT(disk.Paths("s/"), IsEmpty()) << at;
    }
  }
}

}  // namespace
}  // namespace intrawarp::state
