// SPDX-License-Identifier: Apache-2.0
// Registrations whose arrivals do not wait for answers: a Poisson process. Each is a call of its own in gRPC's threads,
// so that a thousand may be under way. A call's time runs from when it was due.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "tests/bench/interference/flood.h"
#include "tests/bench/interference/scenarios.h"
#include "tests/bench/interference/statistics.h"

namespace intrawarp::bench {
namespace {

constexpr int kConnections = 8;
constexpr int kAlone = 20;
constexpr int kClosedLoopClients = 8;
constexpr double kNormal = 1.5;         // times a call alone
constexpr double kRecoveryGuard = 120;  // seconds
constexpr double kDrainGuard = 60;

// One call. The owner deletes it after it is over.
class ArrivingCall final : public grpc::ClientReadReactor<v1::RegisterResponse> {
 public:
  ArrivingCall(v1::RegistrationService::Stub& stub, const v1::RegisterRequest& request, double due, double deadline_ms)
      : due_(due), request_(request) {
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::microseconds(static_cast<int64_t>(1e3 * deadline_ms)));
    stub.async()->Register(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    milliseconds_ = 1e3 * (Now() - due_);
    error_ = status.ok() ? "" : ErrorName(client::FromGrpcStatus(status));
    over_ = true;
  }

  bool over() const { return over_; }
  // Once it is over.
  double milliseconds() const { return milliseconds_; }
  const std::string& error() const { return error_; }
  void Cancel() { context_.TryCancel(); }

 private:
  const double due_;
  const v1::RegisterRequest request_;
  grpc::ClientContext context_;
  v1::RegisterResponse response_;
  double milliseconds_ = 0;
  std::string error_;
  std::atomic<bool> over_{false};
};

// RESOURCE_EXHAUSTED and the like before any work: a clear refusal. The rest was admitted.
bool IsRefusal(const std::string& error) {
  const std::string reasons[] = {"QUEUE_FULL", "TOO_MANY_STREAMS", "DEADLINE_UNREACHABLE", "_MEMORY"};
  return std::any_of(std::begin(reasons), std::end(reasons),
                     [&](const std::string& reason) { return error.find(reason) != std::string::npos; });
}

struct LoadSeen {
  double begin = 0, end = 0;
  int64_t arrivals = 0;
  std::vector<double> good, refused;  // ms
  std::map<std::string, int64_t> errors;
  double largest_resident_bytes = 0;
};

class OverloadScenario {
 public:
  explicit OverloadScenario(Site& site) : site_(site), random_(site.options().seed) {}

