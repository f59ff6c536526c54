// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/link_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::igtl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr LinkLoop::PeerId kEverybody = 0;
// The most bytes that are read of one peer before the others have their turn: their checksum takes some 10 us.
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr int kTickMs = 50;
constexpr int kEvents = 64;
constexpr size_t kMaxRequestBytes = size_t{8} << 10;
// Answers that wait for the loop; more come only from a peer that asks faster than it reads.
constexpr size_t kMaxPosted = 4096;

}  // namespace

struct LinkLoop::Connection {
  Connection(PeerId id, Kind kind, FileDescriptor socket, const LinkOptions& options, MessageDecoder::Lender lender)
      : id(id),
        kind(kind),
        socket(std::move(socket)),
        decoder(options.limits, std::move(lender)),
        queue(options.queue_devices) {}

  const PeerId id;
  const Kind kind;
  FileDescriptor socket;
  int target = -1;  // in targets_; -1: the peer connected
  bool is_consumer = false;
  bool is_connecting = false;
  bool is_closed = false;
  bool waits_to_write = false;
  MessageDecoder decoder;
  OutQueue queue;
  std::shared_ptr<const std::string> writing;
  size_t written = 0;
  Clock::time_point read_at = Clock::now();
  Clock::time_point written_at = Clock::now();
  std::string request;

  bool has_output() const { return writing != nullptr || !queue.empty(); }
};

absl::StatusOr<std::unique_ptr<LinkLoop>> LinkLoop::Create(const LinkOptions& options, Handler handler,
                                                           Counters* counters) {
  std::unique_ptr<LinkLoop> loop(new LinkLoop(options, std::move(handler), counters));
  if (!loop->epoll_.is_open() || !loop->wake_.is_open()) return absl::UnavailableError("epoll: no descriptor");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kEverybody;
  if (epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return absl::UnavailableError("epoll_ctl failed");
  }
  return loop;
}

LinkLoop::LinkLoop(const LinkOptions& options, Handler handler, Counters* counters)
    : options_(options),
      handler_(std::move(handler)),
      counters_(*counters),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      buffer_(kReadBytes) {}

LinkLoop::~LinkLoop() = default;

absl::StatusOr<int> LinkLoop::AddListener(const HostPort& address, Kind kind) {
  INTRAWARP_ASSIGN_OR_RETURN(const SocketAddress resolved, Resolve(address));
  INTRAWARP_ASSIGN_OR_RETURN(FileDescriptor socket, ListenOn(resolved));
  const int port = BoundPort(socket);
  Add(std::make_unique<Connection>(++last_id_, kind, std::move(socket), options_, handler_.lender), EPOLLIN);
  return port;
}

absl::StatusOr<int> LinkLoop::Listen(const HostPort& address) { return AddListener(address, Kind::kListener); }

absl::StatusOr<int> LinkLoop::ServeMetrics(const HostPort& address, std::function<std::string()> text) {
  metrics_text_ = std::move(text);
  return AddListener(address, Kind::kMetricsListener);
}

absl::Status LinkLoop::Connect(const HostPort& address, bool is_consumer) {
  INTRAWARP_ASSIGN_OR_RETURN(const SocketAddress resolved, Resolve(address));
  targets_.push_back({resolved, is_consumer, false, Clock::now()});
  return absl::OkStatus();
}

void LinkLoop::Add(std::unique_ptr<Connection> connection, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<uint64_t>(connection->id);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket.get(), &event) != 0) return;
  connections_.emplace(connection->id, std::move(connection));
}

void LinkLoop::Run() {
  epoll_event events[kEvents];
  while (true) {
    ConnectTargets();
    const int count = epoll_wait(epoll_.get(), events, kEvents, kTickMs);
    for (int i = 0; i < count; ++i) {
      const auto id = static_cast<PeerId>(events[i].data.u64);
      if (id == kEverybody) {
        uint64_t woken = 0;
        (void)!read(wake_.get(), &woken, sizeof(woken));
        continue;
      }
      const auto it = connections_.find(id);
      if (it != connections_.end() && !it->second->is_closed) HandleEvents(*it->second, events[i].events);
      DeliverPosted();
    }
    if (handler_.on_tick) handler_.on_tick();
    DeliverPosted();
    CloseStalled();
    RemoveClosed();
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_stopped_) return;
  }
}

