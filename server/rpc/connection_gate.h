// SPDX-License-Identifier: Apache-2.0
// ConnectionGate: accepts the connections of a gRPC server in its stead, which does not bound their number, and closes
// at once those beyond the limit.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_RPC_CONNECTION_GATE_H_
#define INTRAWARP_SERVER_RPC_CONNECTION_GATE_H_

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/monitor/metrics.h"
#include "server/tcp_listener.h"

namespace intrawarp::server {

class ConnectionGate {
 public:
  using Acceptor = std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>;

  // Accepts from now on. `acceptor` is the started server's. Bytes that a client does not acknowledge for
  // `silence_timeout` end its connection. The connections refused are counted in `metrics`.
  ConnectionGate(TcpListener listener, Acceptor acceptor, int max_connections,
                 std::chrono::milliseconds silence_timeout, Metrics& metrics);
  // As Stop.
  ~ConnectionGate();

  // Stops listening; connections stay. Idempotent. The owner's alone.
  void Stop();
  // Open just now.
  int64_t connections() const;

 private:
  // A descriptor that is gRPC's, and what tells its socket from a later one with the same number.
  struct Open {
    int fd;
    ino_t socket;
  };
  void Loop();
  void Admit(Fd fd);
  // With the mutex held.
  void ForgetClosed() const;

  std::optional<TcpListener> listener_;  // until Stop
  const Acceptor acceptor_;
  const int max_connections_;
  const std::chrono::milliseconds silence_timeout_;
  Metrics& metrics_;
  const WakeEvent stop_;
  mutable std::mutex mutex_;
  mutable std::vector<Open> open_;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_CONNECTION_GATE_H_
