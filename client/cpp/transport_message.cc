// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/transport_message.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace intrawarp::client {
namespace {

struct Phrase {
  const char* part;  // of gRPC's message, or OpenSSL's in it
  const char* plain;
};

// The first that fits counts. "certificate verify failed" comes with others.
constexpr Phrase kPhrases[] = {
    {"CERTIFICATE_VERIFY_FAILED", "the server's certificate does not come from the authorities that tls_ca names"},
    {"certificate verify failed", "the server's certificate does not come from the authorities that tls_ca names"},
    {"is not in peer certificate", "the server's certificate names another host than the address that was given"},
    {"Hostname Verification Check failed",
     "the server's certificate names another host than the address that was given"},
    {"wrong version number", "the server does not speak TLS, and tls_ca asks for it"},
    {"WRONG_VERSION_NUMBER", "the server does not speak TLS, and tls_ca asks for it"},
    {"SSL_ERROR_SSL", "the TLS handshake failed"},
    {"Ssl handshake failed", "the TLS handshake failed"},
    {"Connection refused", "connection refused: no server listens there"},
    {"Name or service not known", "the host's name is not known"},
    {"Domain name not found", "the host's name is not known"},
    {"DNS resolution failed", "the host's name is not known"},
    {"No route to host", "no route to the host"},
    {"Network is unreachable", "the network is unreachable"},
    {"Trying to connect an http1.x server", "what listens there is not a gRPC server (the address of --http, perhaps)"},
    {"Received http2 header with status", "what listens there is not a gRPC server"},
    {"Timeout occurred", "the server does not answer"},
    {"Connection timed out", "the server does not answer"},
    {"connection attempt timed out", "the server does not answer"},
    {"No such file or directory", "there is no such socket"},
};

// "127.0.0.1:1" of "... ipv4:127.0.0.1:1: Failed to connect ...", "" where the message names no address.
std::string AddressIn(absl::string_view message) {
  for (const char* scheme : {"ipv4:", "ipv6:", "unix:"}) {
    const size_t begin = message.find(scheme);
    if (begin == absl::string_view::npos) continue;
    absl::string_view rest = message.substr(begin + 5);
    const size_t end = rest.find_first_of(" ;,");
    rest = rest.substr(0, end);
    return absl::StrReplaceAll(absl::StripSuffix(rest, ":"), {{"%5B", "["}, {"%5D", "]"}});
  }
  return "";
}

// A server that wants TLS ends a plain connection at once.
bool IsClosedAtOnce(absl::string_view message) {
  return absl::StrContains(message, "failed to connect to all addresses") &&
         (absl::StrContains(message, "Socket closed") || absl::StrContains(message, "reset by peer") ||
          absl::StrContains(message, "Broken pipe") || absl::StrContains(message, "GOAWAY"));
}

}  // namespace

std::string PlainTransportMessage(absl::string_view message) {
  const std::string address = AddressIn(message);
  const std::string at = address.empty() ? "" : absl::StrCat(" (", address, ")");
  for (const Phrase& phrase : kPhrases) {
    if (absl::StrContains(message, phrase.part)) return absl::StrCat("cannot connect: ", phrase.plain, at);
  }
  if (IsClosedAtOnce(message)) {
    return absl::StrCat("cannot connect: the server closes the connection at once; it may want TLS (tls_ca)", at);
  }
  if (absl::StrContains(message, "failed to connect to all addresses")) {
    return absl::StrCat("cannot connect to the server", at, ": ", message);
  }
  if (message == "Socket closed" || absl::StrContains(message, "Connection reset by peer")) {
    return "the connection to the server broke";
  }
  return std::string(message);
}

}  // namespace intrawarp::client
