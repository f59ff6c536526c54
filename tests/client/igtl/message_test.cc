// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "client/igtl/codec/bytes.h"
#include "client/igtl/codec/crc64.h"
#include "client/igtl/codec/message_decoder.h"
#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

std::string Packed(uint16_t version, absl::string_view content, Metadata metadata = {}) {
  const Envelope envelope = {
      version, "TEST", "Device", TimestampOf(std::chrono::system_clock::time_point()), 7, std::move(metadata)};
  return PackMessage(envelope, {content});
}

// A header without a body.
std::string Header(uint64_t body_bytes, uint16_t version = 1, absl::string_view type = "IMAGE") {
  ByteWriter out;
  out.Uint16(version);
  out.Text(type, kTypeBytes);
  out.Text("Device", kDeviceBytes);
  out.Uint64(0);
  out.Uint64(body_bytes);
  out.Uint64(0);
  return out.Take();
}

std::vector<absl::StatusOr<Message>> Decode(absl::string_view stream, size_t piece, absl::Status* end = nullptr) {
  std::vector<absl::StatusOr<Message>> messages;
  MessageDecoder decoder(DecoderLimits{});
  absl::Status status;
  while (status.ok() && !stream.empty()) {
    status =
        decoder.Feed(stream.substr(0, piece), [&](absl::StatusOr<Message> m) { messages.push_back(std::move(m)); });
    stream.remove_prefix(std::min(piece, stream.size()));
  }
  if (end != nullptr) *end = status;
  return messages;
}

// Bit by bit, as ECMA-182 defines it.
uint64_t PlainCrc64(absl::string_view bytes) {
  uint64_t crc = 0;
  for (const char c : bytes) {
    for (int bit = 7; bit >= 0; --bit) {
      const bool feedback = ((crc >> 63) ^ (static_cast<uint8_t>(c) >> bit & 1)) != 0;
      crc = crc << 1 ^ (feedback ? 0x42F0E1EBA9EA3693u : 0);
    }
  }
  return crc;
}

using Extend = uint64_t (*)(uint64_t, absl::string_view);
class Crc64 : public testing::TestWithParam<Extend> {};
INSTANTIATE_TEST_SUITE_P(Crc64, Crc64, testing::Values(&ExtendCrc64, &ExtendCrc64ByTable));

TEST_P(Crc64, EqualsThePlainDefinitionAtEveryLengthAndSplit) {
  const Extend extend = GetParam();
  // The check value of CRC-64/ECMA-182 in the catalogue of parametrised CRC algorithms.
  EXPECT_EQ(extend(0, "123456789"), 0x6c40df5f0b497347u);
  std::mt19937 random(1);
  std::string bytes;
  for (int size = 0; size < 600; ++size) {
    EXPECT_EQ(extend(0, bytes), PlainCrc64(bytes)) << size;
    const size_t split = bytes.empty() ? 0 : random() % bytes.size();
    const uint64_t first = extend(0, absl::string_view(bytes).substr(0, split));
    EXPECT_EQ(extend(first, absl::string_view(bytes).substr(split)), PlainCrc64(bytes)) << size << " " << split;
    bytes.push_back(static_cast<char>(random()));
  }
}

TEST_P(Crc64, LongAndUnalignedBytesEqualThePlainDefinition) {
  std::mt19937 random(2);
  std::string bytes(70001, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  for (int i = 0; i < 20; ++i) {
    const size_t begin = random() % 40, size = random() % (bytes.size() - 40);
    const absl::string_view part = absl::string_view(bytes).substr(begin, size);
    EXPECT_EQ(GetParam()(0, part), PlainCrc64(part)) << begin << " " << size;
  }
}

TEST(MessageDecoder, ReadsBothHeaderVersionsInPiecesOfAnySize) {
  const std::string stream = Packed(1, "one") + Packed(2, "two", {{"key", "value"}, {"empty", ""}}) + Packed(2, "") +
                             Packed(1, "") + Packed(2, "last");
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{58}, size_t{59}, stream.size()}) {
    const auto messages = Decode(stream, piece);
    ASSERT_EQ(messages.size(), 5u) << piece;
    for (const auto& each : messages) ASSERT_TRUE(each.ok()) << each.status();
    EXPECT_EQ(messages[0]->content(), "one");
    EXPECT_EQ(messages[1]->content(), "two");
    EXPECT_EQ(messages[1]->message_id, 7u);
    EXPECT_THAT(messages[1]->metadata, ElementsAre(Pair("key", "value"), Pair("empty", "")));
    EXPECT_EQ(messages[2]->content(), "");
    EXPECT_EQ(messages[3]->header.device, "Device");
    EXPECT_EQ(messages[4]->content(), "last");
  }
}

