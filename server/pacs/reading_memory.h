// SPDX-License-Identifier: Apache-2.0
// ReadingMemory: the host memory that DICOM files may take while they are read, of all threads together. Volumes have
// that of the ledger.
//
// Thread safety: safe for concurrent use. What was taken may outlive the object.
#ifndef INTRAWARP_SERVER_PACS_READING_MEMORY_H_
#define INTRAWARP_SERVER_PACS_READING_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace intrawarp::server {

class ReadingMemory {
 public:
  ReadingMemory(int64_t capacity, std::chrono::nanoseconds patience);

  // Waits for others to give memory back, for `patience` at most. RESOURCE_EXHAUSTED, with the reason RESIDENT_MEMORY
  // where others have it, without a reason where it is more than the capacity.
  absl::StatusOr<std::shared_ptr<const void>> Take(int64_t bytes);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_READING_MEMORY_H_
