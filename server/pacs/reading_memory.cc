// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/reading_memory.h"

#include <condition_variable>
#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/status/errors.h"

namespace intrawarp::server {

struct ReadingMemory::State {
  int64_t capacity = 0;
  std::chrono::nanoseconds patience;
  std::mutex mutex;
  std::condition_variable given;
  int64_t taken = 0;
};

ReadingMemory::ReadingMemory(int64_t capacity, std::chrono::nanoseconds patience) : state_(std::make_shared<State>()) {
  state_->capacity = capacity;
  state_->patience = patience;
}

absl::StatusOr<std::shared_ptr<const void>> ReadingMemory::Take(int64_t bytes) {
  if (bytes > state_->capacity) {
    return absl::ResourceExhaustedError(
        absl::StrCat("file: needs ", bytes, " bytes of memory to be read, at most ", state_->capacity));
  }
  std::unique_lock<std::mutex> lock(state_->mutex);
  const auto fits = [&] { return bytes <= state_->capacity - state_->taken; };
  if (!state_->given.wait_for(lock, state_->patience, fits)) {
    return WithReason(absl::ResourceExhaustedError("file: others have the memory to read it"), v1::RESIDENT_MEMORY);
  }
  state_->taken += bytes;
  return std::shared_ptr<const void>(state_.get(), [state = state_, bytes](const void*) {
    {
      std::lock_guard<std::mutex> back(state->mutex);
      state->taken -= bytes;
    }
    state->given.notify_all();
  });
}

}  // namespace intrawarp::server
