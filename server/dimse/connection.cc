// SPDX-License-Identifier: Apache-2.0
#include "server/dimse/connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::dimse {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

Owned<BIO> Reader(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}
// Without one OpenSSL would ask on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::Status WrongTls(absl::string_view why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("tls: ", why));
}

absl::Status UseChain(SSL_CTX* context, const std::string& text) {
  const Owned<BIO> from = Reader(text);
  const Owned<X509> own(PEM_read_bio_X509(from.get(), nullptr, NoPassphrase, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return WrongTls("no certificate");
  while (X509* next = PEM_read_bio_X509(from.get(), nullptr, NoPassphrase, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, next) == 1) continue;
    X509_free(next);
    return WrongTls("a certificate of the chain");
  }
  ERR_clear_error();  // the end of the text
  return absl::OkStatus();
}

absl::Status UseKey(SSL_CTX* context, const std::string& text) {
  const Owned<BIO> from = Reader(text);
  const Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(from.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1) return WrongTls("the private key");
  return SSL_CTX_check_private_key(context) == 1 ? absl::OkStatus()
                                                 : WrongTls("the key does not match the certificate");
}

absl::Status UseAuthorities(SSL_CTX* context, const std::string& text) {
  const Owned<BIO> from = Reader(text);
  while (const Owned<X509> authority{PEM_read_bio_X509(from.get(), nullptr, NoPassphrase, nullptr)}) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1) return WrongTls("an authority");
  }
  ERR_clear_error();
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

int MillisecondsUntil(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
}

absl::Status TimeIsOver() { return absl::DeadlineExceededError("the other side took too long"); }

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Create(const TlsTexts& texts) {
  Owned<SSL_CTX> context(SSL_CTX_new(TLS_method()));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1) {
    return WrongTls("OpenSSL has no TLS 1.2");
  }
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  INTRAWARP_RETURN_IF_ERROR(UseChain(context.get(), texts.certificate_chain));
  INTRAWARP_RETURN_IF_ERROR(UseKey(context.get(), texts.private_key));
  if (!texts.authorities.empty()) INTRAWARP_RETURN_IF_ERROR(UseAuthorities(context.get(), texts.authorities));
  return std::shared_ptr<const TlsContext>(new TlsContext(context.release(), !texts.authorities.empty()));
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Connection::~Connection() {
  SSL_free(ssl_);
  close(fd_);
}

absl::StatusOr<std::shared_ptr<Connection>> Connection::Connect(const std::string& host, int port,
                                                                Clock::time_point end) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &list) != 0) {
    return absl::UnavailableError("the address is not a numeric one");
  }
  const Owned<addrinfo> found(list);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError("there is no socket");
  auto connection = std::make_shared<Connection>(fd, host);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) return connection;
  if (errno != EINPROGRESS) return absl::UnavailableError("cannot be connected to");
  INTRAWARP_RETURN_IF_ERROR(connection->Wait(POLLOUT, end));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return absl::UnavailableError("cannot be connected to");
  return connection;
}

absl::Status Connection::AcceptTls(const TlsContext& context, Clock::time_point end) {
  return Handshake(context, /*accepts=*/true, end);
}

absl::Status Connection::ConnectTls(const TlsContext& context, Clock::time_point end) {
  if (!context.has_authorities()) return absl::FailedPreconditionError("tls: there are no authorities");
  return Handshake(context, /*accepts=*/false, end);
}

absl::Status Connection::Handshake(const TlsContext& context, bool accepts, Clock::time_point end) {
  ssl_ = SSL_new(context.get());
  if (ssl_ == nullptr || SSL_set_fd(ssl_, fd_) != 1) return absl::ResourceExhaustedError("tls: no memory");
  if (!accepts) X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_), peer_.c_str());
  for (;;) {
    ERR_clear_error();
    const int done = accepts ? SSL_accept(ssl_) : SSL_connect(ssl_);
    if (done == 1) return absl::OkStatus();
    const int error = SSL_get_error(ssl_, done);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) break;
    INTRAWARP_RETURN_IF_ERROR(Wait(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, end));
  }
  ERR_clear_error();
  return absl::UnauthenticatedError("the TLS handshake failed");
}