TEST(MessageDecoder, DropsOnlyTheMessageWithAWrongChecksum) {
  std::string stream = Packed(1, "damaged") + Packed(1, "good");
  stream[kHeaderBytes] ^= 1;
  const auto messages = Decode(stream, 10);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(FieldOf(messages[0].status()), "crc");
  ASSERT_TRUE(messages[1].ok());
  EXPECT_EQ(messages[1]->content(), "good");
}

TEST(MessageDecoder, AcceptsAWrongChecksumWhereItMay) {
  std::string stream = Packed(1, "damaged");
  stream[50] ^= 1;
  MessageDecoder decoder(DecoderLimits{.check_crc = false});
  int good = 0;
  EXPECT_TRUE(decoder.Feed(stream, [&](const absl::StatusOr<Message>& m) { good += m.ok(); }).ok());
  EXPECT_EQ(good, 1);
}

TEST(MessageDecoder, RefusesAStreamThatItCannotFollow) {
  absl::Status status;
  for (const uint64_t size : {uint64_t{1} << 63, std::numeric_limits<uint64_t>::max(), (uint64_t{256} << 20) + 1}) {
    EXPECT_TRUE(Decode(Header(size) + "body", 5, &status).empty());
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(FieldOf(status), "body_size");
  }
  EXPECT_TRUE(Decode(Header(1, 3), 58, &status).empty());
  EXPECT_EQ(FieldOf(status), "header_version");
  EXPECT_TRUE(Decode(Header(1, 1, "\x01\x02"), 58, &status).empty());
  EXPECT_EQ(FieldOf(status), "type");
  EXPECT_TRUE(Decode(Header(1, 1, ""), 58, &status).empty());
  EXPECT_EQ(FieldOf(status), "type");
}

TEST(MessageDecoder, AnnouncedBytesAreNotAllocated) {
  // The limit is far above the memory that the bytes justify: a fault here is an allocation of 2^60 bytes, which fails.
  MessageDecoder decoder(DecoderLimits{.max_body_bytes = uint64_t{1} << 60});
  const auto none = [](const absl::StatusOr<Message>&) { FAIL() << "a message"; };
  EXPECT_TRUE(decoder.Feed(Header(uint64_t{1} << 60) + std::string(100000, 'x'), none).ok());
  EXPECT_TRUE(decoder.is_within_message());
}

