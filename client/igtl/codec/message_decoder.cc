// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/message_decoder.h"

#include <algorithm>
#include <utility>

#include "client/igtl/codec/crc64.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::igtl {
namespace {

// Memory that a header may ask for before its body comes.
constexpr uint64_t kFirstReserve = uint64_t{1} << 20;

}  // namespace

absl::Status MessageDecoder::Feed(absl::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (!has_header_) INTRAWARP_RETURN_IF_ERROR(TakeHeader(bytes));
    if (!has_header_) return absl::OkStatus();
    TakeBody(bytes);
    if (body_.size() == header_.body_bytes) Deliver(sink);
  }
  return absl::OkStatus();
}

absl::Status MessageDecoder::TakeHeader(absl::string_view& bytes) {
  const size_t taken = std::min(bytes.size(), kHeaderBytes - header_bytes_.size());
  header_bytes_.append(bytes.data(), taken);
  bytes.remove_prefix(taken);
  if (header_bytes_.size() < kHeaderBytes) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(header_, ParseHeader(header_bytes_));
  if (header_.body_bytes > limits_.max_body_bytes) {
    return FieldError(absl::StatusCode::kResourceExhausted, "body_size", "is above the limit (max_body_mib)");
  }
  header_bytes_.clear();
  has_header_ = true;
  body_.reserve(std::min(header_.body_bytes, kFirstReserve));
  return absl::OkStatus();
}

void MessageDecoder::TakeBody(absl::string_view& bytes) {
  const size_t taken = std::min<uint64_t>(bytes.size(), header_.body_bytes - body_.size());
  if (body_.size() + taken > body_.capacity()) {
    body_.reserve(std::min<uint64_t>(header_.body_bytes, 2 * (body_.size() + taken)));
  }
  body_.append(bytes.data(), taken);
  crc_ = ExtendCrc64(crc_, bytes.substr(0, taken));
  bytes.remove_prefix(taken);
}

void MessageDecoder::Deliver(const Sink& sink) {
  const uint64_t crc = std::exchange(crc_, 0);
  has_header_ = false;
  std::string body = std::exchange(body_, {});
  if (limits_.check_crc && crc != header_.crc) {
    sink(FieldError(absl::StatusCode::kDataLoss, "crc", "differs from the checksum of the body"));
    return;
  }
  sink(ParseBody(std::move(header_), std::move(body)));
}

}  // namespace intrawarp::igtl
