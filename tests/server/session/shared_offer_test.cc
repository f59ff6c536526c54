// SPDX-License-Identifier: Apache-2.0
#include "server/session/shared_offer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/field_error.h"
#include "server/base/seams.h"
#include "server/base/tcp_listener.h"
#include "server/context/limits.h"
#include "server/job/admission_metrics.h"
#include "server/session/session_store.h"
#include "server/session/shared_memory.h"
#include "server/status/errors.h"
#include "server/store/transform_store.h"
#include "tests/io/io_test.h"
#include "tests/server/partial_context.h"
#include "wire/shared_segment.h"

namespace intrawarp::server {
namespace {

// A frame of 10 x 10 pixels.
constexpr int64_t kFrameBytes = 200;
constexpr int64_t kMostBytes = 100'000;  // of a volume
constexpr int64_t kPinned = 64 * wire::kSharedPage;

class SharedOfferTest : public io::FileTest {
 protected:
  static LedgerOptions Capacity() {
    LedgerOptions options;
    options.capacity.pinned_bytes = kPinned;
    options.session_reserve.pinned_bytes = kPinned;
    return options;
  }
  static SessionSetup SetupOfFrames() {
    SessionSetup setup;
    setup.owner = "ann";
    setup.resident = std::make_shared<StoredVolume>();
    setup.resident_is_fixed = false;  // the frames are, so that their grid is the field's
    setup.expected.geometry.size = {10, 10, 1};
    setup.expected.bytes = kFrameBytes;
    setup.field.emplace();
    setup.max_pending = 2;
    return setup;
  }
  SharedOfferTest() {
    limits_.max_volume_bytes = kMostBytes;
    parts_.ledger = &ledger_;
    parts_.transforms = &transforms_;
    parts_.sessions = &sessions_;
    parts_.admission = &admission_;
    parts_.limits = &limits_;
    parts_.seams = &seams_;
    context_.emplace(DeviceContext{parts_.Make(), 0, *NoPart<Device>(), *NoPart<const DeviceProbe>(),
                                   *NoPart<const Watchdog>(), *NoPart<JobQueue>(), *NoPart<CopyLane>()});
    auto memory = SharedMemory::Start({Path("s"), {}}, registry_);
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    sessions_.set_shared_memory(memory_.get());
  }
  absl::StatusOr<SharedOffer> Offer(const v1::SharedMemoryRequest& request = {}) {
    if (session_ == nullptr) session_ = std::make_shared<NavigateSession>(*context_, "s", setup_);
    return MakeSharedOffer(*context_, *session_, request);
  }
  // `change` makes a request that is refused for this field.
  void ExpectRefused(const std::string& field, const std::function<void(v1::SharedMemoryRequest&)>& change) {
    v1::SharedMemoryRequest request;
    change(request);
    const absl::Status status = Offer(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(FieldOf(status), field) << request.ShortDebugString();
    EXPECT_EQ(ledger_.in_use(Resource::kPinned), 0);
  }
  // The slots of an offer that is made.
  v1::SharedMemoryRequest SlotsFor(const v1::SharedMemoryRequest& request = {}) {
    const auto made = Offer(request);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? made->offer.slots() : v1::SharedMemoryRequest();
  }

  const Seams seams_ = SystemSeams();
  ServerLimits limits_;
  Registry registry_;
  const AdmissionMetrics admission_{registry_, {"cpu"}};
  Ledger ledger_{Capacity()};
  TransformStore transforms_;
  SessionStore sessions_{[](int, bool) {}};
  PartialContext parts_;
  std::optional<DeviceContext> context_;
  std::unique_ptr<SharedMemory> memory_;
  SessionSetup setup_ = SetupOfFrames();
  std::shared_ptr<NavigateSession> session_;
};

// One frame more than can wait is filled meanwhile, and one field more is read.
TEST_F(SharedOfferTest, ARequestWithoutNumbersHasTheSlotsThatTheSessionUses) {
  const auto made = Offer();
  ASSERT_TRUE(made.ok()) << made.status();
  const v1::SharedMemoryRequest& slots = made->offer.slots();
  EXPECT_EQ(slots.frame_slots(), 4);
  EXPECT_EQ(slots.field_slots(), 4);
  EXPECT_EQ(slots.frame_slot_bytes(), wire::kSharedPage);
  EXPECT_EQ(slots.field_slot_bytes(), wire::kSharedPage);
  EXPECT_EQ(made->offer.segment_bytes(), 9 * wire::kSharedPage);
  EXPECT_EQ(made->offer.socket(), memory_->socket());
  EXPECT_EQ(made->offer.token().size(), wire::kSharedTokenBytes);
  EXPECT_TRUE(made->offer.has_status());
  EXPECT_EQ(made->offer.status().code(), 0);
  EXPECT_EQ(made->segment->layout().total_bytes(), made->offer.segment_bytes());
}

TEST_F(SharedOfferTest, ASessionWithCoarseFieldsHasTwoOfEachFrame) {
  setup_.coarse_field = true;
  EXPECT_EQ(SlotsFor().field_slots(), 7);
}

TEST_F(SharedOfferTest, ASessionWithoutFieldsHasNoSlotsForThem) {
  setup_.field.reset();
  const v1::SharedMemoryRequest slots = SlotsFor();
  EXPECT_EQ(slots.frame_slots(), 4);
  EXPECT_EQ(slots.field_slots(), 0);
  EXPECT_EQ(slots.field_slot_bytes(), 0);
  ExpectRefused("field_slots", [](auto& request) { request.set_field_slots(1); });
}

TEST_F(SharedOfferTest, TheDefaultsAreWithinTheMost) {
  setup_.max_pending = 40;
  setup_.coarse_field = true;
  const v1::SharedMemoryRequest slots = SlotsFor();
  EXPECT_EQ(slots.frame_slots(), wire::kMaxSharedSlots);
  EXPECT_EQ(slots.field_slots(), wire::kMaxSharedSlots);
}

TEST_F(SharedOfferTest, WhatIsAskedForIsOfferedInWholePages) {
  v1::SharedMemoryRequest request;
  request.set_frame_slots(1);
  request.set_frame_slot_bytes(wire::kSharedPage + 1);
  request.set_field_slots(2);
  request.set_field_slot_bytes(1);
  const v1::SharedMemoryRequest slots = SlotsFor(request);
  EXPECT_EQ(slots.frame_slots(), 1);
  EXPECT_EQ(slots.frame_slot_bytes(), 2 * wire::kSharedPage);
  EXPECT_EQ(slots.field_slots(), 2);
  EXPECT_EQ(slots.field_slot_bytes(), wire::kSharedPage);
}

TEST_F(SharedOfferTest, OneKindOfSlotIsEnough) {
  v1::SharedMemoryRequest request;
  request.set_frame_slots(0);
  EXPECT_EQ(SlotsFor(request).frame_slot_bytes(), 0);
  request.set_field_slots(0);
  request.set_frame_slots(wire::kMaxSharedSlots);
  EXPECT_EQ(SlotsFor(request).field_slots(), 0);
}

TEST_F(SharedOfferTest, RefusalsNameTheFieldOfTheRequest) {
  ExpectRefused("frame_slots", [](auto& request) { request.set_frame_slots(-1); });
  ExpectRefused("frame_slots", [](auto& request) { request.set_frame_slots(wire::kMaxSharedSlots + 1); });
  ExpectRefused("field_slots", [](auto& request) { request.set_field_slots(-1); });
  ExpectRefused("field_slots", [](auto& request) { request.set_field_slots(wire::kMaxSharedSlots + 1); });
  ExpectRefused("frame_slots", [](auto& request) {
    request.set_frame_slots(0);
    request.set_field_slots(0);
  });
  ExpectRefused("frame_slot_bytes", [](auto& request) { request.set_frame_slot_bytes(0); });
  ExpectRefused("frame_slot_bytes", [](auto& request) { request.set_frame_slot_bytes(kMostBytes + 1); });
  ExpectRefused("field_slot_bytes", [](auto& request) { request.set_field_slot_bytes(-5); });
  // A field has three numbers for each voxel.
  ExpectRefused("field_slot_bytes", [](auto& request) { request.set_field_slot_bytes(3 * kMostBytes + 1); });
}

TEST_F(SharedOfferTest, TheLargestSlotsAreTaken) {
  v1::SharedMemoryRequest request;
  request.set_frame_slots(1);
  request.set_frame_slot_bytes(kMostBytes);
  request.set_field_slots(0);
  EXPECT_EQ(SlotsFor(request).frame_slot_bytes(), 25 * wire::kSharedPage);
  request.set_frame_slots(0);
  request.set_field_slots(1);
  request.clear_frame_slot_bytes();
  request.set_field_slot_bytes(kMostBytes + 1);
  EXPECT_EQ(SlotsFor(request).field_slot_bytes(), 25 * wire::kSharedPage);
}

// The region may fit the frames that come.
TEST_F(SharedOfferTest, AFieldOfAnUnknownSizeNeedsOneFromTheClient) {
  setup_.field->region_start = Int3{0, 0, 5};
  setup_.field->region_size = {1, 1, 1};
  EXPECT_EQ(SlotsFor().field_slots(), 0);
  ExpectRefused("field_slot_bytes", [](auto& request) { request.set_field_slots(1); });
  v1::SharedMemoryRequest request;
  request.set_field_slots(1);
  request.set_field_slot_bytes(12);
  EXPECT_EQ(SlotsFor(request).field_slots(), 1);
}

TEST_F(SharedOfferTest, AServerThatSharesNoMemorySaysSo) {
  sessions_.set_shared_memory(nullptr);
  const absl::Status status = Offer().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::SHARED_MEMORY_UNAVAILABLE);
}

TEST_F(SharedOfferTest, TheMemoryIsTheOwnersUntilTheSegmentGoes) {
  {
    const auto made = Offer();
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(ledger_.in_use(Resource::kPinned), made->offer.segment_bytes());
    EXPECT_EQ(ledger_.owner_use("ann").pinned_bytes, made->offer.segment_bytes());
    EXPECT_EQ(ledger_.use(Resource::kPinned).session_in_use, made->offer.segment_bytes());
  }
  EXPECT_EQ(ledger_.in_use(Resource::kPinned), 0);
}

TEST_F(SharedOfferTest, MoreThanThereIsIsRefused) {
  v1::SharedMemoryRequest request;
  request.set_frame_slots(1);
  request.set_frame_slot_bytes(24 * wire::kSharedPage);
  request.set_field_slots(1);
  request.set_field_slot_bytes(60 * wire::kSharedPage);
  EXPECT_EQ(ReasonOf(Offer(request).status()), v1::EXCEEDS_CAPACITY);
  request.set_field_slot_bytes(30 * wire::kSharedPage);
  const auto first = Offer(request);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status status = Offer(request).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::PINNED_MEMORY);
}

TEST_F(SharedOfferTest, TheTokenFetchesTheSegmentOnce) {
  const auto made = Offer(), other = Offer();
  ASSERT_TRUE(made.ok() && other.ok());
  EXPECT_NE(made->offer.token(), other->offer.token());
  const absl::StatusOr<int> fetched = wire::FetchSegment(made->offer.socket(), made->offer.token());
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  const Fd fd(*fetched);
  EXPECT_TRUE(wire::CheckSegment(fd.get(), made->segment->layout()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(wire::FetchSegment(made->offer.socket(), made->offer.token()).status()));
}

TEST_F(SharedOfferTest, AnOfferWhoseSegmentIsGoneIsVoid) {
  auto made = Offer();
  ASSERT_TRUE(made.ok());
  const v1::SharedMemoryOffer offer = made->offer;
  made = absl::CancelledError();
  EXPECT_TRUE(absl::IsFailedPrecondition(wire::FetchSegment(offer.socket(), offer.token()).status()));
}

}  // namespace
}  // namespace intrawarp::server
