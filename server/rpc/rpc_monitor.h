// SPDX-License-Identifier: Apache-2.0
// RpcMonitor: sees every RPC through an interceptor: counts it in the metrics, and knows which are under way, so that a
// stop can wait for those of our services; others (health watches, reflection) never end by themselves.
//
// Bytes received are counted here for unary methods; raw streaming methods count their own (Metrics::RpcReceivedBytes).
//
// Thread safety: safe for concurrent use. Outlives the gRPC server whose calls it sees.
#ifndef INTRAWARP_SERVER_RPC_RPC_MONITOR_H_
#define INTRAWARP_SERVER_RPC_RPC_MONITOR_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/monitor/metrics.h"

namespace intrawarp::server {

// Full names ("intrawarp.v1.VolumeService/GetVolume") of the methods of all services of intrawarp.v1, and of health.
std::vector<std::string> AllMethods();

class RpcMonitor {
 public:
  explicit RpcMonitor(Metrics& metrics) : metrics_(metrics) {}

  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptorFactory();

  // Waits until no call of an intrawarp service is under way; false when that lasts beyond the deadline.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

 private:
  class Interceptor;
  class Factory;

  Metrics& metrics_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t own_calls_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_RPC_MONITOR_H_
