// SPDX-License-Identifier: Apache-2.0
// RpcMetrics: calls by method, callers that were turned away, files of certificates and credentials, and connections
// that the server closed.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_RPC_RPC_METRICS_H_
#define INTRAWARP_SERVER_RPC_RPC_METRICS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "intrawarp/v1/error.pb.h"
#include "server/monitor/registry.h"

namespace intrawarp::server {

// An RPC method as the labels of grpc_server_* name it.
struct RpcMethod {
  std::string service;  // "intrawarp.v1.VolumeService"
  std::string method;   // "GetVolume"
  std::string type;     // unary, client_stream, server_stream, bidi_stream

  std::string full_name() const { return service + "/" + method; }
};

// Values of the label file of access_reloads: the certificate, key and authorities together, and the files of
// credentials.
enum class AccessFile { kTls, kTokens, kIdentities };
const char* NameOf(AccessFile file);

// Why a connection was closed: it gave way to another one; nobody made a call on it in time; bytes came that belong to
// no call or message; its calls were refused too often.
enum class ConnectionEnd { kGaveWay, kNotIdentified, kUnaccounted, kRefusedCalls };

class RpcMetrics {
 public:
  // Calls of methods that are not in `methods` count under service and method "other".
  RpcMetrics(Registry& registry, const std::vector<RpcMethod>& methods);

  // One RPC is in flight from Started to Handled. `method`: RpcMethod::full_name.
  void Started(absl::string_view method) const;
  // `code`: of grpc::StatusCode.
  void Handled(absl::string_view method, int code, std::chrono::nanoseconds elapsed) const;
  void MessageReceived(absl::string_view method) const;
  void BytesReceived(absl::string_view method, int64_t bytes) const;
  // One message.
  void Sent(absl::string_view method, int64_t bytes) const;

  // A caller that was turned away: NOT_AUTHENTICATED or ROLE_MISSING.
  void CountRefusedCaller(v1::ErrorReason reason) const;
  // A changed file was taken up, or was found to be broken.
  void CountReload(AccessFile file, bool taken_up) const;
  // The end of the server's TLS certificate.
  void SetCertificateEnd(std::chrono::system_clock::time_point end) const;
  void CountClosed(ConnectionEnd why) const { closed_[why].Add(); }

 private:
  // Values of the label outcome.
  enum class Reload { kFailed, kOk };
  struct Families;
  // The series of one method.
  struct Series {
    Counter started;
    EnumCounters<int> handled;  // by the status code
    Histogram seconds;
    Counter received;
    Counter sent;
    Counter received_bytes;
    Counter sent_bytes;
    Gauge in_flight;
  };
  static Series MakeSeries(const Families& families, const RpcMethod& method);
  const Series& Of(absl::string_view method) const;

  std::map<std::string, Series, std::less<>> methods_;
  Series other_;
  std::map<v1::ErrorReason, Counter> refused_callers_;
  std::array<EnumCounters<Reload>, 3> reloads_;  // in the order of AccessFile
  const GaugeFamily certificate_end_;
  const EnumCounters<ConnectionEnd> closed_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_RPC_METRICS_H_
