// SPDX-License-Identifier: Apache-2.0
// Metrics: what the server counts and measures, in Prometheus' text format. Names begin with intrawarp_; no label ever
// holds an id of a client's. Gauges that mirror state kept elsewhere are read when they are scraped.
//
// Thread safety: safe for concurrent use. Recording takes no lock that scraping holds for long.
#ifndef INTRAWARP_SERVER_MONITOR_METRICS_H_
#define INTRAWARP_SERVER_MONITOR_METRICS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/schedule/latency.h"
#include "engine/schedule/scheduling_policy.h"
#include "intrawarp/v1/error.pb.h"

namespace intrawarp::server {

// Values of the label class of frames: those of a Navigate stream, and single registrations.
enum class WorkClass { kFrame, kRegister };
// Values of the label outcome.
enum class FrameOutcome { kOk, kRejected, kSuperseded, kCancelled, kDeadlineMissed, kFailed };
// Values of the label outcome of sparse products.
enum class ProductOutcome { kOk, kRejected, kCancelled, kDeadlineMissed, kFailed };
// Values of the label reason of registration_nonconverged.
enum class Nonconvergence { kIterationLimit, kBudget, kNoProgress };

// Values of the label error of device_errors: no memory for a job, or the device lost until a restart.
enum class DeviceError { kOutOfMemory, kLost };

struct BuildInfo {
  std::string version;
  std::string revision;
  std::string cuda;  // "none" in a build without
  std::string grpc;
};

// The state that gauges mirror.
struct MetricsSample {
  struct Queue {
    int64_t depth = 0;
    int64_t capacity = 0;
    int64_t jobs_started = 0;
  };
  std::array<Queue, kJobClasses> queues;
  int64_t volumes = 0;
  int64_t matrices = 0;
  int64_t transforms = 0;
  int64_t resident_bytes = 0;
  int64_t resident_capacity_bytes = 0;
  int64_t device_used_bytes = 0;
  int64_t device_free_bytes = 0;
  int64_t pinned_leased_bytes = 0;
  int64_t pinned_kept_bytes = 0;
  bool device_healthy = true;
};

class Metrics {
 public:
  // `methods`: full names of the RPC methods ("intrawarp.v1.VolumeService/GetVolume"); calls of others count as
  // "other".
  Metrics(const BuildInfo& build, absl::string_view device, const std::vector<std::string>& methods,
          std::chrono::system_clock::time_point start_time);
  ~Metrics();

  // One RPC is active from RpcStarted to RpcHandled.
  void RpcStarted(absl::string_view method);
  // `code`: of grpc::StatusCode.
  void RpcHandled(absl::string_view method, int code, std::chrono::nanoseconds elapsed);
  void RpcReceivedBytes(absl::string_view method, int64_t bytes);
  void RpcSentBytes(absl::string_view method, int64_t bytes);

  // One registration, of a frame or a single one. Phases are recorded for outcome kOk alone.
  void FrameDone(WorkClass work, FrameOutcome outcome, const LatencyBreakdown& latency);
  // Normalised cross-correlation of the fixed and the warped moving image after a registration.
  void ObserveSimilarity(double ncc);
  void CountNonconverged(Nonconvergence reason);
  // One sparse product: its duration from request to result, multiplications and additions, entries of the result; the
  // latter three are recorded for outcome kOk alone.
  void ProductDone(ProductOutcome outcome, std::chrono::nanoseconds elapsed, int64_t flops, int64_t entries);
  // Reasons that are no lack of room are not counted.
  void CountRejection(v1::ErrorReason reason);
  void CountDeviceError(DeviceError error);

  // Called for each scrape, one at a time. After set_sampler(nullptr) has returned it is not called any more.
  void set_sampler(std::function<MetricsSample()> sampler);

  // Text exposition format 0.0.4.
  std::string Scrape() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_METRICS_H_
