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
    if (received_ == header_.body_bytes) Deliver(sink);
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
  waits_for_place_ = lender_ != nullptr && header_.body_bytes > kLargeBody;
  if (!waits_for_place_) body_.reserve(std::min(header_.body_bytes, kFirstReserve));
  return absl::OkStatus();
}

void MessageDecoder::TakeBody(absl::string_view& bytes) {
  uint64_t wanted = header_.body_bytes - received_;
  if (waits_for_place_) wanted = kFirstBytes - received_;
  const absl::string_view taken = bytes.substr(0, std::min<uint64_t>(bytes.size(), wanted));
  bytes.remove_prefix(taken.size());
  if (limits_.check_crc) crc_ = ExtendCrc64(crc_, taken);
  StoreBody(taken);
  if (waits_for_place_ && received_ == kFirstBytes) AskForPlace();
}

void MessageDecoder::StoreBody(absl::string_view bytes) {
  const uint64_t lent_end = lent_.begin + lent_.bytes;
  if (lent_.place != nullptr && received_ < lent_end) {
    const absl::string_view part = bytes.substr(0, std::min<uint64_t>(bytes.size(), lent_end - received_));
    lent_.place->Append(part);
    received_ += part.size();
    bytes.remove_prefix(part.size());
  }
  if (body_.size() + bytes.size() > body_.capacity()) {
    body_.reserve(std::min<uint64_t>(header_.body_bytes, 2 * (body_.size() + bytes.size())));
  }
  body_.append(bytes.data(), bytes.size());
  received_ += bytes.size();
}

void MessageDecoder::AskForPlace() {
  waits_for_place_ = false;
  lent_ = lender_(header_, body_);
  if (lent_.place == nullptr) {
    lent_ = {};
    body_.reserve(std::min(header_.body_bytes, kFirstReserve));
    return;
  }
  lent_.place->Append(absl::string_view(body_).substr(lent_.begin));
  body_.resize(lent_.begin);
}

void MessageDecoder::Deliver(const Sink& sink) {
  const uint64_t crc = std::exchange(crc_, 0);
  has_header_ = false;
  received_ = 0;
  std::string body = std::exchange(body_, {});
  const LentPlace lent = std::exchange(lent_, {});
  if (limits_.check_crc && crc != header_.crc) {
    sink(FieldError(absl::StatusCode::kDataLoss, "crc", "differs from the checksum of the body"));
    return;
  }
  sink(ParseBody(std::move(header_), std::move(body), lent));
}

}  // namespace intrawarp::igtl
