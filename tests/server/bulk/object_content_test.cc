// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/object_content.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/file/digest.h"
#include "server/status/errors.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/engine/device_test.h"
#include "tests/server/partial_context.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::server {
namespace {

// Copies go in pieces of this size.
constexpr int64_t kPiece = int64_t{2} << 20;

std::string Bytes(int64_t count, int seed = 1) {
  std::string bytes(static_cast<size_t>(count), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 251 + seed);
  return bytes;
}

absl::string_view TextOf(const ObjectContent& content) {
  return {content.memory.data(), static_cast<size_t>(content.bytes)};
}

class CopyContentTest : public DeviceTest {
 protected:
  DevicePiece Piece(const std::string& bytes) {
    return {Upload(std::vector<char>(bytes.begin(), bytes.end())), static_cast<int64_t>(bytes.size())};
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(CopyContentTest);

TEST_P(CopyContentTest, BringsEveryByteOfEveryPiece) {
  v1::UploadHeader header;
  header.mutable_sparse_matrix()->mutable_shape()->set_rows(7);
  for (const int64_t bytes : {int64_t{1}, kPiece - 1, kPiece, kPiece + 1, 2 * kPiece + 5}) {
    const std::string all = Bytes(bytes);
    const auto cut = all.size() / 3;
    const auto content = CopyContent(ctx(), header, {Piece(all.substr(0, cut)), {}, Piece(all.substr(cut))}, Grant());
    ASSERT_TRUE(content.ok()) << content.status();
    EXPECT_EQ(content->bytes, bytes);
    EXPECT_EQ(TextOf(*content), all);
    EXPECT_EQ(content->header.sparse_matrix().shape().rows(), 7);
  }
}

TEST_P(CopyContentTest, NothingTakesNothing) {
  Ledger ledger({.capacity = {.uploading_bytes = 100}});
  const auto content = CopyContent(ctx(), v1::UploadHeader(), {}, *ledger.Admit(Claim{{.uploading_bytes = 100}}));
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_EQ(content->bytes, 0);
  EXPECT_EQ(content->memory.data(), nullptr);
  EXPECT_EQ(ledger.in_use(Resource::kUploading), 0);
}

// After every failure nothing writes into the memory any more, and nothing is held.
TEST(CopyContent, AnErrorOfTheDeviceIsTheCopys) {
  FaultyDevice device(*OpenDevice("cpu"));
  OwnedContext owned = *OwnedContext::Create(device, 1024);
  Ledger ledger({.capacity = {.uploading_bytes = 3 * kPiece}});
  const std::string bytes = Bytes(3 * kPiece);
  for (const DeviceCall call : {DeviceCall::kCopy, DeviceCall::kSynchronize}) {
    for (const int64_t nth : {1, 3}) {
      device.FailAt(nth, absl::InternalError("broken"), call);
      const int64_t waits = device.calls(DeviceCall::kSynchronize);
      const auto content = CopyContent(owned.context(), v1::UploadHeader(), {{bytes.data(), 3 * kPiece}},
                                       *ledger.Admit(Claim{{.uploading_bytes = 3 * kPiece}}));
      EXPECT_EQ(content.status().code(), absl::StatusCode::kInternal);
      EXPECT_EQ(device.calls(DeviceCall::kSynchronize) - waits, nth) << "after each piece, also the one that failed";
      EXPECT_EQ(ledger.in_use(Resource::kUploading), 0);
      device.Disarm();
    }
  }
}

class KeepContentTest : public testing::Test {
 protected:
  ~KeepContentTest() override { durable_.Shutdown(); }

  void Open() { ASSERT_TRUE(durable_.Open(files_, "d", seams_).ok()); }
  // The content of an affine map, with these bytes.
  ObjectContent Content(const std::string& bytes) {
    OwnedContext owned = *OwnedContext::Create(*device_, 1024);
    v1::UploadHeader header;
    header.mutable_transform()->mutable_affine();
    auto content = CopyContent(owned.context(), header, {{bytes.data(), static_cast<int64_t>(bytes.size())}},
                               *ledger_.Admit(Claim{{.uploading_bytes = 1000}}));
    EXPECT_TRUE(content.ok()) << content.status();
    return *std::move(content);
  }

  const std::unique_ptr<Device> device_ = *OpenDevice("cpu");
  const Seams seams_ = SystemSeams();
  Ledger ledger_{{.capacity = {.uploading_bytes = 1000}}};
  state::MemoryDisk disk_;
  state::LockedFiles locked_{disk_};
  state::FaultyFiles files_{locked_, state::Fault::kFull};
  DurableObjects durable_;
};

TEST_F(KeepContentTest, IsOnTheDiskUnderItsDigestAsAnUploadWouldBringIt) {
  Open();
  for (const std::string& bytes : {std::string("the bytes"), std::string()}) {
    const auto origin = KeepContent(durable_, Content(bytes));
    ASSERT_TRUE(origin.ok()) << origin.status();
    EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0) << "the disk has it";
    ASSERT_NE(origin->payload, nullptr);
    const std::string digest = io::Sha256Of(bytes.data(), bytes.size());
    EXPECT_EQ(origin->payload->bytes(), static_cast<int64_t>(bytes.size()));
    v1::UploadHeader header;
    ASSERT_TRUE(header.ParseFromString(origin->header));
    EXPECT_EQ(header.sha256(), digest);
    EXPECT_EQ(header.total_bytes(), static_cast<int64_t>(bytes.size()));
    EXPECT_FALSE(header.upload_id().empty()) << "an upload must have one";
    EXPECT_TRUE(header.transform().has_affine());
    EXPECT_EQ(origin->description, "");
    if (bytes.empty()) continue;
    EXPECT_EQ(origin->payload->digest(), digest);
    std::string read(bytes.size(), '?');
    ASSERT_TRUE(durable_.Read(digest, absl::MakeSpan(read)).ok());
    EXPECT_EQ(read, bytes);
  }
}

TEST_F(KeepContentTest, AFullDiskIsToldAndHoldsNothing) {
  Open();
  files_.set_fails_writes(true);
  const absl::Status status = KeepContent(durable_, Content("the bytes")).status();
  EXPECT_EQ(ReasonOf(status), v1::STATE_FULL) << status;
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
  EXPECT_TRUE(locked_.List("d/spool")->empty());
  files_.set_fails_writes(false);
}

TEST_F(KeepContentTest, AClaimIsAsLargeAsAllUploadsAtMost) {
  PartialContext parts;
  parts.ledger = &ledger_;
  parts.durable = &durable_;
  const ServerContext context = parts.Make();
  EXPECT_EQ(ContentClaim(context, 500), 0) << "nothing is kept";
  EXPECT_EQ(KeepContent(durable_, ObjectContent())->payload, nullptr);
  Open();
  EXPECT_EQ(ContentClaim(context, 0), 0);
  EXPECT_EQ(ContentClaim(context, 500), 500);
  EXPECT_EQ(ContentClaim(context, 1000), 1000);
  EXPECT_EQ(ContentClaim(context, 1001), 1000) << "it waits for all others";
}

}  // namespace
}  // namespace intrawarp::server
