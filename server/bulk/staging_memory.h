// SPDX-License-Identifier: Apache-2.0
// StagingMemory: host memory for the bytes of an upload. Its pages are taken from the machine as bytes are written, so
// that an upload which only announces its size holds none.
#ifndef INTRAWARP_SERVER_BULK_STAGING_MEMORY_H_
#define INTRAWARP_SERVER_BULK_STAGING_MEMORY_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace intrawarp::server {

// Movable; empty by default. Thread-compatible.
class StagingMemory {
 public:
  // Address space for `bytes`, at least 1. RESOURCE_EXHAUSTED when the system has none.
  static absl::StatusOr<StagingMemory> Reserve(int64_t bytes);

  StagingMemory() = default;
  StagingMemory(StagingMemory&& other) noexcept { *this = std::move(other); }
  StagingMemory& operator=(StagingMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~StagingMemory();

  // Page-aligned; null when empty.
  char* data() const { return data_; }

 private:
  StagingMemory(char* data, size_t bytes) : data_(data), bytes_(bytes) {}

  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_STAGING_MEMORY_H_
