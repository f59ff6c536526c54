// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/grid_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "intrawarp/v1/transform.pb.h"
#include "io/file/crc32c.h"
#include "wire/convert.h"

namespace intrawarp::client {
namespace {

wire::ReceivedChunk MakeChunk(int64_t offset, const std::string& data) {
  v1::Chunk chunk;
  chunk.set_offset(offset);
  chunk.set_crc32c(io::Crc32c(data.data(), data.size()));
  chunk.set_data(data);
  return wire::ReceivedChunk(std::move(chunk));
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
  ASSERT_TRUE(receiver_.Begin(GeometryToProto(Grid()), kBytes).ok());
  for (int64_t offset = 0; offset < kBytes; offset += 7) {
    ASSERT_TRUE(receiver_.Append(MakeChunk(offset, bytes.substr(static_cast<size_t>(offset), 7))).ok());
  }
  EXPECT_TRUE(receiver_.Finish().ok());
  EXPECT_EQ(data_.values, values);
  EXPECT_EQ(data_.geometry, Grid());
}

TEST_F(GridReceiverTest, RefusesAHeaderThatContradictsItself) {
  EXPECT_EQ(receiver_.Begin(GeometryToProto(Grid()), kBytes - 1).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(receiver_.Begin(GeometryToProto(Grid()), -kBytes).code(), absl::StatusCode::kInternal);
  v1::Geometry huge = GeometryToProto(Grid());
  huge.set_size(0, int64_t{1} << 40);
  EXPECT_EQ(receiver_.Begin(huge, kBytes).code(), absl::StatusCode::kInternal);
  v1::Geometry short_of = GeometryToProto(Grid());
  short_of.mutable_spacing()->RemoveLast();
  EXPECT_EQ(receiver_.Begin(short_of, kBytes).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(data_.values.empty());
}

TEST_F(GridReceiverTest, AsksForNoMemoryBeyondItsLimit) {
  Geometry large;
  large.size = {64, 64, 64};
  const absl::Status status = receiver_.Begin(GeometryToProto(large), int64_t{64} * 64 * 64 * 12);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(data_.values.empty());
}

TEST_F(GridReceiverTest, RefusesMisplacedChunks) {
  EXPECT_EQ(receiver_.Append(MakeChunk(0, "abcd")).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.Finish().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(receiver_.Begin(GeometryToProto(Grid()), kBytes).ok());
  EXPECT_EQ(receiver_.Append(MakeChunk(4, "abcd")).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(receiver_.Append(MakeChunk(0, "abcd")).ok());
  EXPECT_EQ(receiver_.Append(MakeChunk(0, "abcd")).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.Append(MakeChunk(4, std::string(kBytes - 3, 'x'))).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.Finish().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(receiver_.Append(MakeChunk(4, std::string(kBytes - 4, 'x'))).ok());
  EXPECT_TRUE(receiver_.Finish().ok());
}

TEST_F(GridReceiverTest, RefusesDamagedChunks) {
  ASSERT_TRUE(receiver_.Begin(GeometryToProto(Grid()), kBytes).ok());
  v1::Chunk chunk;
  chunk.set_data("abcd");
  EXPECT_EQ(receiver_.Append(wire::ReceivedChunk(chunk)).code(), absl::StatusCode::kDataLoss) << "no checksum";
  chunk.set_crc32c(io::Crc32c("abce", 4));
  EXPECT_EQ(receiver_.Append(wire::ReceivedChunk(chunk)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_.Append(MakeChunk(0, "")).code(), absl::StatusCode::kDataLoss) << "empty";
  EXPECT_EQ(receiver_.received_bytes(), 0);
}

TEST_F(GridReceiverTest, RefusesASecondHeader) {
  ASSERT_TRUE(receiver_.Begin(GeometryToProto(Grid()), kBytes).ok());
  EXPECT_EQ(receiver_.Begin(GeometryToProto(Grid()), kBytes).code(), absl::StatusCode::kInternal);
}

v1::FieldHeader Header(v1::FieldEncoding encoding, int64_t bytes, double scale = 0) {
  v1::FieldHeader header;
  *header.mutable_geometry() = GeometryToProto(Grid());
  header.set_encoding(encoding);
  header.set_total_bytes(bytes);
  header.set_scale(scale);
  return header;
}

// Whatever the chunks, also ones that cut a number in two.
TEST(GridReceiverEncodingTest, DecodesSixteenBits) {
  const std::vector<float> values = {0, 1, -1, 0.5f, -2048, 6.103515625e-05f, 65504, -65504, 100};
  for (size_t chunk = 1; chunk < kBytes / 2 + 2; ++chunk) {
    GridData half, integer;
    GridReceiver half_receiver(SinkInto(&half), 3, kLimit), integer_receiver(SinkInto(&integer), 3, kLimit);
    std::string half_bytes(kBytes / 2, '\0'), integer_bytes(kBytes / 2, '\0');
    for (size_t i = 0; i < kBytes / 4; ++i) {
      const auto number = static_cast<_Float16>(values[i % values.size()]);
      const auto count = static_cast<int16_t>(i % 2 == 0 ? 32767 - i : i - 32768);
      std::memcpy(half_bytes.data() + 2 * i, &number, 2);
      std::memcpy(integer_bytes.data() + 2 * i, &count, 2);
    }
    ASSERT_TRUE(half_receiver.Begin(Header(v1::FIELD_ENCODING_FLOAT16, kBytes / 2)).ok());
    ASSERT_TRUE(integer_receiver.Begin(Header(v1::FIELD_ENCODING_INT16, kBytes / 2, 0.25)).ok());
    for (size_t at = 0; at < kBytes / 2; at += chunk) {
      const auto offset = static_cast<int64_t>(at);
      ASSERT_TRUE(half_receiver.Append(MakeChunk(offset, half_bytes.substr(at, chunk))).ok());
      ASSERT_TRUE(integer_receiver.Append(MakeChunk(offset, integer_bytes.substr(at, chunk))).ok());
    }
    ASSERT_TRUE(half_receiver.Finish().ok());
    ASSERT_TRUE(integer_receiver.Finish().ok());
    EXPECT_EQ(half.geometry, Grid());
    ASSERT_EQ(half.values.size(), size_t{kBytes / 4});
    ASSERT_EQ(integer.values.size(), size_t{kBytes / 4});
    for (int i = 0; i < static_cast<int>(kBytes / 4); ++i) {
      EXPECT_EQ(half.values[i], values[i % values.size()]);
      EXPECT_EQ(integer.values[i], 0.25f * static_cast<float>(i % 2 == 0 ? 32767 - i : i - 32768));
    }
  }
}

TEST(GridReceiverEncodingTest, NativeFormsComeAsTheyAre) {
  for (const v1::FieldEncoding encoding : {v1::FIELD_ENCODING_CONTROL_POINTS, v1::FIELD_ENCODING_VELOCITY}) {
    GridData data;
    GridReceiver receiver(SinkInto(&data), 3, kLimit);
    const std::vector<float> values(kBytes / 4, -1.5f);
    std::string bytes(kBytes, '\0');
    std::memcpy(bytes.data(), values.data(), kBytes);
    ASSERT_TRUE(receiver.Begin(Header(encoding, kBytes)).ok());
    ASSERT_TRUE(receiver.Append(MakeChunk(0, bytes)).ok());
    ASSERT_TRUE(receiver.Finish().ok());
    EXPECT_EQ(data.values, values);
  }
}

TEST(GridReceiverEncodingTest, RefusesEncodingsThatLie) {
  const auto begin = [](const v1::FieldHeader& header) {
    GridData data;
    GridReceiver receiver(SinkInto(&data), 3, kLimit);
    const absl::StatusCode code = receiver.Begin(header).code();
    EXPECT_TRUE(data.values.empty());
    EXPECT_EQ(receiver.Append(MakeChunk(0, "ab")).code(), absl::StatusCode::kDataLoss);
    return code;
  };
  constexpr auto kInternal = absl::StatusCode::kInternal;
  for (const v1::FieldEncoding encoding : {v1::FIELD_ENCODING_FLOAT16, v1::FIELD_ENCODING_INT16}) {
    for (const int64_t bytes : {kBytes, kBytes / 2 - 1, kBytes / 2 + 1, int64_t{0}, -kBytes / 2}) {
      EXPECT_EQ(begin(Header(encoding, bytes, 1)), kInternal) << bytes;
    }
  }
  for (const v1::FieldEncoding encoding :
       {v1::FIELD_ENCODING_FLOAT32, v1::FIELD_ENCODING_CONTROL_POINTS, v1::FIELD_ENCODING_VELOCITY}) {
    EXPECT_EQ(begin(Header(encoding, kBytes / 2)), kInternal);
  }
  EXPECT_EQ(begin(Header(v1::FIELD_ENCODING_UNSPECIFIED, kBytes)), kInternal);
  EXPECT_EQ(begin(Header(v1::FieldEncoding(77), kBytes)), kInternal);
  for (const double scale : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e300}) {
    EXPECT_EQ(begin(Header(v1::FIELD_ENCODING_INT16, kBytes / 2, scale)), kInternal) << scale;
  }
}

TEST(GridReceiverEncodingTest, TheLimitIsOnWhatIsKept) {
  GridData data;
  GridReceiver receiver(SinkInto(&data), 3, kBytes - 1);
  EXPECT_EQ(receiver.Begin(Header(v1::FIELD_ENCODING_FLOAT16, kBytes / 2)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(data.values.empty());
}

// The first header goes on to say how the bytes are read.
TEST(GridReceiverEncodingTest, ASecondHeaderChangesNothing) {
  GridData data;
  GridReceiver receiver(SinkInto(&data), 3, kLimit);
  const std::string bytes(kBytes, '\0');
  ASSERT_TRUE(receiver.Begin(Header(v1::FIELD_ENCODING_FLOAT32, kBytes)).ok());
  ASSERT_TRUE(receiver.Append(MakeChunk(0, bytes)).ok());
  EXPECT_EQ(receiver.Begin(Header(v1::FIELD_ENCODING_INT16, kBytes / 2, 1)).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(receiver.Finish().ok());
  EXPECT_EQ(data.values, std::vector<float>(kBytes / 4, 0.0f));
}

TEST(GridReceiverSinkTest, TheSinksErrorIsTheResult) {
  GridReceiver receiver([](const Geometry&, int64_t) { return absl::ResourceExhaustedError("full"); }, 3, kLimit);
  EXPECT_EQ(receiver.Begin(GeometryToProto(Grid()), kBytes).message(), "full");
}

TEST(GridReceiverSinkTest, ASinkThatGivesTooLittleIsRefused) {
  std::vector<float> little(3);
  GridReceiver receiver([&](const Geometry&, int64_t) { return absl::MakeSpan(little); }, 3, kLimit);
  EXPECT_EQ(receiver.Begin(GeometryToProto(Grid()), kBytes).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp::client