class TestPlace final : public BodyPlace {
 public:
  void Append(absl::string_view bytes) override { bytes_.append(bytes.data(), bytes.size()); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

TEST(MessageDecoder, PutsALargePartWhereItIsWanted) {
  std::mt19937 random(3);
  std::string content(100000, '\0');
  for (char& c : content) c = static_cast<char>(random());
  for (const uint16_t version : {1, 2}) {
    const size_t begin = version == 1 ? 72 : 84;
    const std::string large = Packed(version, content, {{"key", "value"}});
    const std::string stream = Packed(version, "small") + large + Packed(version, "small again");
    for (const size_t piece : {size_t{1}, size_t{57}, size_t{1000}, size_t{4096}, stream.size()}) {
      std::vector<std::shared_ptr<TestPlace>> places;
      MessageDecoder decoder(DecoderLimits{}, [&](const MessageHeader& header, absl::string_view first) {
        EXPECT_EQ(first.size(), MessageDecoder::kFirstBytes);
        EXPECT_GT(header.body_bytes, MessageDecoder::kLargeBody);
        places.push_back(std::make_shared<TestPlace>());
        return LentPlace{places.back(), begin, content.size() - 72};
      });
      std::vector<Message> messages;
      for (absl::string_view rest = stream; !rest.empty(); rest.remove_prefix(std::min(piece, rest.size()))) {
        const absl::Status status = decoder.Feed(rest.substr(0, piece), [&](absl::StatusOr<Message> m) {
          ASSERT_TRUE(m.ok()) << m.status();
          messages.push_back(*std::move(m));
        });
        ASSERT_TRUE(status.ok()) << status;
      }
      ASSERT_EQ(messages.size(), 3u) << version << " " << piece;
      ASSERT_EQ(places.size(), 1u);
      EXPECT_EQ(messages[0].content(), "small");
      EXPECT_EQ(messages[1].place, places[0]);
      EXPECT_EQ(messages[1].content(), content.substr(0, 72));
      EXPECT_EQ(places[0]->bytes(), content.substr(72));
      EXPECT_EQ(messages[1].metadata.size(), version == 1 ? 0u : 1u);
      EXPECT_EQ(messages[2].content(), "small again");
      EXPECT_EQ(messages[2].place, nullptr);
    }
  }
}

TEST(MessageDecoder, AWrongChecksumOfALargePartIsFound) {
  std::string stream = Packed(2, std::string(100000, 'v'));
  stream[stream.size() - 5] ^= 1;
  MessageDecoder decoder(DecoderLimits{}, [](const MessageHeader&, absl::string_view) {
    return LentPlace{std::make_shared<TestPlace>(), 84, 100000 - 72};
  });
  absl::Status found;
  ASSERT_TRUE(decoder.Feed(stream, [&](const absl::StatusOr<Message>& m) { found = m.status(); }).ok());
  EXPECT_EQ(FieldOf(found), "crc");
}

TEST(MessageDecoder, APartThatDoesNotEndWithTheContentIsRefused) {
  MessageDecoder decoder(DecoderLimits{}, [](const MessageHeader&, absl::string_view) {
    return LentPlace{std::make_shared<TestPlace>(), 84, 1000};
  });
  absl::Status found;
  ASSERT_TRUE(
      decoder.Feed(Packed(2, std::string(100000, 'v')), [&](const absl::StatusOr<Message>& m) { found = m.status(); })
          .ok());
  EXPECT_EQ(FieldOf(found), "extended_header_size");
}

TEST(ParseBody, RefusesContradictingSizesOfVersion2) {
  struct Case {
    uint16_t extended, index;
    uint32_t values;
    const char* field;
  };
  for (const Case& each :
       {Case{11, 0, 0, "extended_header_size"}, Case{13, 0, 0, "extended_header_size"}, Case{12, 1, 0, "metadata_size"},
        Case{12, 0, UINT32_MAX, "metadata_size"}, Case{12, UINT16_MAX, UINT32_MAX, "metadata_size"}}) {
    ByteWriter body;
    body.Uint16(each.extended);
    body.Uint16(each.index);
    body.Uint32(each.values);
    body.Uint32(0);
    const auto message = ParseBody(MessageHeader{.version = 2}, body.Take());
    EXPECT_EQ(FieldOf(message.status()), each.field) << each.extended << " " << each.index << " " << each.values;
  }
  EXPECT_EQ(FieldOf(ParseBody(MessageHeader{.version = 2}, "short").status()), "extended_header");
}

TEST(ParseBody, RefusesAnIndexOfOtherEntries) {
  std::string message = Packed(2, "", {{"key", "value"}});
  std::string body = message.substr(kHeaderBytes);
  body[12 + 1] = 2;  // INDEX_COUNT
  EXPECT_EQ(FieldOf(ParseBody(MessageHeader{.version = 2}, body).status()), "metadata_header_size");
  body = message.substr(kHeaderBytes);
  body[12 + 3] = 100;  // the key's length
  EXPECT_EQ(FieldOf(ParseBody(MessageHeader{.version = 2}, body).status()), "metadata_size");
}

TEST(Timestamp, IsKeptToAMicrosecond) {
  const auto now = std::chrono::system_clock::now();
  const auto again = TimeOf(TimestampOf(now));
  EXPECT_LT(std::chrono::abs(now - again), std::chrono::microseconds(1));
}

}  // namespace
}  // namespace intrawarp::igtl
