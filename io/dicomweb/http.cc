// SPDX-License-Identifier: Apache-2.0
#include "io/dicomweb/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::dicomweb {
namespace {

using absl::StatusCode;

constexpr int kMaxRedirects = 5;
constexpr size_t kMaxHeaderBytes = 256 << 10;
constexpr size_t kMaxTokenBytes = 16 << 10;
constexpr long kBufferBytes = 512 << 10;
constexpr int kConflict = 409;
// Between two questions whether the caller gives up.
constexpr int kPollMs = 100;

struct UrlDeleter {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using Url = std::unique_ptr<CURLU, UrlDeleter>;

struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, ListDeleter>;

absl::Status UrlError(absl::string_view why) { return FieldError(StatusCode::kInvalidArgument, "url", why); }

// Empty where the URL has no such part.
std::string PartOf(const Url& url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, flags) != CURLUE_OK) return "";
  std::string copy = text;
  curl_free(text);
  return copy;
}

absl::StatusOr<Url> ParseUrl(const std::string& text) {
  Url url(curl_url());
  if (url == nullptr) return absl::ResourceExhaustedError("no memory for a URL");
  const bool has_blanks = std::any_of(text.begin(), text.end(), [](char c) { return !absl::ascii_isgraph(c); });
  if (has_blanks || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_DISALLOW_USER) != CURLUE_OK) {
    return UrlError("must be https://HOST[:PORT]/PATH");
  }
  return url;
}

// Scheme, host and port, which every request shares with the base URL.
std::string OriginOf(const Url& url) {
  return absl::AsciiStrToLower(absl::StrCat(PartOf(url, CURLUPART_SCHEME), "://", PartOf(url, CURLUPART_HOST), ":",
                                            PartOf(url, CURLUPART_PORT, CURLU_DEFAULT_PORT)));
}

bool IsThisMachine(const std::string& host) {
  if (host == "localhost" || host == "[::1]") return true;
  // curl has already written an IPv4 address in its usual form.
  const bool is_numeric = host.find_first_not_of("0123456789.") == std::string::npos;
  return is_numeric && absl::StartsWith(host, "127.");
}

absl::Status CheckUrl(const Url& url, const HttpOptions& options) {
  const std::string scheme = PartOf(url, CURLUPART_SCHEME);
  if (scheme != "https" && scheme != "http") return UrlError("must begin with https:// or http://");
  if (!PartOf(url, CURLUPART_QUERY).empty() || !PartOf(url, CURLUPART_FRAGMENT).empty()) {
    return UrlError("must have neither a query nor a fragment");
  }
  if (scheme == "https" || IsThisMachine(absl::AsciiStrToLower(PartOf(url, CURLUPART_HOST)))) return absl::OkStatus();
  if (!options.token_file.empty()) {
    return FieldError(StatusCode::kInvalidArgument, "token_file", "a token never crosses a network in plain text");
  }
  if (options.allow_plain_text) return absl::OkStatus();
  return UrlError("must begin with https://; images would cross a network in plain text");
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  const absl::StatusOr<std::string> text = io::ReadSmallFile(path, kMaxTokenBytes);
  if (!text.ok()) return FieldError(text.status().code(), "token_file", text.status().message());
  const std::string token(absl::StripAsciiWhitespace(*text));
  const bool is_token = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::string_view("-._~+/=").find(c) != absl::string_view::npos;
  });
  if (!token.empty() && is_token) return token;
  return FieldError(StatusCode::kInvalidArgument, "token_file", "must hold a bearer token and nothing else");
}

