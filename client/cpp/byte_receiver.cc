// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/byte_receiver.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace intrawarp::client {

void ByteReceiver::Begin(std::vector<absl::Span<char>> arrays) {
  begun_ = true;
  arrays_ = std::move(arrays);
  for (const absl::Span<char>& array : arrays_) total_bytes_ += static_cast<int64_t>(array.size());
}

void ByteReceiver::Begin(int64_t total_bytes) {
  begun_ = true;
  total_bytes_ = total_bytes;
}

absl::Status ByteReceiver::Check(const wire::ReceivedChunk& chunk) const {
  if (!begun_) return absl::DataLossError("a chunk came before its header");
  return Refused(wire::CheckPlace(chunk, {received_bytes_, total_bytes_, total_bytes_}));
}

absl::Status ByteReceiver::Refused(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::DataLossError(absl::StrCat("the server sent a wrong chunk: ", status.message()));
}

absl::Status ByteReceiver::Append(const wire::ReceivedChunk& chunk) {
  const auto at = static_cast<size_t>(received_bytes_);
  const absl::Span<char> rest = RestFrom(at);
  const auto size = static_cast<size_t>(chunk.size());
  if (size <= rest.size()) return Take(chunk, [&rest] { return rest.data(); });
  std::string bytes;
  const absl::Status taken = Take(chunk, [&] {
    bytes.resize(size);
    return bytes.data();
  });
  if (taken.ok()) Scatter(bytes, at);
  return taken;
}

void ByteReceiver::Scatter(absl::Span<const char> bytes, size_t at) const {
  while (!bytes.empty()) {
    const absl::Span<char> rest = RestFrom(at);
    const size_t part = std::min(rest.size(), bytes.size());
    std::memcpy(rest.data(), bytes.data(), part);
    bytes.remove_prefix(part);
    at += part;
  }
}

absl::Span<char> ByteReceiver::RestFrom(size_t at) const {
  for (const absl::Span<char>& array : arrays_) {
    if (at < array.size()) return array.subspan(at);
    at -= array.size();
  }
  return {};
}

absl::Status ByteReceiver::Finish() const {
  if (!begun_) return absl::DataLossError("the server sent no header");
  if (received_bytes_ == total_bytes_) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the server sent ", received_bytes_, " of ", total_bytes_, " announced bytes"));
}

}  // namespace intrawarp::client
