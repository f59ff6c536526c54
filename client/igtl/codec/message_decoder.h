// SPDX-License-Identifier: Apache-2.0
// MessageDecoder: OpenIGTLink messages out of a byte stream that comes in pieces of any size.
//
// The peer is not trusted. A body is stored as its bytes come: the size that a header announces is only compared with
// the limit. The checksum is computed while the bytes come, so that a large message costs nothing at its end; and a
// large part of a body can be put where it is wanted while it comes.
// Thread-compatible.
#ifndef INTRAWARP_CLIENT_IGTL_CODEC_MESSAGE_DECODER_H_
#define INTRAWARP_CLIENT_IGTL_CODEC_MESSAGE_DECODER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/igtl/codec/message.h"

namespace intrawarp::igtl {

struct DecoderLimits {
  // The largest body.
  uint64_t max_body_bytes = uint64_t{256} << 20;
  // False for devices whose checksums are known to be wrong.
  bool check_crc = true;
};

class MessageDecoder {
 public:
  // Gets each message, or the error of one whose place in the stream is known: DATA_LOSS for a wrong checksum,
  // INVALID_ARGUMENT of ParseBody.
  using Sink = std::function<void(absl::StatusOr<Message> message)>;

  // Is asked once for each body above kLargeBody bytes, with its first kFirstBytes, whether a part of it has a place of
  // its own. The part begins within these first bytes and ends within the body.
  using Lender = std::function<LentPlace(const MessageHeader& header, absl::string_view body_begin)>;
  static constexpr uint64_t kLargeBody = uint64_t{64} << 10;
  static constexpr size_t kFirstBytes = 1024;

  explicit MessageDecoder(const DecoderLimits& limits, Lender lender = nullptr)
      : limits_(limits), lender_(std::move(lender)) {}

  // An error means that the stream cannot be followed further: DATA_LOSS of ParseHeader, RESOURCE_EXHAUSTED for a body
  // over the limit. Nothing may be fed after it.
  absl::Status Feed(absl::string_view bytes, const Sink& sink);

  // Whether a message has begun and is not whole.
  bool is_within_message() const { return has_header_ || !header_bytes_.empty(); }

 private:
  absl::Status TakeHeader(absl::string_view& bytes);
  void TakeBody(absl::string_view& bytes);
  void StoreBody(absl::string_view bytes);
  void AskForPlace();
  void Deliver(const Sink& sink);

  const DecoderLimits limits_;
  const Lender lender_;
  std::string header_bytes_;
  bool has_header_ = false;
  MessageHeader header_;
  uint64_t received_ = 0;  // of the body
  std::string body_;       // without the bytes of the lent part
  bool waits_for_place_ = false;
  LentPlace lent_;
  uint64_t crc_ = 0;
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CODEC_MESSAGE_DECODER_H_
