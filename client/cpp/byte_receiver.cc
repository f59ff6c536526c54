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

absl::Status ByteReceiver::Append(const wire::ReceivedChunk& chunk) {
  if (!begun_) return absl::DataLossError("a chunk came before its header");
  const absl::Status checked = wire::CheckChunk(chunk, {received_bytes_, total_bytes_, total_bytes_});
  if (!checked.ok()) return absl::DataLossError(absl::StrCat("the server sent a wrong chunk: ", checked.message()));
  const absl::Span<char> rest = Rest();
  if (chunk.size() <= static_cast<int64_t>(rest.size())) {
    chunk.CopyTo(rest.data());
    received_bytes_ += chunk.size();
    return absl::OkStatus();
  }
  std::string bytes(static_cast<size_t>(chunk.size()), '\0');
  chunk.CopyTo(bytes.data());
  Scatter(bytes);
  return absl::OkStatus();
}

void ByteReceiver::Scatter(absl::Span<const char> bytes) {
  while (!bytes.empty()) {
    const absl::Span<char> rest = Rest();
    const size_t part = std::min(rest.size(), bytes.size());
    std::memcpy(rest.data(), bytes.data(), part);
    bytes.remove_prefix(part);
    received_bytes_ += static_cast<int64_t>(part);
  }
}

absl::Span<char> ByteReceiver::Rest() const {
  auto at = static_cast<size_t>(received_bytes_);
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