// A wait that the server asks for is a number, which may be shown.
absl::Status ReplyError(int status, int64_t retry_after_s) {
  const auto error = [&](StatusCode code, absl::string_view what) {
    const std::string wait = retry_after_s > 0 ? absl::StrCat("; it asks to wait ", retry_after_s, " s") : "";
    return absl::Status(code, absl::StrCat("the archive answered HTTP ", status, " (", what, ")", wait));
  };
  if (status >= 300 && status < 400) {
    return error(StatusCode::kFailedPrecondition, "redirect to another origin, or too many of them");
  }
  switch (status) {
    case 400:
      return error(StatusCode::kInvalidArgument, "it does not understand the request");
    case 401:
      return error(StatusCode::kUnauthenticated, "it wants a token, or another one");
    case 403:
      return error(StatusCode::kPermissionDenied, "not allowed");
    case 404:
    case 410:
      return error(StatusCode::kNotFound, "not there");
    case 405:
    case 406:
    case 415:
    case 501:
      return error(StatusCode::kUnimplemented, "it has no such service or form");
    case 413:
    case 507:
      return error(StatusCode::kResourceExhausted, "too large for it");
    case 408:
    case 429:
    case 502:
    case 503:
    case 504:
      return error(StatusCode::kUnavailable, "not now");
    default:
      return error(StatusCode::kUnknown, "failed");
  }
}

absl::Status CurlError(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return absl::DeadlineExceededError("the archive is too slow");
    case CURLE_COULDNT_RESOLVE_HOST:
      return absl::UnavailableError("the archive's name cannot be resolved");
    case CURLE_COULDNT_CONNECT:
      return absl::UnavailableError("the archive cannot be reached");
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR:
      return FieldError(absl::StatusCode::kUnauthenticated, "tls", "the archive's certificate is not trusted");
    case CURLE_SSL_CACERT_BADFILE:
      return FieldError(StatusCode::kInvalidArgument, "authorities_file",
                        "holds no certificates (PEM) or is not there");
    case CURLE_SSL_CONNECT_ERROR:
      return FieldError(absl::StatusCode::kUnauthenticated, "tls", "the handshake failed");
    case CURLE_PARTIAL_FILE:
      return absl::DataLossError("the archive's answer was cut short");
    case CURLE_OUT_OF_MEMORY:
      return absl::ResourceExhaustedError("no memory for an HTTP request");
    default:
      return absl::UnavailableError(absl::StrCat("the exchange with the archive broke (curl ", int{code}, ")"));
  }
}

void InitialiseCurl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

// One request and its answer, as curl's callbacks see them.
struct Exchange {
  CURL* curl = nullptr;
  const HttpRequest* request = nullptr;
  const HttpOptions* options = nullptr;
  // Why a callback ended it.
  absl::Status status;
  bool has_begun = false;
  bool is_tired = false;  // of an explanation
  int64_t body_bytes = 0;
  int64_t given_bytes = 0;
  size_t header_bytes = 0;

  HttpReply Reply() const {
    HttpReply reply;
    long status_code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status_code);
    reply.status = static_cast<int>(status_code);
    const char* type = nullptr;
    curl_easy_getinfo(curl, CURLINFO_CONTENT_TYPE, &type);
    if (type != nullptr) reply.content_type = type;
    return reply;
  }
  bool IsWanted(int code) const { return (code >= 200 && code < 300) || (request->give && code == kConflict); }

  absl::Status Begin() {
    if (std::exchange(has_begun, true) || !request->begin) return absl::OkStatus();
    return request->begin(Reply());
  }
  absl::Status Take(absl::string_view bytes) {
    body_bytes += static_cast<int64_t>(bytes.size());
    if (!IsWanted(Reply().status)) {
      // An explanation, which nobody reads. It is passed over while it is short, which keeps the connection alive.
      is_tired = body_bytes > kBufferBytes;
      return is_tired ? absl::ResourceExhaustedError("the archive explains too much") : absl::OkStatus();
    }
    if (body_bytes > request->max_body_bytes) {
      return absl::ResourceExhaustedError("the archive's answer is larger than allowed");
    }
    INTRAWARP_RETURN_IF_ERROR(Begin());
    return request->take(bytes);
  }
  absl::StatusOr<size_t> Give(char* to, size_t size) {
    const int64_t left = request->given_bytes - given_bytes;
    const size_t wanted = static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(size)));
    if (wanted == 0) return 0;
    INTRAWARP_ASSIGN_OR_RETURN(const size_t given, request->give(to, wanted));
    given_bytes += static_cast<int64_t>(given);
    return given;
  }

  static size_t OnBody(char* bytes, size_t, size_t size, void* user) {
    Exchange& self = *static_cast<Exchange*>(user);
    self.status = self.Take({bytes, size});
    return self.status.ok() ? size : CURL_WRITEFUNC_ERROR;
  }
  static size_t OnHeader(char*, size_t, size_t size, void* user) {
    Exchange& self = *static_cast<Exchange*>(user);
    self.header_bytes += size;
    if (self.header_bytes <= kMaxHeaderBytes) return size;
    self.status = absl::ResourceExhaustedError("the archive's header is too long");
    return CURL_WRITEFUNC_ERROR;
  }
  static size_t OnGive(char* to, size_t, size_t size, void* user) {
    Exchange& self = *static_cast<Exchange*>(user);
    const absl::StatusOr<size_t> given = self.Give(to, size);
    if (given.ok()) return *given;
    self.status = given.status();
    return CURL_READFUNC_ABORT;
  }
};

