// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/connection_gate.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "server/context/limits.h"
#include "server/rpc/receive_bound.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The tags that epoll gives for the two descriptors that are not connections.
constexpr uint64_t kStopped = 0;
constexpr uint64_t kListener = 1;
constexpr uint64_t kFirstId = 2;

// How long a full table of descriptors keeps the listener from being asked.
constexpr milliseconds kNoDescriptorPause{100};
// Between two looks at connections that bring something: what an unfinished header can grow by meanwhile.
constexpr milliseconds kWatchPause{1};
constexpr milliseconds kSweepPeriod{50};
constexpr milliseconds kLookPeriod{1000};
constexpr int kAcceptsAtOnce = 64;

// Who gives way first among the strangers of a network.
constexpr int kIsSilent = 0, kHasSpoken = 1, kHasAsked = 2;
// Until then nobody is taken for silent, unless half of all strangers are.
constexpr milliseconds kFirstWord{20};

// A stranger's TLS handshake with a chain of certificates, and the largest header; or a usual one and the 64 KiB of a
// message that HTTP/2 lets a client send before the server has answered.
constexpr int64_t kStrangerBytes = 96 << 10;
// And messages whose calls are not seen before they are whole, where the server's window updates tell of them: of one
// stranger, and of all strangers at once, since an unfinished header grows in memory by some eighty times its bytes.
constexpr int kUnseenMessages = 3;
constexpr int kUnseenMessagesOfAll = 4;
constexpr int64_t kPartOfMessage = 48 << 10;
// The server's settings (52 bytes) and its acknowledgement of the client's (9), which come late on a busy machine and
// say nothing of what the client sent.
constexpr int64_t kOpeningBytes = 64;
// A refused call may have sent that much of a message, which is thrown away unseen.
constexpr int64_t kRefusedBytes = 64 << 10;
constexpr milliseconds kRefusedPeriod{250};
// The bytes that a busy connection of a known caller is forgiven beside answers: messages of calls that nobody counted.
constexpr int64_t kForgivenBytes = 16 << 10;
constexpr milliseconds kForgivingPeriod{100};
// Bytes that a known caller sends for calls that are not seen yet, since a call is seen with its first message: held
// after kPatience, or beyond the second number at once. More while it has calls under way.
constexpr int64_t kKnownBytes = 3 << 20;
constexpr int64_t kKnownBytesAtOnce = 5 << 20;
constexpr int64_t kBusyBytes = 32 << 20;
constexpr milliseconds kPatience{3};
// The bytes that HTTP/2's flow control lets a stream bring before its reader asks for them.
constexpr int64_t kStreamBytes = 32 << 20;
// Acknowledgements of what was sent: window updates and pings of HTTP/2, in records of TLS.
constexpr int64_t kAckedPerByte = 64;
// Credit that a known caller's connection may have for what is still to come.
constexpr int64_t kSpareBytes = 1 << 20;
// Pings and their answers on a quiet connection.
constexpr int64_t kQuietBytesASecond = 64;

