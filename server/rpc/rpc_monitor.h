// SPDX-License-Identifier: Apache-2.0
// RpcMonitor: sees every RPC through an interceptor: counts it in the metrics, finds out who makes it (CallerOf) and
// whether that one may, bounds the number of those under way, and knows them, so that a stop can wait for those of our
// services; others (health watches, reflection) never end by themselves.
//
// A call beyond the limit ends RESOURCE_EXHAUSTED (TOO_MANY_STREAMS with ErrorInfo and RetryInfo; gRPC's own services
// end without details). A call that AccessControl refuses ends with its error. The handler of either sees an empty
// request, or that the call is refused (refused_call.h), so nothing is done for it, and nothing of its answer is sent.
// Calls that only ask (health, server information) have a limit of their own, so that others do not keep
// them out.
//
// A call counts among these once it is known who makes it. Calls of health on a connection that no known caller has
// used (ConnectionGate) have places of their own; when these are taken, the oldest call of the network that has most of
// them ends RESOURCE_EXHAUSTED.
//
// A call that has an audit record (IsAudited) ends once its record is synced.
//
// Bytes received are counted here for unary methods; raw streaming methods count their own (RpcMetrics::BytesReceived).
//
// Thread safety: safe for concurrent use. Outlives the gRPC server whose calls it sees.
#ifndef INTRAWARP_SERVER_RPC_RPC_MONITOR_H_
#define INTRAWARP_SERVER_RPC_RPC_MONITOR_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "server/base/fair_places.h"
#include "server/job/admission_metrics.h"
#include "server/rpc/access_control.h"
#include "server/rpc/connection_gate.h"
#include "server/rpc/rpc_metrics.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

// The methods of all services of intrawarp.v1, and of health.
std::vector<RpcMethod> AllMethods();

class RpcMonitor {
 public:
  // At most `max_calls` under way, as many again that only ask, and `stranger_calls` of strangers.
  RpcMonitor(const RpcMetrics& metrics, const AdmissionMetrics& admission, AccessControl& access, AuditTrail& audit,
             ConnectionGate& gate, int64_t max_calls, int64_t stranger_calls)
      : metrics_(metrics),
        admission_(admission),
        access_(access),
        audit_(audit),
        gate_(gate),
        max_calls_(max_calls),
        stranger_calls_(static_cast<size_t>(stranger_calls)) {}

  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptorFactory();

  // Waits until no call of an intrawarp service is under way; false when that lasts beyond the deadline.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

  // Calls under way, but for those that only ask.
  int64_t calls() const;

  // Ends the calls whose caller has lost the identity, the name or the role with which they began: UNAUTHENTICATED.
  void EndRevoked();

 private:
  class Interceptor;
  class Factory;

  const RpcMetrics& metrics_;
  const AdmissionMetrics& admission_;
  AccessControl& access_;
  AuditTrail& audit_;
  ConnectionGate& gate_;
  const int64_t max_calls_;
  const size_t stranger_calls_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t own_calls_ = 0;
  int64_t calls_ = 0;                  // but for those that only ask
  int64_t asking_calls_ = 0;           // those
  std::set<Interceptor*> identified_;  // calls of our services that were let in
  FairPlaces strangers_;
  std::map<FairPlaces::Id, Interceptor*> stranger_of_;
  FairPlaces::Id next_stranger_ = 1;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_RPC_MONITOR_H_
