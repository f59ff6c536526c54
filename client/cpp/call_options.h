// SPDX-License-Identifier: Apache-2.0
// What a caller may say about one call of the client: how long it may take, and what cancels it.
#ifndef INTRAWARP_CLIENT_CPP_CALL_OPTIONS_H_
#define INTRAWARP_CLIENT_CPP_CALL_OPTIONS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>

namespace grpc {
class ClientContext;
}

namespace intrawarp::client {

// Cancels the calls that were given it, those under way and later ones: they end with CANCELLED. Cannot be undone.
//
// Thread safety: safe for concurrent use; not for use inside a signal handler (wait for signals in a thread instead).
// It outlives the calls that use it.
class Cancellation {
 public:
  void Cancel();
  bool cancelled() const;
  // Returns after `duration`, or at once when cancelled; true when it is cancelled.
  bool WaitFor(std::chrono::milliseconds duration) const;

  // For the client library: a call registers its context while it runs.
  void Register(grpc::ClientContext* context);
  void Unregister(grpc::ClientContext* context);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool cancelled_ = false;
  std::set<grpc::ClientContext*> contexts_;
};

// Request metadata that says which calls belong together: a proxy before several servers that hashes it sends them to
// one server (deploy/nginx/intrawarp.conf). By convention the VolumeDigest of the resident volume.
inline constexpr char kRoutingKeyMetadata[] = "intrawarp-routing-key";

struct CallOptions {
  // 0: the client's default, which is ClientOptions.unary_timeout for a single answer and none for a stream.
  std::chrono::milliseconds timeout{0};
  Cancellation* cancellation = nullptr;
  // The trace that the call belongs to, as the header `traceparent` of W3C Trace Context names it; the server logs its
  // trace id. Empty, or not in that form (wire/trace_context.h): none is sent.
  std::string traceparent = {};
  // Sent as kRoutingKeyMetadata, or as its SHA-256 in hexadecimal where it is longer than 128 bytes or no single word
  // of printable ASCII; empty: not sent.
  std::string routing_key = {};
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_CALL_OPTIONS_H_
