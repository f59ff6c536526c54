// SPDX-License-Identifier: Apache-2.0
// ConnectionGate: accepts the connections of a gRPC server in its stead, and bounds what they take of it, which gRPC
// (1.51) does not: their number, and the bytes of headers that never end.
//
// A connection is a stranger's until a caller that the server knows makes a call on it; where no identities are asked
// for, until any call that needs one is made. Strangers have places of their own. When these are taken, the oldest of
// the network that holds most gives way (FairPlaces), one that said nothing before one that did, and that before one
// that asked for health, so that a flood closes its own connections. A stranger that does not make such a call in time
// goes, too.
//
// A connection that becomes known takes a place among the known ones. When these are taken, one without calls gives
// way; where all have calls, the newest of a network that has more than half of the places, else the one that came.
//
// Bytes that came are accounted for by the calls and messages that they turned into. Those that are not are held, by
// the kernel, once they are more than a connection may have under way, which the gate finds within milliseconds; a
// stranger has a bound in the kernel from the beginning. What is still held after a while belongs to no call, and the
// connection is closed.
//
// A connection whose calls are refused, or given up before they are answered, more often than a client would is closed.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_RPC_CONNECTION_GATE_H_
#define INTRAWARP_SERVER_RPC_CONNECTION_GATE_H_

#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/base/fair_places.h"
#include "server/base/peer_address.h"
#include "server/base/tcp_listener.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_support.h"
#include "server/rpc/rpc_metrics.h"

namespace intrawarp::server {

struct GateLimits {
  int known = 256;
  int strangers = 128;
  // Bytes that a client does not acknowledge for so long end its connection.
  std::chrono::milliseconds silence{5000};
  // Until a stranger's first call, and after its last one.
  std::chrono::milliseconds first_call{10000};
  std::chrono::milliseconds next_call{120000};
  // How long bytes are held that no call accounts for.
  std::chrono::milliseconds held{2000};
  // A stranger's; a known caller may have ten times as many.
  int refused_calls_a_second = 100;
  // The largest message.
  int64_t message_bytes = 2 << 20;
};

class ConnectionGate {
 public:
  using Acceptor = std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>;

  // One that is open, or was. Its users hold it by a shared_ptr, and need no lock.
  class Connection;
  using ConnectionPtr = std::shared_ptr<Connection>;

  // The bytes that a call may have under way that are not a message yet.
  enum class Brings { kOneMessage, kStream };

  // A call that was let in on a connection, which may be null. Moves; ends when it goes.
  class Call {
   public:
    Call() = default;
    Call(Call&& other) noexcept { *this = std::move(other); }
    Call& operator=(Call&& other) noexcept;
    ~Call();
    // All that the client sends has come.
    void Arrived();

   private:
    friend class ConnectionGate;
    ConnectionGate* gate_ = nullptr;
    ConnectionPtr connection_;
    bool known_ = false;
    int64_t allowance_ = 0;
  };

  // Counts what it closes, and known callers' connections beyond the limit. The metrics outlive it.
  ConnectionGate(const GateLimits& limits, const RpcMetrics& metrics, const AdmissionMetrics& admission);
  // Does the same as Stop.
  ~ConnectionGate();

  // For a listener before its first connection.
  static void Prepare(const TcpListener& listener);
  // Accepts from now on. `acceptor` is the started server's. Once.
  void Start(TcpListener listener, Acceptor acceptor);
  // Stops listening and watching; connections stay. Idempotent. The owner's alone.
  void Stop();

  // Open just now, of known callers and of strangers.
  int64_t connections() const;
  int64_t strangers() const;

  // The connection of a call, by gRPC's name of its peer; null when the gate does not know it.
  ConnectionPtr Find(absl::string_view peer) const;
  bool IsKnown(const ConnectionPtr& connection) const;
  // Empty for null.
  static std::string NetworkOf(const ConnectionPtr& connection);
  // A call that anybody may make has begun.
  Call BeginOpen(const ConnectionPtr& connection);
  // A caller that the server knows has begun a call: the connection is known. nullopt: there is no place for it, and
  // the connection was closed.
  std::optional<Call> BeginKnown(const ConnectionPtr& connection, Brings brings);
  // A call was refused, or given up before its answer.
  void CountRefused(const ConnectionPtr& connection);
  // Bytes of a complete header or message that came, or those that answer a message that was sent. Any thread, cheap.
  static void Account(const ConnectionPtr& connection, int64_t bytes);

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Id = FairPlaces::Id;

  void Loop();
  // False: it is time to stop.
  bool Wait();
  int TimeoutMs() const;
  void AcceptSome();
  void Admit(Fd fd);
  void PauseAccepting();

  // All that follow with the mutex held.
  void MakeRoomFor(const std::string& network);
  bool MakeKnown(const ConnectionPtr& connection);
  // A known connection that gives way for one of the network: idle, and of the network with most; else the newest of
  // another network that has more than half of all. Null: there is none.
  ConnectionPtr SpareKnown(const std::string& network) const;
  void EnterStrangers(Connection& connection, int rank);
  void LeaveStrangers(const Connection& connection);
  ConnectionPtr GivesWayFor(const std::string& network) const;
  void RaiseRank(Connection& connection, int rank);
  // Something came, or the client ended its side.
  void Watch(Id id, bool goes_on, Time now);
  void Check(Connection& connection, Time now);
  void TakeForAnswers(Connection& connection, int64_t before, Time now);
  // Lets one more message of a stranger come whose call is not seen yet. False: it, or all strangers, have had theirs.
  bool GrantMessage(Connection& connection);
  void TakeGrants(Connection& connection);
  void Hold(Connection& connection, int64_t received, Time now);
  void Release(Connection& connection);
  void Bound(Connection& connection, int64_t bytes);
  int64_t Budget(const Connection& connection) const;
  void Sweep(Time now);
  void SweepOne(const ConnectionPtr& connection, Time now);
  std::vector<ConnectionPtr> All() const;
  void ForgetClosed();
  void End(Call& call);
  void Forget(const ConnectionPtr& connection);
  void Close(const ConnectionPtr& connection, ConnectionEnd why);

  const GateLimits limits_;
  const RpcMetrics& metrics_;
  const AdmissionMetrics& admission_;
  std::optional<TcpListener> listener_;  // from Start to Stop
  Acceptor acceptor_;
  const WakeEvent stop_;
  const Fd epoll_;
  mutable std::mutex mutex_;
  std::map<Id, ConnectionPtr> open_;
  std::map<std::pair<std::string, int>, Id> by_peer_;
  FairPlaces strangers_;
  int silent_strangers_ = 0;
  int granted_ = 0;  // messages of strangers that were let in and are not seen yet
  int known_ = 0;
  Id next_id_;

  // The thread's alone.
  bool accepts_ = false;
  std::vector<std::pair<Id, bool>> arrived_;  // that bring something, and whether more may come
  Time accept_after_;
  Time next_sweep_;
  Time next_look_;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_CONNECTION_GATE_H_
