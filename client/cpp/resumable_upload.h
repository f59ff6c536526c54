// SPDX-License-Identifier: Apache-2.0
// What uploads of volumes and of matrices have in common: a stream that breaks is resumed where the server got to.
// Internal to the client library. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CPP_RESUMABLE_UPLOAD_H_
#define INTRAWARP_CLIENT_CPP_RESUMABLE_UPLOAD_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/call_options.h"

namespace intrawarp::client {

// `send` sends from an offset on, and sets `reached` once anything was sent; `committed` asks how far the server got.
// At most `attempts` times; a server that cannot be reached in the first place is an error at once.
absl::Status SendResuming(int attempts, const CallOptions& options,
                          const std::function<absl::Status(int64_t offset, bool* reached)>& send,
                          const std::function<absl::StatusOr<int64_t>()>& committed);

// What the server's answer to the question means: where to continue of `total` bytes. `status` is that of the question.
// NOT_FOUND stands for 0: the upload was dropped, or it was complete and only its answer got lost; then sending the
// header again gets the answer, since uploads are idempotent.
absl::StatusOr<int64_t> CommittedSize(const absl::Status& status, int64_t committed, int64_t total);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_RESUMABLE_UPLOAD_H_
