// SPDX-License-Identifier: Apache-2.0
// RoutedSession: a stream of frames (NavigateStream) that outlives its server. It is opened on the first server of its
// route that is well and has room. After the stream has broken, Recover takes the session up again where it was or,
// when that server is gone or has forgotten it, opens a new session on the next server: there everything that the
// session names is staged again, and its first frame starts from the last good answer, which is one with VERDICT_OK:
// the new server takes a start for granted, so nothing that asks for review becomes one.
//
// The new session takes over the options, the affine part of the last good answer and, where
// NavigateConfig.field asks for whole CONTROL_POINTS or VELOCITY fields and the options name stages, the whole
// transform. What does not: the deformation that was never sent in its native form, frames without an answer (to be
// sent again), the session's statistics, the names of earlier answers' transforms, the choice of method where the
// options name no stages.
//
// Thread safety: as NavigateStream; nobody sends or receives during Open and Recover.
#ifndef INTRAWARP_CLIENT_CPP_ROUTED_SESSION_H_
#define INTRAWARP_CLIENT_CPP_ROUTED_SESSION_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/routed_client.h"

namespace intrawarp::client {

class RoutedSession {
 public:
  // Stages on this server what the session names (the resident volume, masks), and puts the names into the config.
  // Called for each server that a session is opened on, the same one again included. Uploads without an id are
  // idempotent: what lies there already is found by its digest and not sent again. IsServersFault passes the server
  // over; any other error ends Open or Recover.
  using Stage = std::function<absl::Status(Client& client, const std::string& address, v1::NavigateConfig& config)>;

  // How a session continues after its stream has broken.
  struct Recovery {
    // The same session on the same server, from its last good transform.
    bool resumed = false;
    // In a new session: what the next frame starts from.
    enum class Start { kAnew, kAffine, kWhole } start = Start::kAnew;
  };

  // `servers` outlives the session. `options` are those of every call; their routing_key is that of the route.
  RoutedSession(RoutedClient* servers, Route route, v1::NavigateConfig config, Stage stage, CallOptions options);

  // UNAVAILABLE when no server is well; otherwise the last server's error.
  absl::Status Open();
  // These call the same functions of the open NavigateStream. Receive remembers good answers.
  absl::Status Send(const Frame& frame) { return stream_->Send(frame); }
  absl::Status CloseSend() { return stream_->CloseSend(); }
  absl::StatusOr<std::optional<FrameAnswer>> Receive(GridData* field, const CoarseFieldSink& coarse = {});
  void Cancel() { stream_->Cancel(); }

  // Whether the stream has broken: the last Open or Receive ended so (IsBroken).
  bool is_broken() const { return IsBroken(last_); }
  // While it is broken: asks the servers, the present one first, until one carries the session. Gives up with the last
  // error after RoutingOptions.recovery_timeout. FAILED_PRECONDITION when it is not broken.
  absl::StatusOr<Recovery> Recover();

  // The open stream. Null before the first.
  NavigateStream* stream() { return stream_.get(); }
  // Where the session is; empty before it was opened.
  const std::string& address() const { return address_; }

 private:
  // The last good answer, and when it came.
  struct Good {
    v1::AffineMap affine;
    std::optional<GridData> native;
    std::chrono::steady_clock::time_point received;
  };

  absl::Status OpenAt(const std::string& address, Recovery* recovery);
  void Remember(const FrameAnswer& answer, const GridData* field);
  bool HasStart() const;
  // Puts the start into the config; the name of a transform that was staged for it, or "".
  absl::StatusOr<std::string> SetStart(Client& client, v1::NavigateConfig* config, Recovery* recovery);
  // One round over all servers. True when one carries the session; otherwise last_ tells why not.
  absl::StatusOr<bool> TryServers(Recovery* recovery);
  bool AsksForNativeField() const;
  bool IsCancelled() const { return options_.cancellation != nullptr && options_.cancellation->cancelled(); }

  RoutedClient* const servers_;
  const Route route_;
  const v1::NavigateConfig config_;
  const Stage stage_;
  const CallOptions options_;
  std::string address_;
  std::unique_ptr<NavigateStream> stream_;
  std::optional<Good> good_;
  absl::Status last_;  // of Open, Receive or Recover
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_ROUTED_SESSION_H_