void LinkLoop::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void LinkLoop::Broadcast(OutMessage message) { Post({kEverybody, std::move(message)}); }
void LinkLoop::Send(PeerId peer, OutMessage message) { Post({peer, std::move(message)}); }

void LinkLoop::Post(Posted posted) {
  bool was_empty = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    was_empty = posted_.empty();
    if (posted_.size() >= kMaxPosted) return counters_.Lose(Lost::kConsumerQueue);
    posted_.push_back(std::move(posted));
  }
  const uint64_t one = 1;
  if (was_empty) (void)!write(wake_.get(), &one, sizeof(one));
}

void LinkLoop::DeliverPosted() {
  std::vector<Posted> posted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    posted.swap(posted_);
  }
  for (const Posted& each : posted) {
    for (auto& [id, connection] : connections_) {
      if (connection->is_closed || connection->is_connecting || connection->kind != Kind::kPeer) continue;
      if (each.peer == id || (each.peer == kEverybody && connection->is_consumer)) Queue(*connection, each.message);
    }
  }
  if (posted.empty()) return;
  for (auto& [id, connection] : connections_) {
    if (!connection->is_closed && !connection->is_connecting && connection->has_output()) Write(*connection);
  }
}

void LinkLoop::Queue(Connection& connection, const OutMessage& message) {
  if (!connection.has_output()) connection.written_at = Clock::now();
  switch (connection.queue.Push(message)) {
    case OutQueue::Put::kAdded:
      return;
    case OutQueue::Put::kReplaced:
      return counters_.Lose(Lost::kConsumer);
    case OutQueue::Put::kRefused:
      return counters_.Lose(Lost::kConsumerQueue);
  }
}

void LinkLoop::ConnectTargets() {
  const auto now = Clock::now();
  for (size_t i = 0; i < targets_.size(); ++i) {
    Target& target = targets_[i];
    if (target.is_connected || now < target.next_try) continue;
    target.next_try = now + options_.reconnect_pause;
    absl::StatusOr<FileDescriptor> socket = StartConnecting(target.address);
    if (!socket.ok()) continue;
    auto connection =
        std::make_unique<Connection>(++last_id_, Kind::kPeer, *std::move(socket), options_, handler_.lender);
    connection->target = static_cast<int>(i);
    connection->is_consumer = target.is_consumer;
    connection->is_connecting = connection->waits_to_write = true;
    target.is_connected = true;
    Add(std::move(connection), EPOLLIN | EPOLLOUT);
  }
}

void LinkLoop::Accept(const Connection& listener) {
  FileDescriptor socket(accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.is_open()) return;
  int peers = 0;
  for (const auto& [id, each] : connections_) {
    if (each->kind == Kind::kPeer || each->kind == Kind::kMetricsClient) ++peers;
  }
  if (peers >= options_.max_peers) return;
  PrepareStream(socket, options_.stall_timeout);
  const bool is_peer = listener.kind == Kind::kListener;
  auto connection = std::make_unique<Connection>(++last_id_, is_peer ? Kind::kPeer : Kind::kMetricsClient,
                                                 std::move(socket), options_, handler_.lender);
  connection->is_consumer = is_peer;
  const PeerId id = connection->id;
  Add(std::move(connection), EPOLLIN);
  if (!is_peer) return;
  ++counters_.connections;
  ++counters_.peers;
  if (handler_.on_connected) handler_.on_connected(id, true);
}

void LinkLoop::HandleEvents(Connection& connection, uint32_t events) {
  if (connection.kind == Kind::kListener || connection.kind == Kind::kMetricsListener) return Accept(connection);
  if (connection.is_connecting) return FinishConnecting(connection);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read(connection);
  if (!connection.is_closed && (events & EPOLLOUT) != 0) Write(connection);
}