// Sets the options that gRPC sets on the sockets that it accepts itself.
void SetOptions(int fd, milliseconds silence) {
  const int on = 1;
  const auto timeout_ms = static_cast<unsigned>(silence.count());
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

// The client learns of the end by a reset, also while it waits for room in the server's receive window, of which nobody
// would tell it any more: it would ask for minutes.
void ResetWhenClosed(int fd) {
  const linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

void Add(const Fd& epoll, int fd, uint32_t events, uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event);
}

void Ask(const Fd& epoll, int fd, bool wanted) {
  epoll_event event{};
  if (wanted) event.events = EPOLLIN;
  event.data.u64 = kListener;
  epoll_ctl(epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

}  // namespace

// All but `accounting` under the gate's mutex.
class ConnectionGate::Connection {
 public:
  // The descriptor is gRPC's; the cookie tells its socket from a later one with the same number.
  bool is_open() const { return CookieOf(fd) == cookie; }

  // Bytes that turned into calls or messages since the last check.
  std::atomic<int64_t> accounting{0};

  Id id = 0;
  int fd = -1;
  uint64_t cookie = 0;
  PeerAddress peer;
  std::string network;
  std::optional<uint32_t> first_sequence;
  Time since;
  std::optional<Time> last_call;  // its begin or end
  bool is_closed = false;
  bool is_known = false;
  int rank = kIsSilent;  // among strangers
  int known_calls = 0;
  int open_calls = 0;

  // How much of all that came is accounted for.
  int64_t accounted = 0;
  int64_t acked = 0;
  uint32_t answers = 0;
  int64_t received = 0;  // at the last check
  // Messages of a stranger whose calls are not seen yet: the server has answered to a part of one; how many may still
  // come; how many were let in.
  bool sends_message = false;
  int unseen = kUnseenMessages;
  int granted = 0;
  Time credited;  // until when quiet bytes were
  // Bytes that open calls may have under way; `ended`: calls of this and the last second, whose bytes may still arrive.
  int64_t allowance = 0;
  std::array<int64_t, 2> ended{};
  Time ended_since;
  // How much the kernel lets come; nullopt: no bound.
  std::optional<int64_t> bound;
  std::optional<Time> excess_since;
  std::optional<Time> held_since;

  int refused = 0;
  Time refused_since;
  Time forgiven;  // what calls that nobody counted may have sent
};

ConnectionGate::Call& ConnectionGate::Call::operator=(Call&& other) noexcept {
  std::swap(gate_, other.gate_);
  std::swap(connection_, other.connection_);
  std::swap(known_, other.known_);
  std::swap(allowance_, other.allowance_);
  return *this;
}

ConnectionGate::Call::~Call() {
  if (gate_ == nullptr || connection_ == nullptr) return;
  std::lock_guard<std::mutex> lock(gate_->mutex_);
  gate_->End(*this);
}

void ConnectionGate::Call::Arrived() {
  if (allowance_ == 0 || connection_ == nullptr) return;
  std::lock_guard<std::mutex> lock(gate_->mutex_);
  connection_->allowance -= std::exchange(allowance_, 0);
}

ConnectionGate::ConnectionGate(const GateLimits& limits, const RpcMetrics& metrics, const AdmissionMetrics& admission)
    : limits_(limits),
      metrics_(metrics),
      admission_(admission),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      next_id_(kFirstId) {}

ConnectionGate::~ConnectionGate() { Stop(); }

void ConnectionGate::Prepare(const TcpListener& listener) { KeepFirstSegments(listener.fd()); }

void ConnectionGate::Start(TcpListener listener, Acceptor acceptor) {
  listener_ = std::move(listener);
  acceptor_ = std::move(acceptor);
  Add(epoll_, stop_.fd(), EPOLLIN, kStopped);
  Add(epoll_, listener_->fd(), EPOLLIN, kListener);
  thread_ = std::thread([this] { Loop(); });
}

void ConnectionGate::Stop() {
  if (!thread_.joinable()) return;
  stop_.Raise();
  thread_.join();
  listener_.reset();
  // Nobody would lift the bounds any more.
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, connection] : open_) Release(*connection);
}

int64_t ConnectionGate::connections() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(open_.begin(), open_.end(), [](const auto& each) { return each.second->is_open(); });
}

int64_t ConnectionGate::strangers() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(open_.begin(), open_.end(),
                       [](const auto& each) { return !each.second->is_known && each.second->is_open(); });
}

ConnectionGate::ConnectionPtr ConnectionGate::Find(absl::string_view peer) const {
  const std::optional<PeerAddress> address = ParsePeer(peer);
  if (!address) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = by_peer_.find({address->host, address->port});
  return it == by_peer_.end() ? nullptr : open_.at(it->second);
}

bool ConnectionGate::IsKnown(const ConnectionPtr& connection) const {
  if (connection == nullptr) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return connection->is_known;
}

std::string ConnectionGate::NetworkOf(const ConnectionPtr& connection) {
  return connection == nullptr ? "" : connection->network;  // which does not change
}