  absl::Status Run() {
    INTRAWARP_RETURN_IF_ERROR(Prepare());
    INTRAWARP_RETURN_IF_ERROR(MeasureAlone());
    INTRAWARP_RETURN_IF_ERROR(MeasureCapacity());
    for (const double percent : site_.options().percents) {
      const LoadSeen seen = Load(capacity_ * percent / 100);
      recovering_.join();
      INTRAWARP_RETURN_IF_ERROR(recovery_.status());
      Print(percent, seen, *recovery_);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Prepare() {
    INTRAWARP_RETURN_IF_ERROR(PrepareFloods(site_, "registrations"));
    request_.set_fixed("volumes/flood-fixed");
    request_.set_moving(Site::RestName(site_.options().size));
    request_.mutable_ttl()->set_seconds(2);  // the results go by themselves
    INTRAWARP_ASSIGN_OR_RETURN(*request_.mutable_options(), OptionsOfMethod(site_.options().methods.front()));
    for (int i = 0; i < kConnections; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stubs_.push_back(v1::RegistrationService::NewStub(
          grpc::CreateCustomChannel(site_.server().grpc_address(), grpc::InsecureChannelCredentials(), arguments)));
    }
    return site_.Connect().status();
  }

  absl::StatusOr<double> OneCall(client::Client& client) const {
    const double begin = Now();
    INTRAWARP_RETURN_IF_ERROR(client.Register(request_, nullptr, nullptr).status());
    return 1e3 * (Now() - begin);
  }

  absl::Status MeasureAlone() {
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, site_.Connect());
    INTRAWARP_RETURN_IF_ERROR(OneCall(*client).status());
    std::vector<double> times;
    for (int i = 0; i < kAlone; ++i) {
      INTRAWARP_ASSIGN_OR_RETURN(const double ms, OneCall(*client));
      times.push_back(ms);
    }
    alone_ms_ = Median(times);
    const double asked = site_.options().call_deadline_ms;
    deadline_ms_ = asked > 0 ? asked : 10 * alone_ms_;
    return absl::OkStatus();
  }

  absl::Status MeasureCapacity() {
    Flood calls(site_, "registrations", kClosedLoopClients, [this](client::Client& client, int, int64_t) {
      return client.Register(request_, nullptr, nullptr).status();
    });
    const double from = Now() + site_.options().warmup, to = from + site_.options().seconds;
    SleepUntil(to);
    calls.Stop();
    capacity_ = calls.Rate(from, to);
    if (!(capacity_ > 0)) return absl::UnavailableError("no registration was answered: " + Tally(calls.errors()));
    Row row;
    row.Add("method", site_.options().methods.front()).Add("size", site_.options().size, 0);
    row.Add("alone p50 ms", alone_ms_, 2).Add("capacity/s", capacity_, 2).Add("deadline ms", deadline_ms_, 0);
    site_.report().Print("overload-capacity", row);
    return absl::OkStatus();
  }

  LoadSeen Load(double rate) {
    LoadSeen seen;
    std::vector<std::unique_ptr<ArrivingCall>> calls;
    std::exponential_distribution<double> gap(rate);
    seen.begin = Now() + 0.1;
    double due = seen.begin + gap(random_), sample = seen.begin;
    for (; due < seen.begin + site_.options().seconds; due += gap(random_)) {
      SleepUntil(due);
      calls.push_back(
          std::make_unique<ArrivingCall>(*stubs_[calls.size() % stubs_.size()], request_, due, deadline_ms_));
      if (Now() < sample) continue;
      seen.largest_resident_bytes = std::max(seen.largest_resident_bytes, site_.server().Usage().resident_bytes);
      sample = Now() + 0.2;
    }
    seen.end = Now();
    recovering_ = std::thread([this, end = seen.end] { recovery_ = MeasureRecovery(end); });
    Collect(calls, &seen);
    return seen;
  }

  static void Collect(const std::vector<std::unique_ptr<ArrivingCall>>& calls, LoadSeen* seen) {
    for (const auto& call : calls) {
      const double guard = seen->end + kDrainGuard;
      while (!call->over() && Now() < guard) SleepUntil(Now() + 0.001);
      call->Cancel();
      while (!call->over()) SleepUntil(Now() + 0.001);
      ++seen->arrivals;
      if (call->error().empty()) {
        seen->good.push_back(call->milliseconds());
        continue;
      }
      ++seen->errors[call->error()];
      if (IsRefusal(call->error())) seen->refused.push_back(call->milliseconds());
    }
  }

  // Seconds from the end of the load to the first of three calls in a row that are as quick as one alone.
  absl::StatusOr<double> MeasureRecovery(double end) const {
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, site_.Connect());
    double first = 0;
    for (int normal = 0; normal < 3;) {
      const double begin = Now();
      if (begin > end + kRecoveryGuard) return std::nan("");
      const absl::StatusOr<double> ms = OneCall(*client);
      if (!ms.ok() || *ms > kNormal * alone_ms_) {
        normal = 0;
        continue;
      }
      if (normal++ == 0) first = begin;
    }
    return first - end;
  }

  void Print(double percent, const LoadSeen& seen, double recovery) {
    Row row;
    row.Add("% of capacity", percent, 0).Add("arrivals", static_cast<double>(seen.arrivals), 0);
    row.Add("good/s", static_cast<double>(seen.good.size()) / (seen.end - seen.begin), 2);
    row.AddPercentiles(seen.good);
    row.Add("refused", static_cast<double>(seen.refused.size()), 0);
    row.Add("to refuse p50 ms", Percentile(seen.refused, 0.5), 2);
    row.Add("to refuse p99 ms", Percentile(seen.refused, 0.99), 2);
    row.Add("server MB", 1e-6 * seen.largest_resident_bytes, 0);
    row.Add("recovered after s", recovery, 2).Add("errors", Tally(seen.errors));
    site_.report().Print("overload", row);
  }

  Site& site_;
  std::mt19937 random_;
  v1::RegisterRequest request_;
  std::vector<std::unique_ptr<v1::RegistrationService::Stub>> stubs_;
  double alone_ms_ = 0, capacity_ = 0, deadline_ms_ = 0;
  std::thread recovering_;  // begins with the end of a load
  absl::StatusOr<double> recovery_ = 0.0;
};

}  // namespace

absl::Status RunOverloadScenario(Site& site) { return OverloadScenario(site).Run(); }

}  // namespace intrawarp::bench
