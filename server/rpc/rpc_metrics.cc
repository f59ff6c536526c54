// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc_metrics.h"

#include <iterator>
#include <string_view>

#include "absl/strings/ascii.h"

namespace intrawarp::server {
namespace {

// Spelt as in go-grpc-prometheus, whose dashboards and alerts are the common ones.
constexpr const char* kCodes[] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};
constexpr int kUnknownCode = 2;

constexpr v1::ErrorReason kCallerRefusals[] = {v1::NOT_AUTHENTICATED, v1::ROLE_MISSING};
constexpr const char* kAccessFiles[] = {"tls", "tokens", "identities"};
constexpr const char* kReloads[] = {"failed", "ok"};
constexpr const char* kConnectionEnds[] = {"gave_way", "not_identified", "unaccounted", "refused_calls"};

std::vector<std::string> MethodLabels() { return {"grpc_service", "grpc_method", "grpc_type"}; }

}  // namespace

const char* NameOf(AccessFile file) { return kAccessFiles[static_cast<size_t>(file)]; }

struct RpcMetrics::Families {
  explicit Families(Registry& r)
      : started(r.Counters("grpc_server_started_total", "RPCs begun.", MethodLabels())),
        handled(r.Counters("grpc_server_handled_total", "RPCs ended, by status code.",
                           {"grpc_service", "grpc_method", "grpc_type", "grpc_code"})),
        seconds(r.Histograms("grpc_server_handling_seconds", "Time from begin to end of RPCs.", MethodLabels())),
        received(r.Counters("grpc_server_msg_received_total", "Messages received.", MethodLabels())),
        sent(r.Counters("grpc_server_msg_sent_total", "Messages sent.", MethodLabels())),
        received_bytes(
            r.Counters("grpc_server_msg_received_bytes_total", "Bytes of messages received.", MethodLabels())),
        sent_bytes(r.Counters("grpc_server_msg_sent_bytes_total", "Bytes of messages sent.", MethodLabels())),
        in_flight(r.Gauges("grpc_server_in_flight", "RPCs under way.", MethodLabels())) {}

  const CounterFamily started;
  const CounterFamily handled;
  const HistogramFamily seconds;
  const CounterFamily received;
  const CounterFamily sent;
  const CounterFamily received_bytes;
  const CounterFamily sent_bytes;
  const GaugeFamily in_flight;
};

RpcMetrics::Series RpcMetrics::MakeSeries(const Families& families, const RpcMethod& method) {
  const std::vector<std::string> values = {method.service, method.method, method.type};
  Series series;
  series.started = families.started.With(values);
  series.handled = EnumCounters<int>(families.handled, kCodes, values);
  series.seconds = method.type == "unary" ? families.seconds.With(values, kShortBuckets)
                                          : families.seconds.With(values, kLongBuckets);
  series.received = families.received.With(values);
  series.sent = families.sent.With(values);
  series.received_bytes = families.received_bytes.With(values);
  series.sent_bytes = families.sent_bytes.With(values);
  series.in_flight = families.in_flight.With(values);
  return series;
}

RpcMetrics::RpcMetrics(Registry& registry, const std::vector<RpcMethod>& methods)
    : certificate_end_(registry.Gauges("intrawarp_tls_certificate_not_after_timestamp_seconds",
                                       "End of the server's TLS certificate, in seconds since 1970.", {})),
      closed_(registry.Counters("intrawarp_connections_closed_total",
                                "Connections to the gRPC port that the server closed, by reason.", {"reason"}),
              kConnectionEnds) {
  const Families families(registry);
  for (const RpcMethod& method : methods) methods_.emplace(method.full_name(), MakeSeries(families, method));
  other_ = MakeSeries(families, {"other", "other", "unary"});
  const CounterFamily refused = registry.Counters("intrawarp_callers_refused_total",
                                                  "Calls refused for want of an identity or of a role.", {"reason"});
  for (const v1::ErrorReason reason : kCallerRefusals) {
    refused_callers_[reason] = refused.With({absl::AsciiStrToLower(v1::ErrorReason_Name(reason))});
  }
  const CounterFamily reloads = registry.Counters(
      "intrawarp_access_reloads_total", "Changed files of certificates and credentials, taken up or found broken.",
      {"file", "outcome"});
  for (size_t i = 0; i < reloads_.size(); ++i) {
    reloads_[i] = EnumCounters<Reload>(reloads, kReloads, {kAccessFiles[i]});
  }
}

const RpcMetrics::Series& RpcMetrics::Of(absl::string_view method) const {
  const auto it = methods_.find(std::string_view(method.data(), method.size()));
  return it == methods_.end() ? other_ : it->second;
}

void RpcMetrics::Started(absl::string_view method) const {
  const Series& series = Of(method);
  series.started.Add();
  series.in_flight.Add(1);
}

void RpcMetrics::Handled(absl::string_view method, int code, std::chrono::nanoseconds elapsed) const {
  const Series& series = Of(method);
  series.handled[code >= 0 && code < static_cast<int>(std::size(kCodes)) ? code : kUnknownCode].Add();
  series.seconds.Observe(Seconds(elapsed));
  series.in_flight.Add(-1);
}

void RpcMetrics::MessageReceived(absl::string_view method) const { Of(method).received.Add(); }

void RpcMetrics::BytesReceived(absl::string_view method, int64_t bytes) const {
  Of(method).received_bytes.Add(static_cast<double>(bytes));
}

void RpcMetrics::Sent(absl::string_view method, int64_t bytes) const {
  const Series& series = Of(method);
  series.sent.Add();
  series.sent_bytes.Add(static_cast<double>(bytes));
}

void RpcMetrics::CountRefusedCaller(v1::ErrorReason reason) const {
  const auto it = refused_callers_.find(reason);
  if (it != refused_callers_.end()) it->second.Add();
}

void RpcMetrics::CountReload(AccessFile file, bool taken_up) const {
  reloads_[static_cast<size_t>(file)][taken_up ? Reload::kOk : Reload::kFailed].Add();
}

void RpcMetrics::SetCertificateEnd(std::chrono::system_clock::time_point end) const {
  certificate_end_.With({}).Set(Seconds(end.time_since_epoch()));
}

}  // namespace intrawarp::server