bool Append(HeaderList& list, const std::string& line) {
  curl_slist* longer = curl_slist_append(list.get(), line.c_str());
  if (longer == nullptr) return false;
  (void)list.release();
  list.reset(longer);
  return true;
}

}  // namespace

struct HttpClient::Impl {
  HttpOptions options;
  std::string base;    // without a slash at its end
  std::string origin;  // of it
  CURL* curl = nullptr;
  CURLM* multi = nullptr;  // which can be left while nothing comes

  ~Impl() {
    if (curl != nullptr) curl_easy_cleanup(curl);
    if (multi != nullptr) curl_multi_cleanup(multi);
  }

  absl::StatusOr<HeaderList> Headers(const HttpRequest& request) const {
    std::vector<std::string> lines = {absl::StrCat("Accept: ", request.accept)};
    if (!request.content_type.empty()) lines.push_back(absl::StrCat("Content-Type: ", request.content_type));
    if (!options.token_file.empty()) {
      INTRAWARP_ASSIGN_OR_RETURN(const std::string token, ReadToken(options.token_file));
      lines.push_back(absl::StrCat("Authorization: Bearer ", token));
    }
    HeaderList list;
    for (const std::string& line : lines) {
      if (!Append(list, line)) return absl::ResourceExhaustedError("no memory for an HTTP request");
    }
    return list;
  }

