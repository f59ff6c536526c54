// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/device_bytes.h"

#include <algorithm>

#include "engine/base/status_macros.h"

namespace intrawarp::server {

int64_t TotalBytes(const DeviceBytes& from) {
  int64_t bytes = 0;
  for (const DevicePiece& piece : from) bytes += piece.bytes;
  return bytes;
}

absl::Status CopyRange(const ExecContext& ctx, const DeviceBytes& from, int64_t begin, int64_t bytes, void* to) {
  auto* out = static_cast<char*>(to);
  for (const DevicePiece& piece : from) {
    const int64_t part = std::min(piece.bytes - begin, bytes);
    if (part > 0) {
      const char* data = static_cast<const char*>(piece.data) + begin;
      INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(out, data, static_cast<size_t>(part), ctx.stream()));
      out += part;
      bytes -= part;
    }
    begin = std::max<int64_t>(begin - piece.bytes, 0);
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::server
