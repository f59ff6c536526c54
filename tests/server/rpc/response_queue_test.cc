// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/response_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/device/cpu_device.h"
#include "engine/device/pinned_pool.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/rpc/chunk_codec.h"

namespace intrawarp::server {
namespace {

constexpr int kChunkField = v1::RegisterResponse::kChunkFieldNumber;

class ResponseQueueTest : public testing::Test {
 protected:
  ResponseQueueTest() : device_(OpenCpuDevice()), pool_(*device_, 1 << 20) {}

  std::shared_ptr<BulkBuffer> MakeField(int64_t bytes) {
    auto field = std::make_shared<BulkBuffer>(*pool_.Lease(bytes), bytes);
    for (int64_t i = 0; i < bytes; ++i) *field->at(i) = static_cast<char>(i * 31);
    return field;
  }
  static grpc::ByteBuffer Progress(int iteration) {
    v1::RegisterResponse response;
    response.mutable_progress()->set_iteration(iteration);
    return SerializeMessage(response);
  }
  static v1::RegisterResponse Parse(const grpc::ByteBuffer& bytes) {
    return *ParseMessage<v1::RegisterResponse>(bytes);
  }
  // The next message; none must be asked for with TakeNone.
  v1::RegisterResponse Take() {
    auto next = queue_.Take();
    EXPECT_TRUE(next.ok() && next->has_value());
    return next.ok() && next->has_value() ? Parse(**next) : v1::RegisterResponse();
  }
  bool TakeNone() {
    auto next = queue_.Take();
    return next.ok() && !next->has_value();
  }

  std::unique_ptr<Device> device_;
  PinnedPool pool_;
  ResponseQueue queue_{100};
};

TEST_F(ResponseQueueTest, SendsAFieldAsItGrows) {
  auto field = MakeField(250);
  queue_.PushBulk(Progress(1), field, kChunkField);
  queue_.PushMessage(Progress(2));

  EXPECT_EQ(Take().progress().iteration(), 1);
  EXPECT_TRUE(TakeNone());
  field->Advance(99);
  EXPECT_TRUE(TakeNone());
  field->Advance(220);
  std::string bytes;
  for (const int64_t offset : {0, 100}) {
    const v1::RegisterResponse chunk = Take();
    EXPECT_EQ(chunk.chunk().offset(), offset);
    EXPECT_EQ(chunk.chunk().data().size(), 100);
    bytes += chunk.chunk().data();
  }
  EXPECT_TRUE(TakeNone());
  EXPECT_FALSE(queue_.empty());
  field->Advance(250);
  bytes += Take().chunk().data();
  EXPECT_EQ(bytes, std::string(field->at(0), 250));
  EXPECT_EQ(Take().progress().iteration(), 2);
  EXPECT_TRUE(TakeNone());
  EXPECT_TRUE(queue_.empty());
}

TEST_F(ResponseQueueTest, WhatIsPreparedKeepsItsTurn) {
  auto field = MakeField(250);
  field->Advance(150);
  queue_.PushMessage(Progress(1));
  queue_.Prepare();  // a message is next: there is nothing to prepare
  queue_.PushBulk(Progress(2), field, kChunkField);
  queue_.PushMessage(Progress(3));
  EXPECT_EQ(Take().progress().iteration(), 1);
  EXPECT_EQ(Take().progress().iteration(), 2);
  queue_.Prepare();
  queue_.Prepare();
  EXPECT_EQ(Take().chunk().offset(), 0);
  queue_.Prepare();  // the bytes of the next chunk are not there
  EXPECT_TRUE(TakeNone());
  field->Advance(250);
  EXPECT_EQ(Take().chunk().offset(), 100);
  queue_.Prepare();
  EXPECT_FALSE(queue_.empty());
  EXPECT_EQ(Take().chunk().offset(), 200);
  EXPECT_EQ(Take().progress().iteration(), 3);
  EXPECT_TRUE(queue_.empty());

  auto dropped = MakeField(100);
  dropped->Advance(100);
  queue_.PushBulk(Progress(4), dropped, kChunkField);
  EXPECT_EQ(Take().progress().iteration(), 4);
  queue_.Prepare();
  queue_.Clear();
  EXPECT_TRUE(queue_.empty());
  EXPECT_TRUE(TakeNone());
}

TEST_F(ResponseQueueTest, ChunksAreMadeOfTheFieldsOwnMemory) {
  auto field = MakeField(100);
  field->Advance(100);
  queue_.PushBulk(Progress(1), field, kChunkField);
  Take();
  auto next = queue_.Take();
  ASSERT_TRUE(next.ok() && next->has_value());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE((*next)->Dump(&slices).ok());
  EXPECT_EQ(reinterpret_cast<const char*>(slices.back().begin()), field->at(0));
  // And hold it after everything else has let go.
  queue_.Clear();
  field.reset();
  EXPECT_GT(pool_.leased_bytes(), 0);
  slices.clear();
  (*next)->Clear();
  EXPECT_EQ(pool_.leased_bytes(), 0);
}

TEST_F(ResponseQueueTest, LeavesOutWhatWasAbandoned) {
  auto field = MakeField(250);
  queue_.PushBulk(Progress(1), field, kChunkField);
  queue_.PushMessage(Progress(2));
  field->Advance(150);
  Take();
  EXPECT_EQ(Take().chunk().offset(), 0);

  field->Abandon();

  EXPECT_EQ(Take().progress().iteration(), 2);
  // The next field starts at its own beginning.
  auto other = MakeField(50);
  other->Advance(50);
  queue_.PushBulk(Progress(3), other, kChunkField);
  Take();
  const v1::RegisterResponse chunk = Take();
  EXPECT_EQ(chunk.chunk().offset(), 0);
  EXPECT_EQ(chunk.chunk().data().size(), 50);
}

TEST_F(ResponseQueueTest, AResultIsMadeWhenItsTurnComesAndKnowsTheTimeOfItsField) {
  auto field = MakeField(100);
  std::chrono::nanoseconds sent{-1};
  auto result = [&sent](std::chrono::nanoseconds sending) {
    sent = sending;
    return absl::StatusOr<grpc::ByteBuffer>(Progress(9));
  };
  queue_.PushBulk(Progress(1), field, kChunkField);
  queue_.PushResult(result);
  Take();
  queue_.Written();
  EXPECT_TRUE(TakeNone());
  EXPECT_EQ(sent.count(), -1);
  field->Advance(100);
  Take();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  queue_.Written();
  EXPECT_EQ(Take().progress().iteration(), 9);
  EXPECT_GE(sent, std::chrono::milliseconds(2));

  // Nothing was sent for the next one.
  queue_.PushResult(result);
  Take();
  EXPECT_EQ(sent.count(), 0);
}

TEST_F(ResponseQueueTest, TheErrorOfAResultIsTaken) {
  queue_.PushResult(
      [](std::chrono::nanoseconds) { return absl::StatusOr<grpc::ByteBuffer>(absl::ResourceExhaustedError("full")); });
  EXPECT_EQ(queue_.Take().status().message(), "full");
}

}  // namespace
}  // namespace intrawarp::server