  void SetBounds(std::chrono::seconds left) const {
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_NETRC, long{CURL_NETRC_IGNORED});
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(options.connect_timeout.count()));
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, static_cast<long>(left.count()));
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(kLeastRate));
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall.count()));
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "intrawarp");
  }

  void SetTls() const {
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
    if (options.authorities_file.empty()) return;
    curl_easy_setopt(curl, CURLOPT_CAINFO, options.authorities_file.c_str());
    // Debian's curl would trust the system's authorities beside the file's.
    curl_easy_setopt(curl, CURLOPT_CAPATH, nullptr);
  }

  void SetExchange(Exchange& exchange) const {
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Exchange::OnBody);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Exchange::OnHeader);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
    if (!exchange.request->give) return;
    curl_easy_setopt(curl, CURLOPT_POST, 1L);
    // On a connection that the server has closed meanwhile curl would want to send the beginning of the body again.
    curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(exchange.request->given_bytes));
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, &Exchange::OnGive);
    curl_easy_setopt(curl, CURLOPT_READDATA, &exchange);
  }

  // Where a redirect leads, if it may be followed.
  std::string RedirectTarget(const HttpRequest& request) const {
    const char* text = nullptr;
    curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &text);
    if (text == nullptr || request.give) return "";
    const absl::StatusOr<Url> url = ParseUrl(text);
    return url.ok() && OriginOf(*url) == origin ? text : "";
  }

  // Runs what is set. The error of the exchange is that of the caller.
  CURLcode Perform(Exchange& exchange) const {
    if (curl_multi_add_handle(multi, curl) != CURLM_OK) return CURLE_FAILED_INIT;
    CURLcode code = CURLE_OK;
    for (int running = 1; running > 0;) {
      if (options.cancelled && options.cancelled()) {
        exchange.status = absl::CancelledError("the request to the archive was cancelled");
        code = CURLE_ABORTED_BY_CALLBACK;
        break;
      }
      if (curl_multi_perform(multi, &running) != CURLM_OK) code = CURLE_FAILED_INIT;
      if (code != CURLE_OK) break;
      if (running > 0) (void)curl_multi_poll(multi, nullptr, 0, kPollMs, nullptr);
    }
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg == CURLMSG_DONE) code = message->data.result;
    }
    curl_multi_remove_handle(multi, curl);
    return code;
  }

  int64_t RetryAfter() const {
    curl_off_t seconds = 0;
    curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &seconds);
    return seconds;
  }

  absl::StatusOr<HttpReply> RunOnce(const std::string& url, const HttpRequest& request, std::chrono::seconds left,
                                    std::string* redirect) {
    Exchange exchange{.curl = curl, .request = &request, .options = &options, .status = {}};
    // Keeps the connection.
    curl_easy_reset(curl);
    SetBounds(left);
    SetTls();
    SetExchange(exchange);
    INTRAWARP_ASSIGN_OR_RETURN(const HeaderList headers, Headers(request));
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    const CURLcode code = Perform(exchange);
    // The list goes with this call, which curl must not look at any more.
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, nullptr);
    const HttpReply reply = exchange.Reply();
    *redirect = RedirectTarget(request);
    // An archive may refuse before it has taken the whole request, explain that at any length, and hang up.
    const bool is_refusal = reply.status >= 300 && !exchange.IsWanted(reply.status);
    const bool is_over = exchange.status.ok() || exchange.is_tired;
    if (is_refusal && is_over && code != CURLE_OPERATION_TIMEDOUT) return ReplyError(reply.status, RetryAfter());
    INTRAWARP_RETURN_IF_ERROR(exchange.status);
    if (code != CURLE_OK) return CurlError(code);
    if (!exchange.IsWanted(reply.status)) return ReplyError(reply.status, 0);
    INTRAWARP_RETURN_IF_ERROR(exchange.Begin());
    return reply;
  }
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::Create(HttpOptions options) {
  InitialiseCurl();
  INTRAWARP_ASSIGN_OR_RETURN(const Url url, ParseUrl(options.base_url));
  INTRAWARP_RETURN_IF_ERROR(CheckUrl(url, options));
  if (!options.token_file.empty()) INTRAWARP_RETURN_IF_ERROR(ReadToken(options.token_file).status());
  auto impl = std::make_unique<Impl>();
  impl->origin = OriginOf(url);
  impl->base = PartOf(url, CURLUPART_URL);
  while (absl::EndsWith(impl->base, "/")) impl->base.pop_back();
  impl->options = std::move(options);
  impl->curl = curl_easy_init();
  impl->multi = curl_multi_init();
  if (impl->curl == nullptr || impl->multi == nullptr)
    return absl::ResourceExhaustedError("no memory for an HTTP client");
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

absl::StatusOr<HttpReply> HttpClient::Run(const HttpRequest& request) {
  const auto end = std::min(impl_->options.end, std::chrono::steady_clock::now() + impl_->options.timeout);
  std::string url = impl_->base + request.target;
  for (int redirects = 0;; ++redirects) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return CurlError(CURLE_OPERATION_TIMEDOUT);
    std::string redirect;
    absl::StatusOr<HttpReply> reply = impl_->RunOnce(url, request, left, &redirect);
    if (redirect.empty() || redirects == kMaxRedirects) return reply;
    url = redirect;
  }
}

absl::Status CheckAddress(const HttpOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const Url url, ParseUrl(options.base_url));
  return CheckUrl(url, options);
}

std::string EscapeUrl(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const bool is_plain = absl::ascii_isalnum(c) || absl::string_view("-._~").find(c) != absl::string_view::npos;
    if (is_plain) {
      escaped += c;
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

}  // namespace intrawarp::dicomweb
