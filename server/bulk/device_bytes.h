// SPDX-License-Identifier: Apache-2.0
// A stream of bytes that lies on a device in several pieces, as the arrays of a matrix do. Thread-safe functions.
#ifndef INTRAWARP_SERVER_BULK_DEVICE_BYTES_H_
#define INTRAWARP_SERVER_BULK_DEVICE_BYTES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"

namespace intrawarp::server {

// Non-owning.
struct DevicePiece {
  const void* data = nullptr;
  int64_t bytes = 0;
};
using DeviceBytes = std::vector<DevicePiece>;

int64_t TotalBytes(const DeviceBytes& from);

// Brings the bytes [begin, begin + bytes), which exist, to host memory. Stream-ordered.
absl::Status CopyRange(const ExecContext& ctx, const DeviceBytes& from, int64_t begin, int64_t bytes, void* to);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_DEVICE_BYTES_H_