void LinkLoop::FinishConnecting(Connection& connection) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(connection.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    return Close(connection);
  }
  connection.is_connecting = false;
  PrepareStream(connection.socket, options_.stall_timeout);
  ++counters_.connections;
  ++counters_.peers;
  if (handler_.on_connected) handler_.on_connected(connection.id, connection.is_consumer);
  Write(connection);
}

void LinkLoop::Read(Connection& connection) {
  const ssize_t got = recv(connection.socket.get(), buffer_.data(), buffer_.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return Close(connection);
  connection.read_at = Clock::now();
  const absl::string_view bytes(buffer_.data(), static_cast<size_t>(got));
  if (connection.kind == Kind::kMetricsClient) return ReadRequest(connection, bytes);
  counters_.bytes_in += got;
  const absl::Status followed = connection.decoder.Feed(bytes, [&](absl::StatusOr<Message> message) {
    if (message.ok()) {
      ++counters_.messages_in;
    } else {
      counters_.Lose(absl::IsDataLoss(message.status()) ? Lost::kChecksum : Lost::kContent);
    }
    handler_.on_message(connection.id, std::move(message));
  });
  if (followed.ok()) return;
  counters_.Lose(Lost::kContent);
  handler_.on_message(connection.id, followed);
  Close(connection);
}

void LinkLoop::ReadRequest(Connection& connection, absl::string_view bytes) {
  connection.request.append(bytes.data(), bytes.size());
  if (connection.request.size() > kMaxRequestBytes) return Close(connection);
  if (connection.writing != nullptr || connection.request.find("\r\n\r\n") == std::string::npos) return;
  const bool is_get = connection.request.rfind("GET ", 0) == 0;
  const std::string body = is_get ? metrics_text_() : "only GET is served\n";
  connection.writing = std::make_shared<const std::string>(
      absl::StrCat("HTTP/1.1 ", is_get ? "200 OK" : "405 Method Not Allowed",
                   "\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\nContent-Length: ", body.size(),
                   "\r\n\r\n", body));
  Write(connection);
}

void LinkLoop::Write(Connection& connection) {
  while (connection.has_output()) {
    if (connection.writing == nullptr) connection.writing = connection.queue.Pop().bytes;
    const std::string& bytes = *connection.writing;
    const ssize_t put = send(connection.socket.get(), bytes.data() + connection.written,
                             bytes.size() - connection.written, MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (put < 0) return Close(connection);
    connection.written_at = Clock::now();
    connection.written += static_cast<size_t>(put);
    if (connection.kind == Kind::kPeer) counters_.bytes_out += put;
    if (connection.written < bytes.size()) continue;
    connection.writing = nullptr;
    connection.written = 0;
    if (connection.kind == Kind::kMetricsClient) return Close(connection);
    ++counters_.messages_out;
  }
  if (connection.waits_to_write == connection.has_output()) return;
  connection.waits_to_write = connection.has_output();
  epoll_event event{};
  event.events = connection.waits_to_write ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(connection.id);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event) != 0) Close(connection);
}

void LinkLoop::CloseStalled() {
  const auto now = Clock::now();
  for (auto& [id, each] : connections_) {
    if (each->is_closed || each->kind == Kind::kListener || each->kind == Kind::kMetricsListener) continue;
    const bool waits_for_input = each->decoder.is_within_message() || each->kind == Kind::kMetricsClient;
    const bool is_silent = waits_for_input && now - each->read_at > options_.stall_timeout;
    const bool takes_nothing =
        (each->has_output() || each->is_connecting) && now - each->written_at > options_.stall_timeout;
    if (is_silent || takes_nothing) Close(*each);
  }
}

void LinkLoop::Close(Connection& connection) {
  if (connection.is_closed) return;
  connection.is_closed = true;
  if (connection.kind == Kind::kPeer && !connection.is_connecting) {
    ++counters_.disconnections;
    --counters_.peers;
  }
  if (connection.target < 0) return;
  targets_[connection.target].is_connected = false;
  targets_[connection.target].next_try = Clock::now() + options_.reconnect_pause;
}

void LinkLoop::RemoveClosed() {
  std::erase_if(connections_, [](const auto& each) { return each.second->is_closed; });
}

}  // namespace intrawarp::igtl
