// SPDX-License-Identifier: Apache-2.0
// PageServer: the page's port. It serves the page's files to whoever asks, and, to callers who may list sessions:
//
//   GET /api/state                      lines of JSON (page_state.h), twice a second
//   GET /api/sessions/ID/frames         packets (packet.h): the newest picture whenever there is one, and a head
//   without
//                                       "frame" each second; ?picture=0: only heads
//   GET /api/sessions/ID/reference      a packet: the resident image
//   GET /api/sessions/ID/planes.png     ?plane=axial&mode=warped&x=&y=&z=&width=: a plane of the newest picture
//   PUT /api/sessions/ID/tip            ?x=&y=&z=: the tip of the tool, LPS mm, in the space of the frames
//
// A caller shows a token in each request's Authorization header; there are no cookies, so that a page of another site
// has nothing to send. Requests of other sites are refused all the same, and so is a name that is not this machine's on
// a server without identities, since whoever owns a name can have it mean 127.0.0.1.
//
// Bounds. Connections, streams and header bytes have limits; beyond them a connection of the network that has most of
// them gives way, one that nobody has signed in on first. A viewer who does not read gets no packet but the newest one
// once it reads again, and is closed after `stall`.
//
// One thread serves all connections, by libmicrohttpd; one makes the pictures (viewer_hub.h).
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_SERVER_H_
#define INTRAWARP_SERVER_PAGE_PAGE_SERVER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/context/server_context.h"
#include "server/identity/exposure.h"
#include "server/identity/identity.h"
#include "server/identity/tls_files.h"
#include "server/page/page_options.h"

namespace intrawarp::server {

class AuditTrail;

struct PageLimits {
  size_t connections = 128;
  // The streams of one caller, or of one network on a server without identities; the oldest one gives way.
  size_t streams = 16;
  // For the header of a request and what is sent to its connection at once.
  size_t connection_bytes = size_t{64} << 10;
  std::chrono::seconds stall{10};
};

// Who the caller is, by the value of an Authorization header, which may be empty. UNAUTHENTICATED.
using IdentifyFn = std::function<absl::StatusOr<Identity>(const std::string& authorization)>;

class PageServer {
 public:
  // With TLS where `access` has it: each handshake uses the newest material of `tls` that GnuTLS can use. `tls`,
  // `context` and `audit` outlive it. UNAVAILABLE when the port cannot be bound, INVALID_ARGUMENT for a certificate
  // that cannot be used.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(const PageOptions& options, const AccessFiles& access,
                                                           const TlsFiles& tls, ServerContext& context,
                                                           IdentifyFn identify, AuditTrail& audit,
                                                           const PageLimits& limits = {});
  // Ends all streams.
  ~PageServer();

  // HOST:PORT with the real port.
  const std::string& address() const;
  bool has_tls() const;
  // Connections that are open, and streams of them; for tests.
  size_t connections() const;
  size_t streams() const;

 private:
  class Impl;
  explicit PageServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_SERVER_H_