ConnectionGate::Call ConnectionGate::BeginOpen(const ConnectionPtr& connection) {
  Call call;
  if (connection == nullptr) return call;
  std::lock_guard<std::mutex> lock(mutex_);
  call.gate_ = this;
  call.connection_ = connection;
  connection->last_call = steady_clock::now();
  ++connection->open_calls;
  RaiseRank(*connection, kHasAsked);
  return call;
}

void ConnectionGate::RaiseRank(Connection& connection, int rank) {
  if (connection.is_known || connection.is_closed || connection.rank >= rank) return;
  LeaveStrangers(connection);
  EnterStrangers(connection, rank);
}

void ConnectionGate::EnterStrangers(Connection& connection, int rank) {
  strangers_.Enter(connection.network, connection.id, rank);
  connection.rank = rank;
  silent_strangers_ += rank == kIsSilent ? 1 : 0;
}

void ConnectionGate::LeaveStrangers(const Connection& connection) {
  strangers_.Leave(connection.network, connection.id, connection.rank);
  silent_strangers_ -= connection.rank == kIsSilent ? 1 : 0;
}

std::optional<ConnectionGate::Call> ConnectionGate::BeginKnown(const ConnectionPtr& connection, Brings brings) {
  Call call;
  if (connection == nullptr) return call;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!connection->is_known && !MakeKnown(connection)) return std::nullopt;
  call.gate_ = this;
  call.connection_ = connection;
  call.known_ = true;
  call.allowance_ = limits_.message_bytes + (brings == Brings::kStream ? kStreamBytes : 0);
  connection->last_call = steady_clock::now();
  connection->allowance += call.allowance_;
  ++connection->known_calls;
  return call;
}

void ConnectionGate::End(Call& call) {
  Connection& connection = *call.connection_;
  connection.last_call = steady_clock::now();
  --(call.known_ ? connection.known_calls : connection.open_calls);
  connection.allowance -= call.allowance_;
  connection.ended[0] += call.allowance_;
}

void ConnectionGate::CountRefused(const ConnectionPtr& connection) {
  if (connection == nullptr) return;
  const Time now = steady_clock::now();
  std::lock_guard<std::mutex> lock(mutex_);
  if (connection->is_closed) return;
  if (now - connection->refused_since >= std::chrono::seconds(1)) {
    connection->refused_since = now;
    connection->refused = 0;
  }
  const int most = limits_.refused_calls_a_second * (connection->is_known ? 10 : 1);
  if (++connection->refused > most) return Close(connection, ConnectionEnd::kRefusedCalls);
  if (connection->is_known) return;
  // The bytes that the server sends answer such calls.
  connection->unseen = 0;
  TakeGrants(*connection);
  if (now - connection->forgiven >= kRefusedPeriod) {
    connection->forgiven = now;
    Account(connection, kRefusedBytes);
  }
  Check(*connection, now);
}

void ConnectionGate::Account(const ConnectionPtr& connection, int64_t bytes) {
  if (connection != nullptr) connection->accounting.fetch_add(bytes, std::memory_order_relaxed);
}

void ConnectionGate::Loop() {
  while (Wait()) {
    const Time now = steady_clock::now();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [id, goes_on] : arrived_) Watch(id, goes_on, now);
      if (now >= next_sweep_) Sweep(now);
    }
    if (accepts_) AcceptSome();
    if (!arrived_.empty()) std::this_thread::sleep_for(kWatchPause);
  }
}

bool ConnectionGate::Wait() {
  std::array<epoll_event, 256> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), TimeoutMs());
  arrived_.clear();
  accepts_ = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[i].data.u64;
    if (tag == kStopped) return false;
    if (tag == kListener) {
      accepts_ = true;
    } else {
      arrived_.push_back({tag, (events[i].events & EPOLLRDHUP) == 0});
    }
  }
  if (accept_after_ != Time() && steady_clock::now() >= accept_after_) {
    accept_after_ = Time();
    Ask(epoll_, listener_->fd(), true);
  }
  return true;
}