absl::Status Connection::Broken() const {
  return aborted_ ? absl::CancelledError("the connection was ended") : absl::UnavailableError("the connection broke");
}

absl::Status Connection::Wait(short events, Clock::time_point end) const {
  pollfd polled{fd_, events, 0};
  for (;;) {
    if (aborted_) return Broken();
    const int ready = poll(&polled, 1, MillisecondsUntil(end));
    if (ready > 0) return aborted_ ? Broken() : absl::OkStatus();
    if (ready == 0 && Clock::now() >= end) return TimeIsOver();
    if (ready < 0 && errno != EINTR) return Broken();
  }
}

absl::StatusOr<long> Connection::TlsOutcome(int done, short* events) const {
  if (done > 0) return done;
  switch (SSL_get_error(ssl_, done)) {
    case SSL_ERROR_WANT_READ:
      *events = POLLIN;
      return -1;
    case SSL_ERROR_WANT_WRITE:
      *events = POLLOUT;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    default:
      ERR_clear_error();
      return Broken();
  }
}

absl::StatusOr<long> Connection::TryRead(char* to, size_t size, short* events) {
  *events = POLLIN;
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return TlsOutcome(SSL_read(ssl_, to, static_cast<int>(std::min<size_t>(size, 1 << 30))), events);
  }
  const ssize_t got = recv(fd_, to, size, 0);
  if (got >= 0) return got;
  if (errno == EAGAIN || errno == EINTR) return -1;
  return Broken();
}

absl::StatusOr<long> Connection::TryWrite(absl::string_view bytes, short* events) {
  *events = POLLOUT;
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return TlsOutcome(SSL_write(ssl_, bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 30))), events);
  }
  const ssize_t put = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (put >= 0) return put;
  if (errno == EAGAIN || errno == EINTR) return -1;
  return Broken();
}

absl::Status Connection::Read(char* to, size_t size, Clock::time_point end) {
  size_t at = 0;
  while (at < size) {
    if (Clock::now() >= end) return TimeIsOver();
    short events = 0;
    INTRAWARP_ASSIGN_OR_RETURN(const long got, TryRead(to + at, size - at, &events));
    if (got == 0) {
      if (aborted_) return Broken();
      return at == 0 ? absl::OutOfRangeError("the other side ended the connection") : Broken();
    }
    if (got > 0) at += static_cast<size_t>(got);
    if (got < 0) INTRAWARP_RETURN_IF_ERROR(Wait(events, end));
  }
  return absl::OkStatus();
}

absl::Status Connection::Write(absl::string_view bytes, Clock::time_point end) {
  while (!bytes.empty()) {
    if (Clock::now() >= end) return TimeIsOver();
    short events = 0;
    INTRAWARP_ASSIGN_OR_RETURN(const long put, TryWrite(bytes, &events));
    if (put == 0) return Broken();
    if (put > 0) bytes.remove_prefix(static_cast<size_t>(put));
    if (put < 0) INTRAWARP_RETURN_IF_ERROR(Wait(events, end));
  }
  return absl::OkStatus();
}

absl::Status Connection::WaitReadable(Clock::time_point end) {
  if (ssl_ != nullptr && SSL_pending(ssl_) > 0) return absl::OkStatus();
  return Wait(POLLIN, end);
}

void Connection::Close(Clock::time_point end) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
    ERR_clear_error();
  }
  shutdown(fd_, SHUT_WR);
  char rest[16384];
  while (Clock::now() < end && Wait(POLLIN, end).ok() && recv(fd_, rest, sizeof(rest), 0) > 0) {
  }
}

void Connection::Abort() {
  aborted_ = true;
  shutdown(fd_, SHUT_RDWR);
}

}  // namespace intrawarp::dimse
