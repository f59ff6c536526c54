// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/http_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "server/base/fair_places.h"
#include "server/base/peer_address.h"
#include "server/base/tcp_listener.h"

namespace intrawarp::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kHeaderEnd[] = "\r\n\r\n";
// How long a full table of descriptors keeps the listener from being polled.
constexpr std::chrono::milliseconds kNoDescriptorPause{100};
// Then the connections that are there have their turn. Each turn looks at all of them.
constexpr int kAcceptsAtOnce = 1024;
// Between two looks for connections whose time is over.
constexpr std::chrono::milliseconds kDropPeriod{50};

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

std::string AnswerText(const HttpPage& page, bool head) {
  return absl::StrCat("HTTP/1.1 ", page.status, " ", ReasonPhrase(page.status), "\r\nContent-Type: ", page.content_type,
                      "\r\nContent-Length: ", page.body.size(), "\r\nConnection: close\r\n\r\n", head ? "" : page.body);
}

HttpPage Plain(int status, std::string body) {
  HttpPage page;
  page.status = status;
  page.body = std::move(body);
  return page;
}

}  // namespace

class HttpServer::Loop {
 public:
  Loop(TcpListener listener, std::vector<HttpRoute> routes, const HttpLimits& limits)
      : listener_(std::move(listener)),
        routes_(std::move(routes)),
        limits_(limits),
        maker_([this] { MakerLoop(); }),
        network_([this] { NetworkLoop(); }) {}

