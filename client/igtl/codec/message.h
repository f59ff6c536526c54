// SPDX-License-Identifier: Apache-2.0
// An OpenIGTLink message without the meaning of its content: header, extended header, content, metadata.
//
// Header version 1 (protocols 1 and 2) has a body that is all content. Header version 2 (protocol 3) has in its body an
// extended header, the content, and metadata. Times are 32.32 fixed-point seconds since 1970. Plain values; thread-safe
// functions.
#ifndef INTRAWARP_CLIENT_IGTL_CODEC_MESSAGE_H_
#define INTRAWARP_CLIENT_IGTL_CODEC_MESSAGE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace intrawarp::igtl {

inline constexpr size_t kHeaderBytes = 58;
inline constexpr size_t kTypeBytes = 12;
inline constexpr size_t kDeviceBytes = 20;

struct MessageHeader {
  uint16_t version = 1;
  std::string type = {};
  std::string device = {};
  uint64_t timestamp = 0;
  uint64_t body_bytes = 0;
  uint64_t crc = 0;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Memory of somebody else for a large part of a body.
class BodyPlace {
 public:
  virtual ~BodyPlace() = default;
  // The next bytes of the part.
  virtual void Append(absl::string_view bytes) = 0;
};

// A part of a body, and its memory. Without a place there is none.
struct LentPlace {
  std::shared_ptr<BodyPlace> place = nullptr;
  size_t begin = 0;
  size_t bytes = 0;
};

struct Message {
  MessageHeader header;
  uint32_t message_id = 0;
  Metadata metadata;
  // The end of the content lies there, not in `body`; null: nowhere else.
  std::shared_ptr<BodyPlace> place;
  // All bytes behind the header but those at the place, and where the content, or its beginning, lies in them.
  std::string body;
  size_t content_begin = 0;
  size_t content_bytes = 0;

  absl::string_view content() const { return absl::string_view(body).substr(content_begin, content_bytes); }
};

// The envelope of a message that is sent: what the message says of itself.
struct Envelope {
  // 1 or 2; with 1 neither the id nor the metadata are sent.
  uint16_t header_version = 2;
  std::string type = {};
  std::string device = {};
  uint64_t timestamp = 0;
  uint32_t message_id = 0;
  Metadata metadata = {};
};

// `bytes` has kHeaderBytes. DATA_LOSS, naming the field, for a header version other than 1 and 2, and for a type that
// is empty or not printable ASCII: the stream is out of step.
absl::StatusOr<MessageHeader> ParseHeader(absl::string_view bytes);

// The places of content and metadata in a body.
struct BodyLayout {
  size_t content_begin = 0;
  size_t content_bytes = 0;
  size_t index_bytes = 0;
  uint32_t message_id = 0;
};

// The layout of a body of header.body_bytes, by its first bytes. INVALID_ARGUMENT, naming the field, where the sizes of
// header version 2 contradict each other.
absl::StatusOr<BodyLayout> LayoutOf(const MessageHeader& header, absl::string_view body_begin);

// Finds content and metadata in a whole body; the bytes of the lent part, which must end with the content, are not in
// `body`. The errors of LayoutOf, and INVALID_ARGUMENT for wrong metadata.
absl::StatusOr<Message> ParseBody(MessageHeader header, std::string body, const LentPlace& lent = {});

// The whole message; its content is the parts, one after the other. Types and device names are cut to their fields.
// Metadata keys beyond 65535 bytes are cut.
std::string PackMessage(const Envelope& envelope, absl::Span<const absl::string_view> content);

uint64_t TimestampOf(std::chrono::system_clock::time_point time);
std::chrono::system_clock::time_point TimeOf(uint64_t timestamp);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CODEC_MESSAGE_H_
