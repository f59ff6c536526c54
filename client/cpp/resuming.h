// SPDX-License-Identifier: Apache-2.0
// Uploads and downloads resume alike: a stream that breaks or goes silent is resumed where the other side got
// to. Internal to the client library. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CPP_RESUMING_H_
#define INTRAWARP_CLIENT_CPP_RESUMING_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "client/cpp/call_options.h"

namespace intrawarp::client {

// How far the streams of one transfer got; kept by whoever opens them.
struct TransferState {
  // Bytes that are known to have arrived.
  int64_t arrived = 0;
  // A message has gone to the server or come from it.
  bool reached = false;
};

// Opens a stream by `attempt` again and again, as long as it ends UNAVAILABLE. Gives up after `attempts` streams in a
// row that brought nothing further, and at once when the server cannot be reached in the first place. The first
// resumption after progress is immediate; later ones begin ever further apart, and at once after a stream that took
// longer than that to fail, as a silent one does.
absl::Status Resume(int attempts, const CallOptions& options, TransferState& state,
                    const std::function<absl::Status()>& attempt);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_RESUMING_H_