int ConnectionGate::TimeoutMs() const {
  if (accept_after_ != Time()) return static_cast<int>(kSweepPeriod.count());
  std::lock_guard<std::mutex> lock(mutex_);
  if (open_.empty()) return -1;
  const bool is_held = std::any_of(open_.begin(), open_.end(), [](const auto& each) {
    return each.second->held_since || each.second->excess_since;
  });
  return static_cast<int>((is_held || strangers_.size() > 0 ? kSweepPeriod : kLookPeriod).count());
}

void ConnectionGate::AcceptSome() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    Fd fd = listener_->Accept();
    if (!fd) {
      if (errno == EMFILE || errno == ENFILE) PauseAccepting();
      return;
    }
    Admit(std::move(fd));
  }
}

void ConnectionGate::PauseAccepting() {
  Ask(epoll_, listener_->fd(), false);
  accept_after_ = steady_clock::now() + kNoDescriptorPause;
}

void ConnectionGate::Admit(Fd fd) {
  std::optional<PeerAddress> peer = PeerOf(fd.get());
  if (!peer) return;  // it has gone again
  SetOptions(fd.get(), limits_.silence);
  auto connection = std::make_shared<Connection>();
  connection->fd = fd.get();
  connection->cookie = CookieOf(fd.get());
  connection->network = server::NetworkOf(*peer);
  connection->peer = *std::move(peer);
  connection->first_sequence = FirstSequence(fd.get());
  connection->since = connection->credited = connection->ended_since = steady_clock::now();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    MakeRoomFor(connection->network);
    connection->id = next_id_++;
    open_[connection->id] = connection;
    by_peer_[{connection->peer.host, connection->peer.port}] = connection->id;
    EnterStrangers(*connection, kIsSilent);
    Bound(*connection, kStrangerBytes);
    // Before it is gRPC's, which may close it at once.
    Add(epoll_, fd.get(), EPOLLIN | EPOLLRDHUP | EPOLLET, connection->id);
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = fd.release();
  acceptor_->HandleNewConnection(&parameters);
}

void ConnectionGate::MakeRoomFor(const std::string& network) {
  const auto most = static_cast<size_t>(limits_.strangers);
  // The first that give way may have been closed by their clients.
  while (strangers_.size() >= most) {
    const ConnectionPtr oldest = GivesWayFor(network);
    if (oldest->is_open()) return Close(oldest, ConnectionEnd::kGaveWay);
    Forget(oldest);
  }
}

// Whoever has just come has said nothing yet, unlike others that wait for its place.
ConnectionGate::ConnectionPtr ConnectionGate::GivesWayFor(const std::string& network) const {
  const ConnectionPtr first = open_.at(*strangers_.GivesWayFor(network));
  const bool is_new = first->rank == kIsSilent && steady_clock::now() - first->since < kFirstWord;
  if (!is_new || 2 * silent_strangers_ > limits_.strangers) return first;
  return open_.at(*strangers_.GivesWayFor(network, kHasSpoken));
}

bool ConnectionGate::MakeKnown(const ConnectionPtr& connection) {
  if (known_ >= limits_.known) ForgetClosed();
  if (connection->is_closed) return false;
  if (known_ >= limits_.known) {
    const ConnectionPtr spare = SpareKnown(connection->network);
    admission_.CountRefusedConnection();
    Close(spare == nullptr ? connection : spare, ConnectionEnd::kGaveWay);
    if (spare == nullptr) return false;
  }
  LeaveStrangers(*connection);
  TakeGrants(*connection);
  connection->is_known = true;
  ++known_;
  Release(*connection);
  return true;
}

ConnectionGate::ConnectionPtr ConnectionGate::SpareKnown(const std::string& network) const {
  std::map<std::string, int> of_network;
  for (const auto& [id, each] : open_) of_network[each->network] += each->is_known ? 1 : 0;
  ConnectionPtr idle, newest;
  const auto before = [&](const Connection& a, const Connection& b) {
    const int more_a = of_network[a.network], more_b = of_network[b.network];
    return more_a != more_b ? more_a > more_b : a.last_call < b.last_call;
  };
  for (const auto& [id, each] : open_) {
    if (!each->is_known) continue;
    const bool has_calls = each->known_calls + each->open_calls > 0;
    if (!has_calls && (idle == nullptr || before(*each, *idle))) idle = each;
    if (each->network != network && 2 * of_network[each->network] > limits_.known) newest = each;
  }
  return idle == nullptr ? newest : idle;
}

