// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/chunk_codec.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "intrawarp/v1/bulk.pb.h"
#include "intrawarp/v1/registration.pb.h"
#include "io/file/crc32c.h"
#include "tests/server/bulk_client.h"

namespace intrawarp::server {
namespace {

std::string RandomBytes(std::mt19937& random, size_t size) {
  std::string bytes(size, 0);
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// As a transport may deliver it: in slices of random sizes, some of them empty.
grpc::ByteBuffer Sliced(const std::string& bytes, std::mt19937& random) {
  std::vector<grpc::Slice> slices;
  size_t begin = 0;
  while (begin < bytes.size()) {
    const size_t size = std::min<size_t>(random() % 40, bytes.size() - begin);
    slices.emplace_back(bytes.data() + begin, size);
    begin += size;
  }
  if (slices.empty()) slices.emplace_back();
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Flat(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

std::string Payload(const ReceivedChunk& chunk) {
  std::string bytes(chunk.size(), 0);
  chunk.CopyTo(bytes.data());
  return bytes;
}

TEST(EncodeChunk, GeneratedClassesReadIt) {
  std::mt19937 random(1);
  for (const size_t size : {0u, 1u, 127u, 128u, 16384u, 1u << 20}) {
    for (const int64_t offset : {int64_t{0}, int64_t{1}, int64_t{300}, int64_t{1} << 40}) {
      const auto data = std::make_shared<std::string>(RandomBytes(random, size));
      const auto volume = ParseMessage<v1::DownloadResponse>(
          EncodeChunk(v1::DownloadResponse::kChunkFieldNumber, offset, data->data(), size, data));
      ASSERT_TRUE(volume.ok()) << volume.status();
      ASSERT_TRUE(volume->has_chunk());
      EXPECT_EQ(volume->chunk().offset(), offset);
      EXPECT_EQ(volume->chunk().data(), *data);
      const grpc::ByteBuffer registered =
          EncodeChunk(v1::RegisterResponse::kChunkFieldNumber, offset, data->data(), size, data);
      v1::RegisterResponse expected;
      expected.mutable_chunk()->set_offset(offset);
      expected.mutable_chunk()->set_crc32c(io::Crc32c(data->data(), size));
      expected.mutable_chunk()->set_data(*data);
      EXPECT_EQ(Flat(registered), expected.SerializeAsString());
    }
  }
}

TEST(EncodeChunk, RefersToThePayloadAndReleasesItsOwner) {
  auto data = std::make_shared<std::string>(100000, 'x');
  const void* begin = data->data();
  const std::weak_ptr<std::string> alive = data;
  grpc::ByteBuffer buffer = EncodeChunk(2, 5, begin, 100000, std::move(data));
  EXPECT_FALSE(alive.expired());
  {
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer.Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(static_cast<const void*>(slices[1].begin()), begin);
    buffer.Clear();
    EXPECT_FALSE(alive.expired());
  }
  EXPECT_TRUE(alive.expired());
}

TEST(SerializeMessage, RoundTrips) {
  v1::UploadRequest request;
  request.mutable_header()->set_upload_id("u");
  request.mutable_header()->set_total_bytes(77);
  const auto back = ParseMessage<v1::UploadRequest>(SerializeMessage(request));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->SerializeAsString(), request.SerializeAsString());
  EXPECT_TRUE(ParseMessage<v1::UploadRequest>(SerializeMessage(v1::UploadRequest())).ok());
}

TEST(DecodeChunk, PlainChunksTakeTheShortWay) {
  std::mt19937 random(2);
  for (const size_t size : {0u, 1u, 100u, 5000u}) {
    v1::UploadRequest request;
    *request.mutable_chunk() = MakeChunk(static_cast<int64_t>(size) * 1000, RandomBytes(random, size));
    const auto chunk = DecodeChunk(Sliced(request.SerializeAsString(), random), v1::UploadRequest::kChunkFieldNumber);
    ASSERT_TRUE(chunk) << size;
    EXPECT_EQ(chunk->offset(), request.chunk().offset());
    EXPECT_EQ(Payload(*chunk), request.chunk().data());
    EXPECT_EQ(chunk->crc32c(), request.chunk().crc32c());
    std::string rest(size - size / 3, 0);
    EXPECT_EQ(chunk->CopyTo(rest.data(), static_cast<int64_t>(size / 3)), request.chunk().crc32c()) << "of all of it";
    EXPECT_EQ(rest, request.chunk().data().substr(size / 3));
  }
}

// The number n in `bytes` bytes.
std::string Varint(uint64_t n, int bytes) {
  std::string form;
  for (int i = 1; i < bytes; ++i, n >>= 7) form.push_back(static_cast<char>((n & 0x7f) | 0x80));
  form.push_back(static_cast<char>(n));
  return form;
}

// Protobuf reads tags and lengths of up to five bytes, and a value of up to ten.
TEST(DecodeChunk, LongFormsAreLeftToProtobuf) {
  constexpr int kField = v1::UploadRequest::kChunkFieldNumber;
  std::mt19937 random(5);
  const auto message = [](int tag, int length, int offset, int size) {
    const std::string inner = Varint(v1::Chunk::kOffsetFieldNumber << 3, 1) + Varint(7, offset) +
                              Varint(v1::Chunk::kDataFieldNumber << 3 | 2, 1) + Varint(3, size) + "abc";
    return Varint(kField << 3 | 2, tag) + Varint(inner.size(), length) + inner;
  };
  for (int tag : {1, 5, 6}) {
    for (int length : {1, 5, 6}) {
      for (int offset : {1, 10, 11}) {
        for (int size : {1, 5, 6}) {
          const std::string bytes = message(tag, length, offset, size);
          v1::UploadRequest request;
          const bool is_read = tag < 6 && length < 6 && offset < 11 && size < 6;
          EXPECT_EQ(DecodeChunk(Sliced(bytes, random), kField).has_value(), is_read);
          EXPECT_EQ(request.ParseFromString(bytes), is_read) << tag << length << offset << size;
        }
      }
    }
  }
}

TEST(ReceiveRequest, OddButValidMessagesAreReadAsProtobufReadsThem) {
  v1::UploadRequest header;
  header.mutable_header()->set_upload_id("u");
  v1::UploadRequest a, b;
  a.mutable_chunk()->set_offset(3);
  a.mutable_chunk()->set_data("abc");
  b.mutable_chunk()->set_data("de");
  std::mt19937 random(3);
  const auto receive = [&](const std::string& bytes) {
    return ReceiveRequest<v1::UploadRequest>(Sliced(bytes, random));
  };
  // Two chunks merge; a header after a chunk takes its place, and the other way round.
  auto merged = receive(a.SerializeAsString() + b.SerializeAsString());
  ASSERT_TRUE(merged.ok() && merged->chunk);
  EXPECT_EQ(merged->chunk->offset(), 3);
  EXPECT_EQ(Payload(*merged->chunk), "de");
  auto last_header = receive(a.SerializeAsString() + header.SerializeAsString());
  ASSERT_TRUE(last_header.ok());
  EXPECT_FALSE(last_header->chunk);
  EXPECT_EQ(last_header->message.header().upload_id(), "u");
  auto last_chunk = receive(header.SerializeAsString() + a.SerializeAsString());
  ASSERT_TRUE(last_chunk.ok() && last_chunk->chunk);
  EXPECT_EQ(Payload(*last_chunk->chunk), "abc");
  EXPECT_FALSE(receive("")->chunk);
}

// Whatever the bytes, the outcome is what protobuf makes of them.
TEST(ReceiveRequest, AgreesWithProtobufOnHostileBytes) {
  const google::protobuf::LogSilencer silencer;
  std::mt19937 random(4);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string bytes;
    for (int part = random() % 3; part >= 0; --part) {
      v1::UploadRequest request;
      if (random() % 4 == 0) {
        request.mutable_header()->set_upload_id(RandomBytes(random, 0));
        request.mutable_header()->set_total_bytes(random());
      } else {
        if (random() % 2) request.mutable_chunk()->set_offset(static_cast<int64_t>(random()) << (random() % 32));
        if (random() % 2) request.mutable_chunk()->set_crc32c(static_cast<uint32_t>(random()));
        request.mutable_chunk()->set_data(RandomBytes(random, random() % 300));
      }
      bytes += request.SerializeAsString();
    }
    for (int mutations = random() % 4; mutations > 0 && !bytes.empty(); --mutations) {
      // Most of them at the front, where tags and lengths are.
      const size_t at = random() % (random() % 2 ? std::min<size_t>(bytes.size(), 16) : bytes.size());
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] ^= static_cast<char>(1 << random() % 8);
          break;
        case 2:
          bytes.erase(at, 1 + random() % 3);
          break;
        case 3:
          bytes.insert(at, RandomBytes(random, 1 + random() % 12));
          break;
        case 4:
          bytes.insert(at, std::string(random() % 12, '\xff'));
          break;
      }
    }
    v1::UploadRequest expected;
    const bool valid = expected.ParseFromString(bytes);
    const auto received = ReceiveRequest<v1::UploadRequest>(Sliced(bytes, random));
    ASSERT_EQ(received.ok(), valid) << round;
    ++(valid ? accepted : refused);
    if (!valid) {
      EXPECT_EQ(received.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_EQ(received->chunk.has_value(), expected.has_chunk()) << round;
    if (expected.has_chunk()) {
      ASSERT_EQ(received->chunk->offset(), expected.chunk().offset()) << round;
      ASSERT_EQ(received->chunk->crc32c().has_value(), expected.chunk().has_crc32c()) << round;
      ASSERT_EQ(received->chunk->crc32c().value_or(0), expected.chunk().crc32c()) << round;
      ASSERT_EQ(Payload(*received->chunk), expected.chunk().data()) << round;
    } else {
      ASSERT_EQ(received->message.SerializeAsString(), expected.SerializeAsString()) << round;
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace intrawarp::server
