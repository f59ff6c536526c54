// SPDX-License-Identifier: Apache-2.0
#include "server/object/upload_slabs.h"

#include <random>

#include "server/job/job_support.h"
#include "tests/engine/device_test.h"

namespace intrawarp::server {
namespace {

using Pair = std::shared_ptr<SlabPair>;

class UploadSlabsTest : public DeviceTest {
 protected:
  static constexpr int64_t kPairBytes = 2 * UploadSlabs::kSlabBytes;

  explicit UploadSlabsTest(int64_t pinned_bytes = 8 * kPairBytes)
      : pool_(device(), static_cast<size_t>(pinned_bytes)), ledger_({.capacity = {.pinned_bytes = pinned_bytes}}) {}

  // Takes a pair for a large upload into the `n`th of pairs_.
  void Take(size_t n) {
    pairs_.resize(std::max(pairs_.size(), n + 1));
    slabs_.Take(kPairBytes * 10, [this, n](absl::StatusOr<Pair> pair) {
      ASSERT_TRUE(pair.ok()) << pair.status();
      pairs_[n] = *std::move(pair);
      order_.push_back(n);
    });
  }

  PinnedPool pool_;
  Ledger ledger_;
  UploadSlabs slabs_{ledger_, pool_};
  std::vector<Pair> pairs_;
  std::vector<size_t> order_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(UploadSlabsTest);

TEST_P(UploadSlabsTest, BytesArriveTheSame) {
  std::mt19937 random(1);
  const int64_t slab = UploadSlabs::kSlabBytes;
  for (const int64_t bytes : {int64_t{1}, int64_t{4097}, slab, slab + 1, 5 * slab + 12345}) {
    std::vector<char> from(static_cast<size_t>(bytes) + 7);
    for (char& c : from) c = static_cast<char>(random());
    Pair pair;
    slabs_.Take(bytes, [&pair](absl::StatusOr<Pair> taken) { pair = *std::move(taken); });
    StagedUpload upload(from.data(), std::move(pair));
    char* to = Poisoned<char>(from.size());
    // Two copies in a row share the slabs.
    const int64_t front = bytes / 3;
    ASSERT_OK(upload.CopyTo(ctx(), to, 7, front));
    ASSERT_OK(upload.CopyTo(ctx(), to + front, 7 + front, bytes - front));
    ASSERT_OK(device().Synchronize(ctx().stream()));
    EXPECT_EQ(Download(to, static_cast<size_t>(bytes)), std::vector<char>(from.begin() + 7, from.end())) << bytes;
  }
  EXPECT_EQ(ledger_.in_use(Resource::kPinned), 0);
}

TEST_P(UploadSlabsTest, ACheckpointEndsACopyBetweenPieces) {
  const std::vector<char> from(3 * UploadSlabs::kSlabBytes, 'x');
  Take(0);
  StagedUpload upload(from.data(), std::move(pairs_[0]));
  char* to = Poisoned<char>(from.size());
  int pieces = 0;
  const auto checkpoint = [&pieces](const Progress&) { return ++pieces < 3 ? Decision::kContinue : Decision::kCancel; };
  const absl::Status copied = upload.CopyTo(ctx(checkpoint), to, 0, static_cast<int64_t>(from.size()));
  EXPECT_EQ(copied.code(), absl::StatusCode::kCancelled);
  ASSERT_OK(device().Synchronize(ctx().stream()));
  const std::vector<char> there = Download(to, from.size());
  EXPECT_EQ(there[2 * UploadSlabs::kSlabBytes - 1], 'x');
  EXPECT_EQ(there[2 * UploadSlabs::kSlabBytes], '\xff');
}

TEST_P(UploadSlabsTest, WhoComesLateWaitsInLine) {
  for (size_t n = 0; n < UploadSlabs::kMaxPairs + 2; ++n) Take(n);
  EXPECT_EQ(order_.size(), UploadSlabs::kMaxPairs);
  EXPECT_EQ(slabs_.waiting(), 2);
  EXPECT_EQ(ledger_.in_use(Resource::kPinned), UploadSlabs::kMaxPairs * 2 * PinnedClaim(UploadSlabs::kSlabBytes));
  slabs_.Retry();
  EXPECT_EQ(slabs_.waiting(), 2) << "nothing was given back";
  pairs_[1].reset();
  pairs_[2].reset();
  slabs_.Retry();
  EXPECT_EQ(slabs_.waiting(), 0);
  EXPECT_EQ(order_, (std::vector<size_t>{0, 1, 2, 3, 4, 5}));
}

TEST_P(UploadSlabsTest, AnExhaustedPoolDelaysAnUpload) {
  absl::StatusOr<Grant> others = ledger_.Admit({{.pinned_bytes = ledger_.capacity(Resource::kPinned)}});
  ASSERT_TRUE(others.ok());
  Take(0);
  slabs_.Retry();
  EXPECT_EQ(slabs_.waiting(), 1);
  others = Grant();
  slabs_.Retry();
  EXPECT_EQ(slabs_.waiting(), 0);
  ASSERT_NE(pairs_[0], nullptr);
  EXPECT_EQ(pairs_[0]->slab_bytes, UploadSlabs::kSlabBytes);
  pairs_.clear();
  EXPECT_EQ(ledger_.in_use(Resource::kPinned), 0);
}

TEST_P(UploadSlabsTest, ADroppedLineIsNotCalled) {
  absl::StatusOr<Grant> others = ledger_.Admit({{.pinned_bytes = ledger_.capacity(Resource::kPinned)}});
  ASSERT_TRUE(others.ok());
  Take(0);
  slabs_.Clear();
  others = Grant();
  slabs_.Retry();
  EXPECT_TRUE(order_.empty());
}

class SmallUploadSlabsTest : public UploadSlabsTest {
 protected:
  SmallUploadSlabsTest() : UploadSlabsTest(int64_t{1} << 20) {}
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SmallUploadSlabsTest);

TEST_P(SmallUploadSlabsTest, SlabsFitThePool) {
  Take(0);
  ASSERT_NE(pairs_[0], nullptr);
  EXPECT_EQ(pairs_[0]->slab_bytes, int64_t{512} << 10);
}

}  // namespace
}  // namespace intrawarp::server