void ConnectionGate::Watch(Id id, bool goes_on, Time now) {
  const auto it = open_.find(id);
  if (it == open_.end()) return;
  const ConnectionPtr connection = it->second;
  if (!connection->is_open()) return Forget(connection);
  if (goes_on) RaiseRank(*connection, kHasSpoken);
  Check(*connection, now);
}

int64_t ConnectionGate::Budget(const Connection& connection) const {
  if (!connection.is_known) return kStrangerBytes + connection.granted * limits_.message_bytes;
  return kKnownBytes + (connection.known_calls > 0 ? kBusyBytes : 0) + connection.allowance + connection.ended[0] +
         connection.ended[1];
}

void ConnectionGate::Check(Connection& connection, Time now) {
  const std::optional<Traffic> traffic = TrafficOf(connection.fd);
  if (!traffic) return;
  int64_t credit = connection.accounting.exchange(0, std::memory_order_relaxed);
  credit += (traffic->acked - connection.acked) / kAckedPerByte;
  connection.acked += (traffic->acked - connection.acked) / kAckedPerByte * kAckedPerByte;
  if (const auto quiet = std::chrono::floor<std::chrono::seconds>(now - connection.credited); quiet.count() > 0) {
    credit += quiet.count() * kQuietBytesASecond;
    connection.credited += quiet;
  }
  if (now - connection.ended_since >= std::chrono::seconds(1)) {
    // The bytes that those calls had under way have arrived by now, and were dropped with the calls.
    credit += std::min(connection.ended[1], std::max<int64_t>(traffic->received - connection.accounted, 0));
    connection.ended = {0, connection.ended[0]};
    connection.ended_since = now;
  }
  const bool has_answered = traffic->answers != std::exchange(connection.answers, traffic->answers);
  const int64_t before = std::exchange(connection.received, traffic->received);
  // A client's reply to messages that were sent arrives after them: some credit waits for it.
  const int64_t spare = connection.is_known ? kSpareBytes : 0;
  connection.accounted = std::min(traffic->received + spare, connection.accounted + credit);
  if (has_answered && traffic->sent > kOpeningBytes) TakeForAnswers(connection, before, now);
  const int64_t excess = traffic->received - connection.accounted - Budget(connection);
  if (excess >= 0) return Hold(connection, traffic->received, now);
  connection.excess_since.reset();
  if (connection.is_known) return Release(connection);
  connection.held_since.reset();
  Bound(connection, connection.accounted + Budget(connection));
}

// While a header is open, nothing else can come, and the server has little to say: as a rule it speaks since frames of
// messages came (window updates), or calls that nobody counted were refused.
void ConnectionGate::TakeForAnswers(Connection& connection, int64_t before, Time now) {
  const int64_t excess = connection.received - connection.accounted;
  if (excess <= 0) return;
  if (!connection.is_known) {
    // The first call of a stranger is seen once its message has come, and a part of it was there before the answer.
    if (before - connection.accounted < kPartOfMessage) return;
    connection.sends_message = true;
    GrantMessage(connection);
  } else if (connection.known_calls == 0) {
    connection.accounted = std::max(connection.accounted, before);
  } else if (now - connection.forgiven >= kForgivingPeriod) {
    connection.forgiven = now;
    connection.accounted += std::min(excess, kForgivenBytes);
  }
}

bool ConnectionGate::GrantMessage(Connection& connection) {
  if (connection.unseen == 0 || granted_ == kUnseenMessagesOfAll) return false;
  --connection.unseen;
  ++connection.granted;
  ++granted_;
  return true;
}

void ConnectionGate::TakeGrants(Connection& connection) { granted_ -= std::exchange(connection.granted, 0); }

