// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_server.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/base/peer_address.h"
#include "server/base/tcp_listener.h"
#include "server/identity/method_roles.h"
#include "server/monitor/log.h"
#include "server/page/page_api.h"
#include "server/page/page_assets.h"
#include "server/page/page_connections.h"
#include "server/page/page_request.h"
#include "server/page/page_tls.h"

namespace intrawarp::server {
namespace {

constexpr std::chrono::milliseconds kTick{250};
constexpr std::chrono::seconds kHeaderPatience{5};
constexpr int kSendBuffer = 512 << 10;

constexpr std::pair<const char*, const char*> kSecurityHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; base-uri "
     "'none'; form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cross-Origin-Opener-Policy", "same-origin"}};

MHD_Result AddTo(void* map, MHD_ValueKind, const char* name, const char* value) {
  std::string key = name;
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
  (*static_cast<std::map<std::string, std::string>*>(map))[key] = value == nullptr ? "" : value;
  return MHD_YES;
}

MHD_Response* FromBytes(const std::string& bytes) {
  return MHD_create_response_from_buffer(bytes.size(), const_cast<char*>(bytes.data()), MHD_RESPMEM_MUST_COPY);
}

// Adds what every answer has, and gives the response away.
MHD_Result Queue(MHD_Connection* connection, const PageAnswer& answer, MHD_Response* response) {
  for (const auto& [name, value] : kSecurityHeaders) MHD_add_response_header(response, name, value);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.content_type.c_str());
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, answer.etag.empty() ? "no-store" : "no-cache");
  if (!answer.etag.empty()) MHD_add_response_header(response, MHD_HTTP_HEADER_ETAG, answer.etag.c_str());
  if (answer.status == 401) MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
  if (answer.status == 405) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD, PUT");
  const MHD_Result result = MHD_queue_response(connection, static_cast<unsigned>(answer.status), response);
  MHD_destroy_response(response);
  return result;
}

// A request under way. Its stream lives as long.
struct Request {
  PageRequest request;
  std::shared_ptr<PagePlane> plane;  // null: none is drawn
  bool has_body = false;
};

}  // namespace

class PageServer::Impl {
 public:
  // `tls` null: none.
  Impl(ServerContext& context, IdentifyFn identify, AuditTrail& audit, const PageLimits& limits,
       std::unique_ptr<PageTls> tls, bool has_identities)
      : limits_(limits),
        tls_(std::move(tls)),
        has_identities_(has_identities),
        seams_(context.seams),
        hub_(context.seams, [this] { Wake(); }),
        api_(context, std::move(identify), audit, hub_),
        connections_(limits.connections, limits.streams) {}

