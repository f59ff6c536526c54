// SPDX-License-Identifier: Apache-2.0
// Metrics: what the server counts and measures, in Prometheus' text format. Names begin with intrawarp_, but for the
// vocabularies that dashboards know already: grpc_server_* (go-grpc-prometheus) and process_*. No label ever holds an
// id of a client's. Gauges that mirror state kept elsewhere are read when they are scraped.
//
// Thread safety: safe for concurrent use. Recording takes no lock that scraping holds for long; scrapes follow one
// another.
#ifndef INTRAWARP_SERVER_MONITOR_METRICS_H_
#define INTRAWARP_SERVER_MONITOR_METRICS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/device/device.h"
#include "engine/schedule/job_class.h"
#include "engine/schedule/job_record.h"
#include "engine/schedule/latency.h"
#include "intrawarp/v1/error.pb.h"
#include "server/base/version.h"
#include "server/monitor/watchdog.h"

namespace intrawarp::server {

// Values of the label class of registrations: frames of a Navigate stream, and single registrations.
enum class WorkClass { kFrame, kRegister };
// Values of the label outcome; late: a result after its deadline that was wanted all the same.
enum class FrameOutcome { kOk, kLate, kRejected, kSuperseded, kCancelled, kDeadlineMissed, kFailed };
// Values of the label outcome of sparse products.
enum class ProductOutcome { kOk, kRejected, kCancelled, kDeadlineMissed, kFailed };
// Values of the label reason of registration_nonconverged.
enum class Nonconvergence { kIterationLimit, kBudget, kNoProgress };

// Values of the label error of device_errors: no memory for a job, the device lost until a restart, a job or the
// device that does not come back.
enum class DeviceError { kOutOfMemory, kLost, kHung };

// Values of the label waits_for of streams_stalled: bytes that the client owes, bytes that it does not take.
enum class Stall { kRead, kWrite };

// Values of the label file of access_reloads: the certificate, key and authorities together, and the files of
// credentials.
enum class AccessFile { kTls, kTokens, kIdentities };
const char* NameOf(AccessFile file);

// An RPC method as the labels of grpc_server_* name it.
struct RpcMethod {
  std::string service;  // "intrawarp.v1.VolumeService"
  std::string method;   // "GetVolume"
  std::string type;     // unary, client_stream, server_stream, bidi_stream

  std::string full_name() const { return service + "/" + method; }
};

// A bounded resource: how much of it is in use, and how much there is. `evictable`: how much of what is used gives way
// to work that needs it; exported for memory alone.
struct MetricsUse {
  std::string what;
  int64_t used = 0;
  int64_t capacity = 0;
  int64_t evictable = 0;
};

// The state of one device that gauges mirror.
struct DeviceSample {
  struct Queue {
    int64_t depth = 0;
    int64_t capacity = 0;
    int64_t jobs_started = 0;
    // The time of the started job that has not checked in for the longest time.
    std::chrono::nanoseconds since_checkpoint{0};
  };
  std::array<Queue, kJobClasses> queues;
  // In bytes: "resident", "workspace".
  std::vector<MetricsUse> memory;
  // Unset: the device has no memory of its own, or has not answered yet.
  std::optional<DeviceMemory> device_memory;
  bool healthy = true;
  WatchdogState watchdog = WatchdogState::kWell;
};

// The state that gauges mirror.
struct MetricsSample {
  // In the order of the metrics' devices, perhaps fewer.
  std::vector<DeviceSample> devices;
  int64_t volumes = 0;
  // By where their voxels are (server/store/residency.h), in bytes of device memory.
  struct Volumes {
    int64_t count = 0;
    int64_t bytes = 0;
  };
  Volumes resident_volumes;
  Volumes spooled_volumes;
  int64_t matrices = 0;
  int64_t transforms = 0;
  // In bytes: "pinned".
  std::vector<MetricsUse> memory;
  // In places: "transforms", "streams".
  std::vector<MetricsUse> tables;
  // Operations that are remembered: "register", "running".
  struct Operations {
    std::string kind;
    std::string state;
    int64_t count = 0;
  };
  std::vector<Operations> operations;
  int64_t pinned_kept_bytes = 0;
  // The room on the file system of the state directory; unset without one.
  struct Disk {
    int64_t free_bytes = 0;
    int64_t size_bytes = 0;
  };
  std::optional<Disk> state_disk;
  // How long the stream that has waited longest for its client has waited.
  std::chrono::nanoseconds longest_stall{0};
  struct Audit {
    bool available = true;
    int64_t records = 0;
    int64_t lost = 0;
  };
  Audit audit;
};

class Metrics {
 public:
  // Calls of methods that are not in `methods` count as those of service and method "other". `devices`: their names, at
  // least one. What each device has its own of is labelled with the device where there are several.
  Metrics(const BuildInfo& build, const std::vector<std::string>& devices, const std::vector<RpcMethod>& methods,
          std::chrono::system_clock::time_point start_time);
  ~Metrics();

  // One RPC is in flight from RpcStarted to RpcHandled. `method`: RpcMethod::full_name.
  void RpcStarted(absl::string_view method);
  // `code`: of grpc::StatusCode.
  void RpcHandled(absl::string_view method, int code, std::chrono::nanoseconds elapsed);
  void RpcMessageReceived(absl::string_view method);
  void RpcReceivedBytes(absl::string_view method, int64_t bytes);
  // One message.
  void RpcSent(absl::string_view method, int64_t bytes);

  // One job of a device's scheduler, whatever became of it. On any thread.
  void JobDone(const JobRecord& job, int device = 0);
  // One registration, of a frame or a single one. Phases are recorded for outcome kOk alone.
  void FrameDone(WorkClass work, FrameOutcome outcome, const LatencyBreakdown& latency);
  // Normalised cross-correlation of the fixed and the warped moving image after a registration.
  void ObserveSimilarity(double ncc);
  void CountNonconverged(Nonconvergence reason);
  // One sparse product: its duration from request to result, multiplications and additions, entries of the result; the
  // latter three are recorded for outcome kOk alone.
  void ProductDone(ProductOutcome outcome, std::chrono::nanoseconds elapsed, int64_t flops, int64_t entries);
  // Only reasons that are a lack of room are counted.
  void CountRejection(v1::ErrorReason reason);
  // A connection beyond the limit was closed.
  void CountRefusedConnection();
  void CountDeviceError(DeviceError error, int device = 0);
  // A volume left the device to make room.
  void CountVolumeEviction();
  // A volume came back to the device, or did not.
  void VolumeLoaded(bool ok, std::chrono::nanoseconds elapsed);
  // A stream was ended because its client made no progress.
  void CountStall(Stall stall);

  // A caller that was turned away: NOT_AUTHENTICATED or ROLE_MISSING.
  void CountRefusedCaller(v1::ErrorReason reason);
  // A changed file was taken up, or was found to be broken.
  void CountReload(AccessFile file, bool taken_up);
  // The end of the server's TLS certificate.
  void SetCertificateEnd(std::chrono::system_clock::time_point end);

  // Called for each scrape, one at a time; must not wait for the device. After set_sampler(nullptr) has returned it is
  // not called any more.
  void set_sampler(std::function<MetricsSample()> sampler);

  // Text exposition format 0.0.4.
  std::string Scrape() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_METRICS_H_
