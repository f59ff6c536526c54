// SPDX-License-Identifier: Apache-2.0
// LinkLoop: the connections of the bridge with OpenIGTLink peers, on one thread.
//
// Peers connect to it (Listen), or it connects to them, again and again until they are there (Connect). Messages that
// come are given to the handler on the loop's thread. Messages that are broadcast go to every consumer: peers that
// connected, and peers of Connect that were named consumers. Every consumer has an OutQueue, and TCP is asked to keep
// little that is not sent, so that a consumer that stalls costs nobody but itself.
//
// A peer is disconnected when its stream cannot be followed, when it is silent within a message or takes nothing of a
// message for the stall timeout, and when it is one too many. Names of hosts are resolved once, by Listen and Connect.
//
// Thread safety: Broadcast, Send, peer-independent questions and Stop may be called from any thread; Listen, Connect
// and ServeMetrics before Run, from the thread that runs it.
#ifndef INTRAWARP_CLIENT_IGTL_LINK_LOOP_H_
#define INTRAWARP_CLIENT_IGTL_LINK_LOOP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/igtl/codec/message_decoder.h"
#include "client/igtl/counters.h"
#include "client/igtl/out_queue.h"
#include "client/igtl/socket.h"
#include "engine/base/host_port.h"

namespace intrawarp::igtl {

struct LinkOptions {
  DecoderLimits limits = {};
  int max_peers = 16;
  // Messages of so many devices wait for a consumer.
  size_t queue_devices = 256;
  std::chrono::milliseconds stall_timeout{5000};
  std::chrono::milliseconds reconnect_pause{500};
};

class LinkLoop {
 public:
  using PeerId = int64_t;
  struct Handler {
    std::function<void(PeerId peer, absl::StatusOr<Message> message)> on_message;
    // A peer is there.
    std::function<void(PeerId peer, bool is_consumer)> on_connected;
    // May be empty. On the loop's thread.
    MessageDecoder::Lender lender;
    // At least every 50 ms.
    std::function<void()> on_tick;
  };

  // `counters` outlive the loop.
  static absl::StatusOr<std::unique_ptr<LinkLoop>> Create(const LinkOptions& options, Handler handler,
                                                          Counters* counters);
  ~LinkLoop();

  // The port that is bound. Errors: INVALID_ARGUMENT for a name that is not found, UNAVAILABLE.
  absl::StatusOr<int> Listen(const HostPort& address);
  absl::Status Connect(const HostPort& address, bool is_consumer);
  // Answers GET with the text; other requests with 405.
  absl::StatusOr<int> ServeMetrics(const HostPort& address, std::function<std::string()> text);

  // Until Stop.
  void Run();
  void Stop();

  // To all consumers, or to one peer; a peer that is gone gets nothing.
  void Broadcast(OutMessage message);
  void Send(PeerId peer, OutMessage message);

 private:
  enum class Kind { kListener, kMetricsListener, kPeer, kMetricsClient };
  struct Connection;
  struct Target {
    SocketAddress address;
    bool is_consumer = false;
    bool is_connected = false;
    std::chrono::steady_clock::time_point next_try;
  };
  struct Posted {
    PeerId peer;  // kEverybody: all consumers
    OutMessage message;
  };

  LinkLoop(const LinkOptions& options, Handler handler, Counters* counters);

  absl::StatusOr<int> AddListener(const HostPort& address, Kind kind);
  void Add(std::unique_ptr<Connection> connection, uint32_t events);
  void Accept(const Connection& listener);
  void ConnectTargets();
  void HandleEvents(Connection& connection, uint32_t events);
  void FinishConnecting(Connection& connection);
  void Read(Connection& connection);
  void ReadRequest(Connection& connection, absl::string_view bytes);
  void Write(Connection& connection);
  void Queue(Connection& connection, const OutMessage& message);
  void Post(Posted posted);
  void DeliverPosted();
  void CloseStalled();
  void Close(Connection& connection);
  void RemoveClosed();

  const LinkOptions options_;
  const Handler handler_;
  Counters& counters_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  std::function<std::string()> metrics_text_;
  std::vector<Target> targets_;
  std::map<PeerId, std::unique_ptr<Connection>> connections_;
  PeerId last_id_ = 0;
  std::vector<char> buffer_;

  std::mutex mutex_;  // guards what follows
  std::vector<Posted> posted_;
  bool is_stopped_ = false;
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_LINK_LOOP_H_