  ~Impl() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      for (auto& [id, connection] : connections_.all()) {
        if (connection.stream != nullptr) connection.stream->End();
      }
    }
    wake_.notify_all();
    if (ticker_.joinable()) ticker_.join();
    api_.StopDrawing();
    ResumeAll();
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
  }

  absl::Status Start(const std::string& listen) {
    INTRAWARP_ASSIGN_OR_RETURN(const TcpListener listener, TcpListener::Bind(listen));
    address_ = listener.address();
    const int fd = dup(listener.fd());  // the daemon closes it
    std::vector<MHD_OptionItem> options = {
        {MHD_OPTION_CONNECTION_LIMIT, static_cast<intptr_t>(2 * limits_.connections + 16), nullptr},
        {MHD_OPTION_CONNECTION_TIMEOUT, static_cast<intptr_t>(limits_.stall.count()), nullptr},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, static_cast<intptr_t>(limits_.connection_bytes), nullptr},
        {MHD_OPTION_NOTIFY_COMPLETED, reinterpret_cast<intptr_t>(&Completed), this},
        {MHD_OPTION_NOTIFY_CONNECTION, reinterpret_cast<intptr_t>(&Notified), this},
        {MHD_OPTION_LISTEN_SOCKET, fd, nullptr}};
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    if (has_tls()) {
      flags |= MHD_USE_TLS;
      options.push_back(
          {MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>("SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2")});
    }
    options.push_back({MHD_OPTION_END, 0, nullptr});
    daemon_ = has_tls() ? MHD_start_daemon(flags, 0, nullptr, nullptr, &Handle, this, MHD_OPTION_ARRAY, options.data(),
                                           MHD_OPTION_HTTPS_CERT_CALLBACK2, &RetrieveCertificate, MHD_OPTION_END)
                        : MHD_start_daemon(flags, 0, nullptr, nullptr, &Handle, this, MHD_OPTION_ARRAY, options.data(),
                                           MHD_OPTION_END);
    if (daemon_ == nullptr) {
      close(fd);
      return absl::UnavailableError(absl::StrCat("cannot serve the page on ", listen));
    }
    ticker_ = std::thread([this] { TickLoop(); });
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }
  bool has_tls() const { return tls_ != nullptr; }
  size_t connections() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return connections_.all().size();
  }
  size_t streams() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return connections_.streams();
  }

 private:
  using Id = PageConnections::Id;

  // ---- what libmicrohttpd calls, on its thread ----

  static void Notified(void* self, MHD_Connection* connection, void** id, MHD_ConnectionNotificationCode code) {
    static_cast<Impl*>(self)->Notify(connection, id, code);
  }
  static void Completed(void* self, MHD_Connection* connection, void** request, MHD_RequestTerminationCode) {
    static_cast<Impl*>(self)->Complete(connection, static_cast<Request*>(std::exchange(*request, nullptr)));
  }
  static MHD_Result Handle(void* self, MHD_Connection* connection, const char* url, const char* method, const char*,
                           const char*, size_t* upload_bytes, void** request) {
    return static_cast<Impl*>(self)->HandleRequest(connection, url, method, upload_bytes, request);
  }
  static ssize_t ReadStream(void* reader, uint64_t, char* to, size_t most) {
    auto* const from = static_cast<Reader*>(reader);
    return from->impl->Read(*from, to, most);
  }
  struct Reader {
    Impl* impl;
    MHD_Connection* connection;
    Id id;
    std::shared_ptr<PageStream> stream;
  };

  static Id IdOf(MHD_Connection* connection) {
    return reinterpret_cast<Id>(
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context);
  }

  void Notify(MHD_Connection* connection, void** id, MHD_ConnectionNotificationCode code) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
      suspended_.erase(connection);
      return connections_.Leave(reinterpret_cast<Id>(*id));
    }
    if (has_tls()) UseOnThisThread(*tls_);
    const int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    const auto patience = static_cast<unsigned>(std::chrono::milliseconds(limits_.stall).count());
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
    const std::optional<PeerAddress> peer = PeerOf(fd);
    *id = reinterpret_cast<void*>(connections_.Enter(fd, peer ? NetworkOf(*peer) : "", seams_.steady_now()));
    ResumeEnded();
  }

  void Complete(MHD_Connection* connection, Request* request) {
    delete request;
    std::lock_guard<std::mutex> lock(mutex_);
    suspended_.erase(connection);
    const Id id = IdOf(connection);
    if (connections_.all().count(id) != 0) connections_.RequestEnded(id, seams_.steady_now());
  }

  MHD_Result HandleRequest(MHD_Connection* connection, const char* url, const char* method, size_t* upload_bytes,
                           void** state) {
    if (*state == nullptr) {
      auto* const fresh = new Request();
      fresh->request.method = method;
      fresh->request.path = url;
      MHD_get_connection_values(connection, MHD_HEADER_KIND, &AddTo, &fresh->request.headers);
      MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, &AddTo, &fresh->request.query);
      *state = fresh;
      std::lock_guard<std::mutex> lock(mutex_);
      connections_.RequestCame(IdOf(connection));
      return MHD_YES;
    }
    auto& request = *static_cast<Request*>(*state);
    if (*upload_bytes > 0) {
      request.has_body = true;
      *upload_bytes = 0;
      return MHD_YES;
    }
    if (request.plane != nullptr) return SendPlane(connection, request);
    if (request.has_body) return Send(connection, {413, "no request has a body\n"});
    return Answer(connection, request);
  }

  // ---- answers ----

  MHD_Result Send(MHD_Connection* connection, const PageAnswer& answer) {
    return Queue(connection, answer, FromBytes(answer.body));
  }

  MHD_Result Answer(MHD_Connection* connection, Request& request) {
    const std::string& method = request.request.method;
    if (!IsOwnSite(request.request, has_tls(), has_identities_))
      return Send(connection, {403, "another site's request\n"});
    const std::optional<PageTarget> target = ParseTarget(request.request.path);
    const bool is_tip = target && target->what == "tip";
    if (is_tip ? method != "PUT" : method != "GET" && (method != "HEAD" || target)) {
      return Send(connection, {405, "not this method\n"});
    }
    return target ? AnswerCaller(connection, *target, request) : SendAsset(connection, request.request);
  }

  MHD_Result SendAsset(MHD_Connection* connection, const PageRequest& request) {
    const std::string name = request.path == "/" ? "index.html" : request.path.substr(1);
    for (const PageAsset& asset : PageAssets()) {
      if (asset.name != name) continue;
      PageAnswer answer{200, "", std::string(asset.content_type), std::string(asset.etag)};
      if (request.header("if-none-match") == answer.etag) {
        answer.status = 304;
        return Send(connection, answer);
      }
      return Queue(connection, answer,
                   MHD_create_response_from_buffer(asset.bytes.size(), const_cast<char*>(asset.bytes.data()),
                                                   MHD_RESPMEM_PERSISTENT));
    }
    return Send(connection, {404, "not found\n"});
  }

  MHD_Result AnswerCaller(MHD_Connection* connection, const PageTarget& target, Request& request) {
    const Id id = IdOf(connection);
    std::string network;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      network = connections_.at(id).network;
    }
    const absl::StatusOr<Identity> caller = api_.Admit(request.request, network);
    if (!caller.ok()) return Send(connection, AnswerOf(caller.status()));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      connections_.CallerKnown(id);
    }
    if (target.what == "tip") return Send(connection, api_.SetTip(target.session, request.request, *caller));
    if (target.what == "planes.png") return BeginPlane(connection, target, request, *caller);
    absl::StatusOr<std::shared_ptr<PageStream>> stream =
        api_.OpenStream(target, request.request, *caller, network, [this] { Wake(); });
    if (!stream.ok()) return Send(connection, AnswerOf(stream.status()));
    return SendStream(connection, id, *std::move(stream), has_identities_ ? caller->name : network,
                      target.what == "state" ? "application/x-ndjson" : "application/octet-stream");
  }

  MHD_Result SendStream(MHD_Connection* connection, Id id, std::shared_ptr<PageStream> stream, std::string streams_of,
                        const char* content_type) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      connections_.BeginStream(id, std::move(streams_of), stream);
      ResumeEnded();
    }
    auto* const reader = new Reader{this, connection, id, std::move(stream)};
    MHD_Response* const response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, limits_.connection_bytes / 2, &ReadStream, reader,
                                          [](void* from) { delete static_cast<Reader*>(from); });
    return Queue(connection, {200, "", content_type}, response);
  }

  // ---- planes ----

  MHD_Result BeginPlane(MHD_Connection* connection, const PageTarget& target, Request& request,
                        const Identity& caller) {
    absl::StatusOr<std::shared_ptr<PagePlane>> plane = api_.FindPlane(target.session, request.request, caller);
    if (!plane.ok()) return Send(connection, AnswerOf(plane.status()));
    request.plane = *std::move(plane);
    std::lock_guard<std::mutex> lock(mutex_);
    Suspend(connection);
    const bool begun = !stopping_ && api_.Draw(request.plane, [this, connection, plane = request.plane] {
      std::lock_guard<std::mutex> lock(mutex_);
      plane->is_drawn = true;
      Resume(connection);
    });
    if (begun) return MHD_YES;
    request.plane->answer = {503, "too many planes are being drawn\n"};
    request.plane->is_drawn = true;
    Resume(connection);
    return MHD_YES;
  }

  MHD_Result SendPlane(MHD_Connection* connection, const Request& request) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!request.plane->is_drawn) return MHD_NO;  // the server stops
    }
    return Send(connection, request.plane->answer);
  }

  // ---- streams that wait ----

  ssize_t Read(const Reader& reader, char* to, size_t most) {
    while (true) {
      const uint64_t seen = changes_.load();
      const std::optional<size_t> count = reader.stream->Read(to, most);
      if (!count) return MHD_CONTENT_READER_END_OF_STREAM;
      if (*count > 0) return static_cast<ssize_t>(*count);
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return MHD_CONTENT_READER_END_OF_STREAM;
      if (changes_.load() != seen) continue;
      Suspend(reader.connection);
      return 0;
    }
  }

  // With the mutex held.
  void Suspend(MHD_Connection* connection) {
    MHD_suspend_connection(connection);
    suspended_.insert(connection);
  }
  void Resume(MHD_Connection* connection) {
    if (suspended_.erase(connection) != 0) MHD_resume_connection(connection);
  }
  // A connection that gave way is not served before it is resumed.
  void ResumeEnded() {
    ++changes_;
    woken_ = true;
    wake_.notify_one();
  }

  void ResumeAll() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++changes_;
    const std::set<MHD_Connection*> suspended = std::exchange(suspended_, {});
    for (MHD_Connection* connection : suspended) MHD_resume_connection(connection);
  }

  void Wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    ResumeEnded();
  }

  void ResumeStreams() {
    ++changes_;
    for (auto it = suspended_.begin(); it != suspended_.end();) {
      MHD_Connection* const connection = *it;
      const auto found = connections_.all().find(IdOf(connection));
      const bool is_stream = found != connections_.all().end() && found->second.stream != nullptr;
      it = is_stream ? suspended_.erase(it) : std::next(it);
      if (is_stream) MHD_resume_connection(connection);
    }
  }

  // Wakes the streams that wait: each tick, and when there is something new. A certificate that the page cannot use is
  // logged here, though nobody may look at the page.
  void TickLoop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
      wake_.wait_for(lock, kTick, [this] { return stopping_ || woken_; });
      woken_ = false;
      if (has_tls()) tls_->RefreshAndLog();
      connections_.ShutSilent(seams_.steady_now(), kHeaderPatience);
      ResumeStreams();
    }
  }

  const PageLimits limits_;
  const std::unique_ptr<PageTls> tls_;
  const bool has_identities_;
  const Seams& seams_;
  // Before what is told of changes.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
  bool stopping_ = false;
  std::atomic<uint64_t> changes_{0};
  std::set<MHD_Connection*> suspended_;
  ViewerHub hub_;
  PageApi api_;
  PageConnections connections_;
  std::string address_;
  MHD_Daemon* daemon_ = nullptr;
  std::thread ticker_;
};

PageServer::PageServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PageServer::~PageServer() = default;

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(const PageOptions& options, const AccessFiles& access,
                                                              const TlsFiles& tls, ServerContext& context,
                                                              IdentifyFn identify, AuditTrail& audit,
                                                              const PageLimits& limits) {
  std::unique_ptr<PageTls> page_tls;
  if (access.has_tls()) {
    page_tls = std::make_unique<PageTls>(tls);
    INTRAWARP_RETURN_IF_ERROR(page_tls->Refresh());
    if (page_tls->material() == nullptr) return absl::InvalidArgumentError("tls_cert: there is no certificate");
  }
  auto impl =
      std::make_unique<Impl>(context, std::move(identify), audit, limits, std::move(page_tls), access.has_identities());
  INTRAWARP_RETURN_IF_ERROR(impl->Start(options.listen));
  return std::unique_ptr<PageServer>(new PageServer(std::move(impl)));
}

const std::string& PageServer::address() const { return impl_->address(); }
bool PageServer::has_tls() const { return impl_->has_tls(); }
size_t PageServer::connections() const { return impl_->connections(); }
size_t PageServer::streams() const { return impl_->streams(); }

}  // namespace intrawarp::server