void ConnectionGate::Hold(Connection& connection, int64_t received, Time now) {
  // Nothing can hold a stranger whose sequence number the kernel has not kept.
  const int64_t excess = received - connection.accounted - Budget(connection);
  const bool is_loose = !connection.is_known && !connection.first_sequence;
  if (is_loose && excess >= limits_.message_bytes) {
    const ConnectionPtr closed = open_.at(connection.id);
    return Close(closed, ConnectionEnd::kUnaccounted);
  }
  if (connection.held_since) return;
  if (connection.is_known) {
    if (!connection.excess_since) connection.excess_since = now;
    const bool is_much = excess >= kKnownBytesAtOnce - kKnownBytes;
    if (!is_much && now - *connection.excess_since < kPatience) return;
  }
  connection.held_since = now;
  Bound(connection, received);
}

void ConnectionGate::Release(Connection& connection) {
  connection.held_since.reset();
  connection.excess_since.reset();
  if (!connection.bound || !connection.is_open()) return;
  LiftBound(connection.fd);
  connection.bound.reset();
}

// Without a number to count from, only the watch bounds the bytes that arrive.
void ConnectionGate::Bound(Connection& connection, int64_t bytes) {
  if (!connection.first_sequence || connection.bound == bytes || !connection.is_open()) return;
  if (BoundReceived(connection.fd, *connection.first_sequence, bytes)) connection.bound = bytes;
  // gRPC may have closed the descriptor meanwhile, and somebody else may have it.
  if (!connection.is_open()) LiftBound(connection.fd);
}

void ConnectionGate::Sweep(Time now) {
  next_sweep_ = now + kSweepPeriod;
  if (now >= next_look_) {
    next_look_ = now + kLookPeriod;
    ForgetClosed();
  }
  for (const ConnectionPtr& connection : All()) SweepOne(connection, now);
}

std::vector<ConnectionGate::ConnectionPtr> ConnectionGate::All() const {
  std::vector<ConnectionPtr> all;
  for (const auto& [id, connection] : open_) all.push_back(connection);
  return all;
}

void ConnectionGate::ForgetClosed() {
  for (const ConnectionPtr& connection : All()) {
    if (!connection->is_open()) Forget(connection);
  }
}

void ConnectionGate::SweepOne(const ConnectionPtr& connection, Time now) {
  if (!connection->is_known && connection->open_calls == 0) {
    const Time end =
        connection->last_call ? *connection->last_call + limits_.next_call : connection->since + limits_.first_call;
    if (now >= end) return Close(connection, ConnectionEnd::kNotIdentified);
  }
  if (!connection->is_known || connection->held_since || connection->excess_since) Check(*connection, now);
  // One answer may have let several messages come, or a large one; or other strangers had all grants.
  const bool may_go_on = !connection->is_known && connection->sends_message && connection->held_since &&
                         (connection->granted == 0 || now - *connection->held_since >= limits_.held / 4);
  if (may_go_on && GrantMessage(*connection)) return Check(*connection, now);
  if (connection->held_since && now - *connection->held_since >= limits_.held) {
    Close(connection, ConnectionEnd::kUnaccounted);
  }
}

void ConnectionGate::Forget(const ConnectionPtr& connection) {
  if (std::exchange(connection->is_closed, true)) return;
  open_.erase(connection->id);
  const auto it = by_peer_.find({connection->peer.host, connection->peer.port});
  if (it != by_peer_.end() && it->second == connection->id) by_peer_.erase(it);
  if (connection->is_known) {
    --known_;
  } else {
    LeaveStrangers(*connection);
    TakeGrants(*connection);
  }
}

// gRPC finds the end of the connection, and closes the descriptor.
void ConnectionGate::Close(const ConnectionPtr& connection, ConnectionEnd why) {
  if (connection->is_closed) return;
  if (connection->is_open()) {
    // Whoever sees the end can read of it.
    metrics_.CountClosed(why);
    // Before gRPC may close the descriptor: behind a bound neither side would learn of the end.
    Release(*connection);
    if (why == ConnectionEnd::kUnaccounted) ResetWhenClosed(connection->fd);
    shutdown(connection->fd, SHUT_RDWR);
  }
  Forget(connection);
}

}  // namespace intrawarp::server