  ~Loop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    ordered_.notify_one();
    wake_.Raise();
    network_.join();
    maker_.join();
  }

  const std::string& address() const { return listener_.address(); }

 private:
  struct Request {
    std::string method;
    std::string path;
  };

  // The first line of a request; nullopt when it is not one.
  static std::optional<Request> ParseRequestLine(const std::string& text) {
    const std::vector<std::string> words = absl::StrSplit(text.substr(0, text.find("\r\n")), ' ');
    if (words.size() != 3 || words[0].empty() || !absl::StartsWith(words[1], "/")) return std::nullopt;
    if (!absl::StartsWith(words[2], "HTTP/1.")) return std::nullopt;
    return Request{words[0], words[1].substr(0, words[1].find('?'))};
  }

  // kReading: the header comes; kMaking: a slow page is made; kWriting: the answer leaves; kDraining: the answer has
  // left, and what the client still sends is thrown away, since closing before would destroy the answer.
  enum class State { kReading, kMaking, kWriting, kDraining };

  // Who gives way first.
  static int RankOf(State state) {
    switch (state) {
      case State::kDraining:
        return 0;
      case State::kReading:
        return 1;
      case State::kMaking:
      case State::kWriting:
        break;
    }
    return 2;
  }

  struct Connection {
    Fd fd;
    std::string network;
    int rank = RankOf(State::kReading);
    State state = State::kReading;
    Clock::time_point deadline;  // not while kMaking
    std::string text;            // the header so far, then the answer
    size_t sent = 0;
  };

  // Connections are named by the order of their coming.
  using Id = uint64_t;
  using Connections = std::map<Id, Connection>;
  struct Order {
    Id id;
    const HttpRoute* route;
    bool head;
  };
  struct Made {
    Id id;
    std::string text;
  };

  void MakerLoop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      ordered_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
      if (stopping_) return;
      const Order order = orders_.front();
      lock.unlock();
      std::string text = AnswerText(order.route->make(), order.head);
      lock.lock();
      orders_.pop_front();
      made_.push_back({order.id, std::move(text)});
      wake_.Raise();
    }
  }

  // All that follow run on the network's thread.
  void NetworkLoop() {
    while (Poll()) {
      TakeMade();
      for (const auto& [id, events] : ready_) Serve(id, events);
      Accept();
      DropExpired();
    }
    connections_.clear();
  }

  void Enter(Id id, Connection connection) {
    places_.Enter(connection.network, id, connection.rank);
    connections_.emplace(id, std::move(connection));
  }
  void Drop(Connections::iterator it) {
    places_.Leave(it->second.network, it->first, it->second.rank);
    connections_.erase(it);
  }
  void KeepRank(Id id, Connection& connection) {
    const int rank = RankOf(connection.state);
    if (rank == connection.rank) return;
    places_.Leave(connection.network, id, connection.rank);
    places_.Enter(connection.network, id, rank);
    connection.rank = rank;
  }
  void MakeRoomFor(const std::string& network) {
    if (const std::optional<Id> id = places_.GivesWayFor(network)) Drop(connections_.find(*id));
  }

  // Waits for something to do; false when the server stops.
  bool Poll() {
    polled_.clear();
    ready_.clear();
    polled_.push_back({wake_.fd(), POLLIN, 0});
    if (Clock::now() >= accept_after_) polled_.push_back({listener_.fd(), POLLIN, 0});
    const size_t first = polled_.size();
    std::vector<Id> ids;
    for (const auto& [id, connection] : connections_) {
      polled_.push_back({connection.fd.get(), EventsOf(connection.state), 0});
      ids.push_back(id);
    }
    poll(polled_.data(), polled_.size(), TimeoutMs());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (polled_[first + i].revents != 0) ready_.emplace_back(ids[i], polled_[first + i].revents);
    }
    if (polled_[0].revents != 0) wake_.Clear();
    std::lock_guard<std::mutex> lock(mutex_);
    return !stopping_;
  }

  static int16_t EventsOf(State state) {
    if (state == State::kMaking) return 0;
    return state == State::kWriting ? POLLOUT : POLLIN;
  }

  int TimeoutMs() const {
    const Clock::time_point now = Clock::now();
    Clock::time_point next = Clock::time_point::max();
    if (accept_after_ > now) next = accept_after_;
    if (!connections_.empty()) next = std::min(next, next_drop_);
    if (next == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now);
    return static_cast<int>(std::max<int64_t>(left.count(), 0));
  }

  void Accept() {
    if (accept_after_ > Clock::now()) return;
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      Fd fd = listener_.Accept();
      if (!fd) return EndAccepting();
      Admit(std::move(fd));
    }
  }

  void EndAccepting() {
    if (errno != EMFILE && errno != ENFILE) return;
    // The one that waits is not lost; another one makes room for it.
    MakeRoomFor("");
    accept_after_ = Clock::now() + kNoDescriptorPause;
  }

  void Admit(Fd fd) {
    const std::optional<PeerAddress> peer = PeerOf(fd.get());
    if (!peer) return;  // it has gone again
    const Id id = next_id_++;
    Connection connection;
    connection.fd = std::move(fd);
    connection.network = NetworkOf(*peer);
    connection.deadline = Clock::now() + limits_.header_timeout;
    if (!Read(id, connection)) return;
    if (connections_.size() >= limits_.connections) MakeRoomFor(connection.network);
    connection.rank = RankOf(connection.state);
    Enter(id, std::move(connection));
  }

  void Serve(Id id, int16_t events) {
    const auto it = connections_.find(id);
    if (it == connections_.end()) return;
    Connection& connection = it->second;
    bool goes_on = true;
    if (connection.state == State::kReading) {
      goes_on = Read(id, connection);
    } else if (connection.state == State::kWriting) {
      goes_on = Write(connection);
    } else if (connection.state == State::kDraining) {
      goes_on = Drain(connection);
    } else {
      goes_on = (events & (POLLHUP | POLLERR)) == 0;
    }
    goes_on ? KeepRank(id, connection) : Drop(it);
  }

  bool Read(Id id, Connection& connection) {
    char buffer[2048];
    const ssize_t count = recv(connection.fd.get(), buffer, sizeof(buffer), 0);
    if (count == 0) return false;
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    connection.text.append(buffer, static_cast<size_t>(count));
    if (connection.text.find(kHeaderEnd) != std::string::npos) return Answer(id, connection);
    if (connection.text.size() <= limits_.header_bytes) return true;
    return Send(connection, AnswerText(Plain(431, "the header is too large\n"), false));
  }

  bool Answer(Id id, Connection& connection) {
    const std::optional<Request> request = ParseRequestLine(connection.text);
    if (!request) return Send(connection, AnswerText(Plain(400, "not an HTTP/1 request\n"), false));
    const bool head = request->method == "HEAD";
    if (!head && request->method != "GET") {
      return Send(connection, AnswerText(Plain(405, "only GET and HEAD\n"), false));
    }
    const auto route =
        std::find_if(routes_.begin(), routes_.end(), [&](const HttpRoute& r) { return r.path == request->path; });
    if (route == routes_.end()) return Send(connection, AnswerText(Plain(404, "not found\n"), head));
    if (!route->slow) return Send(connection, AnswerText(route->make(), head));
    std::lock_guard<std::mutex> lock(mutex_);
    if (orders_.size() >= limits_.slow_pages) return Send(connection, AnswerText(Plain(503, "busy\n"), head));
    orders_.push_back({id, &*route, head});
    connection.state = State::kMaking;
    ordered_.notify_one();
    return true;
  }

  void TakeMade() {
    std::vector<Made> made;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      made.swap(made_);
    }
    for (Made& page : made) {
      const auto it = connections_.find(page.id);
      if (it == connections_.end()) continue;
      Send(it->second, std::move(page.text)) ? KeepRank(it->first, it->second) : Drop(it);
    }
  }

  bool Send(Connection& connection, std::string text) {
    connection.state = State::kWriting;
    connection.deadline = Clock::now() + limits_.answer_timeout;
    connection.text = std::move(text);
    return Write(connection);
  }

  bool Write(Connection& connection) {
    const size_t left = connection.text.size() - connection.sent;
    const ssize_t count = send(connection.fd.get(), connection.text.data() + connection.sent, left, MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent += static_cast<size_t>(count);
    if (connection.sent < connection.text.size()) return true;
    shutdown(connection.fd.get(), SHUT_WR);
    connection.state = State::kDraining;
    connection.deadline = Clock::now() + limits_.header_timeout;
    return true;
  }

  static bool Drain(const Connection& connection) {
    char buffer[2048];
    const ssize_t count = recv(connection.fd.get(), buffer, sizeof(buffer), 0);
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

  void DropExpired() {
    const Clock::time_point now = Clock::now();
    if (now < next_drop_) return;
    next_drop_ = now + kDropPeriod;
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto next = std::next(it);
      if (it->second.state != State::kMaking && it->second.deadline <= now) Drop(it);
      it = next;
    }
  }

  const TcpListener listener_;
  const std::vector<HttpRoute> routes_;
  const HttpLimits limits_;
  const WakeEvent wake_;

  std::mutex mutex_;
  std::condition_variable ordered_;
  std::deque<Order> orders_;  // the first one is being made
  std::vector<Made> made_;
  bool stopping_ = false;

  // Only the network's thread uses these.
  Connections connections_;
  FairPlaces places_;  // of the connections
  std::vector<pollfd> polled_;
  std::vector<std::pair<Id, int16_t>> ready_;
  Id next_id_ = 0;
  Clock::time_point accept_after_;
  Clock::time_point next_drop_;

  std::thread maker_;
  std::thread network_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, std::vector<HttpRoute> routes,
                                                              const HttpLimits& limits) {
  INTRAWARP_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Bind(address));
  return std::unique_ptr<HttpServer>(
      new HttpServer(std::make_unique<Loop>(std::move(listener), std::move(routes), limits)));
}

HttpServer::HttpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

HttpServer::~HttpServer() = default;

const std::string& HttpServer::address() const { return loop_->address(); }

}  // namespace intrawarp::server
