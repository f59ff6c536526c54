// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/grid_receiver.h"

#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "client/cpp/convert.h"
#include "intrawarp/v1/transform.pb.h"

namespace intrawarp {
namespace {

v1::Chunk MakeChunk(int64_t offset, const std::string& data) {
  v1::Chunk chunk;
  chunk.set_offset(offset);
  chunk.set_data(data);
  return chunk;
}

Geometry Grid() {
  Geometry geometry;
  geometry.size = {3, 2, 1};
  return geometry;
}
constexpr int64_t kBytes = 3 * 2 * 3 * 4;
constexpr int64_t kLimit = 1 << 20;

class GridReceiverTest : public testing::Test {
 protected:
  GridData data_;
  GridReceiver receiver_{SinkInto(&data_), 3, kLimit};
};

TEST_F(GridReceiverTest, PutsChunksTogether) {
  std::vector<float> values(kBytes / 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f;
  std::string bytes(kBytes, '\0');
  std::memcpy(bytes.data(), values.data(), kBytes);
  ASSERT_TRUE(receiver_.Begin(ToProto(Grid()), kBytes).ok());
  for (int64_t offset = 0; offset < kBytes; offset += 7) {
    ASSERT_TRUE(receiver_.Append(MakeChunk(offset, bytes.substr(static_cast<size_t>(offset), 7))).ok());
  }
  EXPECT_TRUE(receiver_.Finish().ok());
  EXPECT_EQ(data_.values, values);
  EXPECT_EQ(data_.geometry, Grid());
}

TEST_F(GridReceiverTest, RefusesAHeaderThatContradictsItself) {
  EXPECT_EQ(receiver_.Begin(ToProto(Grid()), kBytes - 1).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(receiver_.Begin(ToProto(Grid()), -kBytes).code(), absl::StatusCode::kInternal);
  v1::Geometry huge = ToProto(Grid());
  huge.set_size(0, int64_t{1} << 40);
  EXPECT_EQ(receiver_.Begin(huge, kBytes).code(), absl::StatusCode::kInternal);
  v1::Geometry short_of = ToProto(Grid());
  short_of.mutable_spacing()->RemoveLast();
  EXPECT_EQ(receiver_.Begin(short_of, kBytes).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(data_.values.empty());
}

TEST_F(GridReceiverTest, AsksForNoMemoryBeyondItsLimit) {
  Geometry large;
  large.size = {64, 64, 64};
  const absl::Status status = receiver_.Begin(ToProto(large), int64_t{64} * 64 * 64 * 12);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(data_.values.empty());
}

TEST_F(GridReceiverTest, RefusesMisplacedChunks) {
  EXPECT_EQ(receiver_.Append(MakeChunk(0, "abcd")).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.Finish().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(receiver_.Begin(ToProto(Grid()), kBytes).ok());
  EXPECT_EQ(receiver_.Append(MakeChunk(4, "abcd")).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(receiver_.Append(MakeChunk(0, "abcd")).ok());
  EXPECT_EQ(receiver_.Append(MakeChunk(0, "abcd")).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.Append(MakeChunk(4, std::string(kBytes - 3, 'x'))).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.Finish().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(receiver_.Append(MakeChunk(4, std::string(kBytes - 4, 'x'))).ok());
  EXPECT_TRUE(receiver_.Finish().ok());
}

grpc::ByteBuffer Raw(const std::string& bytes) {
  // Two slices, cut within the first fields.
  const size_t cut = std::min<size_t>(5, bytes.size());
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, cut)), grpc::Slice(bytes.substr(cut))};
  return grpc::ByteBuffer(slices, 2);
}

std::string ChunkMessage(int64_t offset, const std::string& data) {
  v1::DownloadFieldResponse response;
  *response.mutable_chunk() = MakeChunk(offset, data);
  return response.SerializeAsString();
}

constexpr int kChunkField = v1::DownloadFieldResponse::kChunkFieldNumber;

TEST_F(GridReceiverTest, TakesPlainChunksFromTheTransportsBytes) {
  const std::string half(kBytes / 2, 'a'), rest(kBytes / 2, 'b');
  EXPECT_FALSE(receiver_.AppendPlain(Raw(ChunkMessage(0, half)), kChunkField)) << "before the header";
  ASSERT_TRUE(receiver_.Begin(ToProto(Grid()), kBytes).ok());
  EXPECT_TRUE(receiver_.AppendPlain(Raw(ChunkMessage(0, half)), kChunkField));
  EXPECT_TRUE(receiver_.AppendPlain(Raw(ChunkMessage(kBytes / 2, rest)), kChunkField));
  EXPECT_TRUE(receiver_.Finish().ok());
  EXPECT_EQ(std::memcmp(data_.values.data(), (half + rest).data(), kBytes), 0);
}

TEST_F(GridReceiverTest, LeavesEveryOtherMessageToProtobuf) {
  ASSERT_TRUE(receiver_.Begin(ToProto(Grid()), kBytes).ok());
  const std::string good = ChunkMessage(0, "abcd");
  EXPECT_FALSE(receiver_.AppendPlain(Raw(""), kChunkField));
  EXPECT_FALSE(receiver_.AppendPlain(Raw(ChunkMessage(4, "abcd")), kChunkField)) << "misplaced";
  EXPECT_FALSE(receiver_.AppendPlain(Raw(ChunkMessage(0, "")), kChunkField)) << "without data";
  EXPECT_FALSE(receiver_.AppendPlain(Raw(ChunkMessage(0, std::string(kBytes + 1, 'x'))), kChunkField)) << "too long";
  EXPECT_FALSE(receiver_.AppendPlain(Raw(good), kChunkField + 1)) << "another field";
  EXPECT_FALSE(receiver_.AppendPlain(Raw(good + good), kChunkField)) << "more after it";
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(receiver_.AppendPlain(Raw(good.substr(0, length)), kChunkField)) << length;
  }
  EXPECT_EQ(receiver_.received_bytes(), 0);
  EXPECT_TRUE(receiver_.AppendPlain(Raw(good), kChunkField));
  EXPECT_EQ(receiver_.received_bytes(), 4);
}

TEST_F(GridReceiverTest, RefusesASecondHeader) {
  ASSERT_TRUE(receiver_.Begin(ToProto(Grid()), kBytes).ok());
  EXPECT_EQ(receiver_.Begin(ToProto(Grid()), kBytes).code(), absl::StatusCode::kInternal);
}

TEST(GridReceiverSinkTest, TheSinksErrorIsTheResult) {
  GridReceiver receiver([](const Geometry&, int64_t) { return absl::ResourceExhaustedError("full"); }, 3, kLimit);
  EXPECT_EQ(receiver.Begin(ToProto(Grid()), kBytes).message(), "full");
}

TEST(GridReceiverSinkTest, ASinkThatGivesTooLittleIsRefused) {
  std::vector<float> little(3);
  GridReceiver receiver([&](const Geometry&, int64_t) { return absl::MakeSpan(little); }, 3, kLimit);
  EXPECT_EQ(receiver.Begin(ToProto(Grid()), kBytes).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp
