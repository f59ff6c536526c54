// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/message.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "client/igtl/codec/bytes.h"
#include "client/igtl/codec/crc64.h"
#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

constexpr size_t kExtendedHeaderBytes = 12;
constexpr size_t kMetadataIndexBytes = 8;
constexpr uint16_t kUtf8 = 106;  // IANA's MIBenum

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}

absl::StatusOr<Metadata> ParseMetadata(absl::string_view index, absl::string_view values) {
  Metadata metadata;
  if (index.empty()) return metadata;
  ByteReader entries(index);
  const size_t count = entries.Uint16();
  if (!entries.ok() || entries.remaining() != count * kMetadataIndexBytes) {
    return Invalid("metadata_header_size", "contradicts the number of entries");
  }
  ByteReader texts(values);
  metadata.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t key_bytes = entries.Uint16();
    (void)entries.Uint16();  // the encoding: texts are passed on as they are
    const size_t value_bytes = entries.Uint32();
    const absl::string_view key = texts.Raw(key_bytes);
    const absl::string_view value = texts.Raw(value_bytes);
    if (!texts.ok()) return Invalid("metadata_size", "is less than its entries");
    metadata.emplace_back(std::string(key), std::string(value));
  }
  return metadata;
}

std::string PackMetadata(const Metadata& metadata, size_t& index_bytes) {
  const size_t count = std::min<size_t>(metadata.size(), UINT16_MAX / kMetadataIndexBytes - 1);
  ByteWriter out;
  out.Uint16(static_cast<uint16_t>(count));
  for (size_t i = 0; i < count; ++i) {
    out.Uint16(static_cast<uint16_t>(std::min<size_t>(metadata[i].first.size(), UINT16_MAX)));
    out.Uint16(kUtf8);
    out.Uint32(static_cast<uint32_t>(metadata[i].second.size()));
  }
  index_bytes = out.bytes().size();
  for (size_t i = 0; i < count; ++i) {
    out.Raw(absl::string_view(metadata[i].first).substr(0, UINT16_MAX));
    out.Raw(metadata[i].second);
  }
  return out.Take();
}

}  // namespace

absl::StatusOr<MessageHeader> ParseHeader(absl::string_view bytes) {
  ByteReader in(bytes);
  MessageHeader header;
  header.version = in.Uint16();
  header.type = in.Text(kTypeBytes);
  header.device = in.Text(kDeviceBytes);
  header.timestamp = in.Uint64();
  header.body_bytes = in.Uint64();
  header.crc = in.Uint64();
  if (!in.ok()) return FieldError(absl::StatusCode::kDataLoss, "header", "has fewer than 58 bytes");
  if (header.version != 1 && header.version != 2) {
    return FieldError(absl::StatusCode::kDataLoss, "header_version", "must be 1 or 2");
  }
  if (header.type.empty() || !std::all_of(header.type.begin(), header.type.end(), absl::ascii_isprint)) {
    return FieldError(absl::StatusCode::kDataLoss, "type", "must be printable ASCII");
  }
  return header;
}

absl::StatusOr<BodyLayout> LayoutOf(const MessageHeader& header, absl::string_view body_begin) {
  BodyLayout layout;
  layout.content_bytes = header.body_bytes;
  if (header.version == 1) return layout;
  ByteReader in(body_begin);
  const size_t extended = in.Uint16();
  layout.index_bytes = in.Uint16();
  const size_t value_bytes = in.Uint32();
  layout.message_id = in.Uint32();
  if (!in.ok()) return Invalid("extended_header", "has fewer than 12 bytes");
  if (extended < kExtendedHeaderBytes || extended > header.body_bytes) {
    return Invalid("extended_header_size", "must be 12 or more, within the body");
  }
  const size_t rest = header.body_bytes - extended;
  if (layout.index_bytes + value_bytes > rest) return Invalid("metadata_size", "is beyond the body");
  layout.content_begin = extended;
  layout.content_bytes = rest - layout.index_bytes - value_bytes;
  return layout;
}

absl::StatusOr<Message> ParseBody(MessageHeader header, std::string body, const LentPlace& lent) {
  Message message;
  message.header = std::move(header);
  message.body = std::move(body);
  message.header.body_bytes = message.body.size() + lent.bytes;
  const absl::StatusOr<BodyLayout> layout = LayoutOf(message.header, message.body);
  if (!layout.ok()) return layout.status();
  const size_t content_end = layout->content_begin + layout->content_bytes;
  if (lent.place != nullptr && (lent.begin < layout->content_begin || lent.begin + lent.bytes != content_end)) {
    return Invalid("extended_header_size", "does not fit the place of the content");
  }
  message.place = lent.place;
  message.message_id = layout->message_id;
  message.content_begin = layout->content_begin;
  message.content_bytes = layout->content_bytes - lent.bytes;
  if (message.header.version == 1) return message;
  const absl::string_view tail = absl::string_view(message.body).substr(content_end - lent.bytes);
  absl::StatusOr<Metadata> metadata =
      ParseMetadata(tail.substr(0, layout->index_bytes), tail.substr(layout->index_bytes));
  if (!metadata.ok()) return metadata.status();
  message.metadata = *std::move(metadata);
  return message;
}

std::string PackMessage(const Envelope& envelope, absl::Span<const absl::string_view> content) {
  std::string metadata;
  ByteWriter extended;
  if (envelope.header_version == 2) {
    size_t index_bytes = 0;
    if (!envelope.metadata.empty()) metadata = PackMetadata(envelope.metadata, index_bytes);
    extended.Uint16(kExtendedHeaderBytes);
    extended.Uint16(static_cast<uint16_t>(index_bytes));
    extended.Uint32(static_cast<uint32_t>(metadata.size() - index_bytes));
    extended.Uint32(envelope.message_id);
  }
  std::vector<absl::string_view> parts = {extended.bytes()};
  parts.insert(parts.end(), content.begin(), content.end());
  parts.push_back(metadata);
  size_t body_bytes = 0;
  uint64_t crc = 0;
  for (const absl::string_view part : parts) {
    body_bytes += part.size();
    crc = ExtendCrc64(crc, part);
  }
  ByteWriter header;
  header.Uint16(envelope.header_version);
  header.Text(envelope.type, kTypeBytes);
  header.Text(envelope.device, kDeviceBytes);
  header.Uint64(envelope.timestamp);
  header.Uint64(body_bytes);
  header.Uint64(crc);
  std::string message = header.Take();
  message.reserve(kHeaderBytes + body_bytes);
  for (const absl::string_view part : parts) message.append(part.data(), part.size());
  return message;
}

uint64_t TimestampOf(std::chrono::system_clock::time_point time) {
  using std::chrono::nanoseconds;
  const int64_t ns = std::max<int64_t>(0, std::chrono::duration_cast<nanoseconds>(time.time_since_epoch()).count());
  const auto seconds = static_cast<uint64_t>(ns / 1000000000);
  const auto rest = static_cast<uint64_t>(ns % 1000000000);
  return seconds << 32 | ((rest << 32) / 1000000000);
}

std::chrono::system_clock::time_point TimeOf(uint64_t timestamp) {
  const auto seconds = static_cast<int64_t>(timestamp >> 32);
  const auto rest = static_cast<int64_t>(((timestamp & 0xffffffffu) * 1000000000) >> 32);
  return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
      std::chrono::seconds(seconds) + std::chrono::nanoseconds(rest)));
}

}  // namespace intrawarp::igtl
