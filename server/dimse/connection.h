// SPDX-License-Identifier: Apache-2.0
// Connection: a TCP connection, plain or with TLS, on which every read and write ends at a stated time.
//
// Thread safety: one thread at a time reads and writes; Abort is safe on any thread.
#ifndef INTRAWARP_SERVER_DIMSE_CONNECTION_H_
#define INTRAWARP_SERVER_DIMSE_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;

namespace intrawarp::dimse {

using Clock = std::chrono::steady_clock;

// PEM texts. Without authorities a server asks for no certificate, and a client cannot connect.
struct TlsTexts {
  std::string certificate_chain;
  std::string private_key;
  std::string authorities;
};

// The keys of a server or a client, TLS 1.2 or later. Thread-safe once made.
class TlsContext {
 public:
  // INVALID_ARGUMENT "tls: ..." for texts that OpenSSL does not take.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Create(const TlsTexts& texts);
  ~TlsContext();

  SSL_CTX* get() const { return context_; }
  bool has_authorities() const { return has_authorities_; }

 private:
  TlsContext(SSL_CTX* context, bool has_authorities) : context_(context), has_authorities_(has_authorities) {}

  SSL_CTX* const context_;
  const bool has_authorities_;
};

class Connection {
 public:
  // Takes the socket, which does not block. `peer`: the numeric address of the other side, without its port.
  Connection(int fd, std::string peer) : fd_(fd), peer_(std::move(peer)) {}
  ~Connection();
  Connection(const Connection&) = delete;

  // Connects to a numeric address. UNAVAILABLE, DEADLINE_EXCEEDED.
  static absl::StatusOr<std::shared_ptr<Connection>> Connect(const std::string& host, int port, Clock::time_point end);

  // The handshake of TLS, before the first byte. UNAUTHENTICATED when it fails, also for the certificate of the other
  // side; a client compares it with the address that it connected to.
  absl::Status AcceptTls(const TlsContext& context, Clock::time_point end);
  absl::Status ConnectTls(const TlsContext& context, Clock::time_point end);

  const std::string& peer() const { return peer_; }

  // All of `size` bytes. OUT_OF_RANGE when the other side ends the connection before the first of them, UNAVAILABLE
  // when it breaks, DEADLINE_EXCEEDED at `end`, CANCELLED after Abort.
  absl::Status Read(char* to, size_t size, Clock::time_point end);
  // As Read; waits for room in the socket's buffer.
  absl::Status Write(absl::string_view bytes, Clock::time_point end);
  // Waits until there is something to read, or the other side has gone.
  absl::Status WaitReadable(Clock::time_point end);
  // Tells the other side that nothing more comes, and waits for its end until then.
  void Close(Clock::time_point end);

  // What is under way and what comes later fails.
  void Abort();

 private:
  absl::Status Handshake(const TlsContext& context, bool accepts, Clock::time_point end);
  absl::Status Wait(short events, Clock::time_point end) const;
  // The number of bytes; 0: the other side ended it; negative: nothing yet, wait for these events.
  absl::StatusOr<long> TryRead(char* to, size_t size, short* events);
  absl::StatusOr<long> TryWrite(absl::string_view bytes, short* events);
  absl::StatusOr<long> TlsOutcome(int done, short* events) const;
  absl::Status Broken() const;

  const int fd_;
  const std::string peer_;
  SSL* ssl_ = nullptr;
  std::atomic<bool> aborted_{false};
};

}  // namespace intrawarp::dimse

#endif  // INTRAWARP_SERVER_DIMSE_CONNECTION_H_
