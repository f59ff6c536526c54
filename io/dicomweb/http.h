// SPDX-License-Identifier: Apache-2.0
// HttpClient: requests to one HTTP server, over libcurl, with every bound that a hostile or broken server calls for.
//
// Where a request goes: only to the scheme, host and port of the base URL. A redirect within them is followed for a
// GET, five times at most; any other is FAILED_PRECONDITION, so that neither a token nor a query reaches another host.
// Proxies and credentials of the environment (http_proxy, .netrc) are not used.
//
// Plain http is for this machine (127.0.0.0/8, ::1, localhost); for another host it needs `allow_plain_text`, and a
// token never crosses a network in plain text. With https the server's certificate and name are always checked.
//
// Time: a connection is made within `connect_timeout`, a whole exchange takes `timeout` at most, one that moves less
// than kLeastRate for `stall` ends, and none goes on after `end`. Sizes: the header has 256 KiB at most, the body what
// its request allows.
//
// Errors: UNAVAILABLE (also 408, 429, 502, 503, 504, with the seconds that the server asks to wait), DEADLINE_EXCEEDED,
// CANCELLED, UNAUTHENTICATED (401; a handshake of TLS that fails, as by a certificate that is not trusted),
// PERMISSION_DENIED (403), NOT_FOUND (404), INVALID_ARGUMENT (400), UNIMPLEMENTED (405, 406, 415, 501),
// RESOURCE_EXHAUSTED (413, 507; above a bound), FAILED_PRECONDITION (redirects), UNKNOWN for other answers, DATA_LOSS
// for one that is cut short. Messages hold numbers alone: no URL, no header and no body of either side.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_IO_DICOMWEB_HTTP_H_
#define INTRAWARP_IO_DICOMWEB_HTTP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::dicomweb {

// Bytes a second that an exchange must move.
inline constexpr int64_t kLeastRate = 1024;

struct HttpOptions {
  // "https://archive.example:8443/dicom-web"; no user, query or fragment.
  std::string base_url;
  // PEM; empty: those of the system. The file's authorities stand instead of the system's.
  std::string authorities_file;
  // A bearer token (RFC 6750); empty: none. It is read for each request, so that it can be renewed.
  std::string token_file;
  bool allow_plain_text = false;
  std::chrono::seconds connect_timeout{15};
  std::chrono::seconds stall{60};
  std::chrono::seconds timeout{3600};
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max();
  // Asked several times a second, also while nothing comes; true ends the exchange. May be empty.
  std::function<bool()> cancelled = {};
};

struct HttpReply {
  int status = 0;
  // The header as the server sent it; empty: none.
  std::string content_type;
};

struct HttpRequest {
  // Follows the base URL: "/series?limit=10".
  std::string target;
  std::string accept;
  int64_t max_body_bytes = 0;
  // Called before the first byte of a body that is passed on, and in any case before the request succeeds. May be
  // empty.
  std::function<absl::Status(const HttpReply&)> begin = {};
  // The body of an answer 2xx, and of 409 to a POST.
  std::function<absl::Status(absl::string_view)> take;

  // A POST of so many bytes where it is set: fills a buffer, and returns how many bytes (more than 0).
  std::function<absl::StatusOr<size_t>(char*, size_t)> give = {};
  int64_t given_bytes = 0;
  std::string content_type = {};
};

class HttpClient {
 public:
  // Connects nowhere. INVALID_ARGUMENT "url: ..." and "token_file: ...".
  static absl::StatusOr<std::unique_ptr<HttpClient>> Create(HttpOptions options);
  ~HttpClient();

  // 2xx, and 409 to a POST.
  absl::StatusOr<HttpReply> Run(const HttpRequest& request);

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Whether a client could be made with this base URL, reading no file: INVALID_ARGUMENT "url: ..." and "token_file:
// ...".
absl::Status CheckAddress(const HttpOptions& options);

// Percent-encodes all but unreserved characters (RFC 3986).
std::string EscapeUrl(absl::string_view text);

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_IO_DICOMWEB_HTTP_H_
