// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/resumable_upload.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::client {
namespace {

constexpr std::chrono::milliseconds kFirstBackoff(100);

// ABORTED: the server has not noticed yet that the broken stream is gone.
bool IsBrokenStream(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsAborted(status); }

absl::Status Sleep(int attempt, const CallOptions& options) {
  const std::chrono::milliseconds backoff = kFirstBackoff * (1 << std::min(attempt - 1, 4));
  Cancellation never;
  const Cancellation& cancellation = options.cancellation == nullptr ? never : *options.cancellation;
  if (cancellation.WaitFor(backoff)) return absl::CancelledError("cancelled");
  return absl::OkStatus();
}

}  // namespace

absl::Status SendResuming(int attempts, const CallOptions& options,
                          const std::function<absl::Status(int64_t offset, bool* reached)>& send,
                          const std::function<absl::StatusOr<int64_t>()>& committed) {
  bool reached = false;
  absl::Status status = send(0, &reached);
  if (!reached) return status;
  for (int attempt = 1; attempt < attempts && IsBrokenStream(status); ++attempt) {
    INTRAWARP_RETURN_IF_ERROR(Sleep(attempt, options));
    const absl::StatusOr<int64_t> offset = committed();
    status = offset.ok() ? send(*offset, &reached) : offset.status();
  }
  return status;
}

absl::StatusOr<int64_t> CommittedSize(const absl::Status& status, int64_t committed, int64_t total) {
  if (absl::IsNotFound(status)) return 0;
  INTRAWARP_RETURN_IF_ERROR(status);
  if (committed < 0 || committed > total) {
    return absl::InternalError(absl::StrCat("the server committed ", committed, " of ", total, " bytes"));
  }
  return committed;
}

}  // namespace intrawarp::client
