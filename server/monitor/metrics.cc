// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"

namespace intrawarp::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

constexpr int kCodes = 17;
constexpr std::array<const char*, kCodes> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
constexpr int kUnknownCode = 2;

constexpr std::array<const char*, 2> kClassNames = {"frame", "register"};
constexpr std::array<const char*, 6> kOutcomeNames = {"ok",        "rejected",        "superseded",
                                                      "cancelled", "deadline_missed", "failed"};
constexpr std::array<const char*, 5> kProductOutcomeNames = {"ok", "rejected", "cancelled", "deadline_missed",
                                                             "failed"};
// Reasons that count as rejections, and their label values.
constexpr std::array<v1::ErrorReason, 8> kRejections = {
    v1::QUEUE_FULL,       v1::RESIDENT_MEMORY,     v1::PINNED_MEMORY,    v1::TOO_MANY_STREAMS,
    v1::TOO_MANY_UPLOADS, v1::TOO_MANY_TRANSFORMS, v1::EXCEEDS_CAPACITY, v1::MULTIPLY_MEMORY};
constexpr std::array<const char*, kRejections.size()> kRejectionNames = {
    "queue_full",       "resident_memory",     "pinned_memory",    "too_many_streams",
    "too_many_uploads", "too_many_transforms", "exceeds_capacity", "multiply_memory"};
constexpr std::array<const char*, 3> kNonconvergenceNames = {"iteration_limit", "budget", "no_progress"};

const Histogram::BucketBoundaries kLatencyBuckets = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1,
                                                     0.15,   0.2,   0.3,   0.5,   0.75, 1,    2,    5,    10};
const Histogram::BucketBoundaries kSimilarityBuckets = {0,   0.1, 0.2,  0.3, 0.4,  0.5,  0.6,
                                                        0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99};

double Seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

template <size_t N>
std::array<Counter*, N> AddCounters(Family<Counter>& family, const std::string& label,
                                    const std::array<const char*, N>& values) {
  std::array<Counter*, N> counters;
  for (size_t i = 0; i < N; ++i) counters[i] = &family.Add({{label, values[i]}});
  return counters;
}

Family<Counter>& CounterFamily(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
Family<Gauge>& GaugeFamily(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
Family<Histogram>& HistogramFamily(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

// The series of one RPC method.
struct MethodSeries {
  Counter* started;
  std::array<Counter*, kCodes> handled;
  Histogram* seconds;
  Counter* received_bytes;
  Counter* sent_bytes;
  Gauge* active;
};

// The series of one class of jobs.
struct QueueSeries {
  Gauge* depth;
  Gauge* capacity;
  Gauge* jobs_running;
};

struct FrameSeries {
  std::array<Counter*, kOutcomeNames.size()> outcomes;
  Histogram* latency;
};

}  // namespace

struct Metrics::Impl {
  Registry registry;
  std::map<std::string, MethodSeries, std::less<>> methods;
  MethodSeries other;
  std::array<FrameSeries, kClassNames.size()> frames;
  std::array<Histogram*, kPhases> phases;
  std::array<Counter*, kProductOutcomeNames.size()> products;
  Histogram* product_seconds;
  Counter* product_flops;
  Counter* product_entries;
  Histogram* similarity;
  std::array<Counter*, kNonconvergenceNames.size()> nonconverged;
  std::array<Counter*, kRejectionNames.size()> rejections;
  std::array<Counter*, 2> device_errors;  // by DeviceError

  // Set from a sample at each scrape.
  std::array<QueueSeries, kJobClasses> queues;
  Gauge* volumes;
  Gauge* matrices;
  Gauge* transforms;
  Gauge* resident_bytes;
  Gauge* resident_capacity_bytes;
  Gauge* device_used;
  Gauge* device_free;
  Gauge* pinned_leased;
  Gauge* pinned_kept;
  Gauge* device_healthy;

  mutable std::mutex mutex;
  std::function<MetricsSample()> sampler;  // guarded by mutex

  void AddBuild(const BuildInfo& build, std::chrono::system_clock::time_point start_time);
  void AddMethods(const std::vector<std::string>& names);
  void AddFrames();
  void AddProducts();
  void AddGauges(const std::string& device);

  const MethodSeries& Method(absl::string_view name) const {
    const auto it = methods.find(std::string_view(name.data(), name.size()));
    return it == methods.end() ? other : it->second;
  }
  void Apply(const MetricsSample& sample) const;
};

void Metrics::Impl::AddBuild(const BuildInfo& build, std::chrono::system_clock::time_point start_time) {
  GaugeFamily(registry, "intrawarp_build_info", "What runs here; always 1.")
      .Add({{"version", build.version}, {"revision", build.revision}, {"cuda", build.cuda}, {"grpc", build.grpc}})
      .Set(1);
  GaugeFamily(registry, "intrawarp_start_time_seconds", "When the server started, Unix time.")
      .Add({})
      .Set(std::chrono::duration<double>(start_time.time_since_epoch()).count());
}

void Metrics::Impl::AddMethods(const std::vector<std::string>& names) {
  auto& started = CounterFamily(registry, "intrawarp_grpc_server_started_total", "RPCs begun.");
  auto& handled = CounterFamily(registry, "intrawarp_grpc_server_handled_total", "RPCs ended, by status code.");
  auto& seconds =
      HistogramFamily(registry, "intrawarp_grpc_server_handling_seconds", "Time from begin to end of RPCs.");
  auto& received =
      CounterFamily(registry, "intrawarp_grpc_server_msg_received_bytes_total", "Bytes of messages received.");
  auto& sent = CounterFamily(registry, "intrawarp_grpc_server_msg_sent_bytes_total", "Bytes of messages sent.");
  auto& active = GaugeFamily(registry, "intrawarp_streams_active", "RPCs under way.");
  const auto add = [&](const std::string& name) {
    const prometheus::Labels labels = {{"method", name}};
    MethodSeries series;
    series.started = &started.Add(labels);
    for (int i = 0; i < kCodes; ++i) series.handled[i] = &handled.Add({{"method", name}, {"code", kCodeNames[i]}});
    series.seconds = &seconds.Add(labels, kLatencyBuckets);
    series.received_bytes = &received.Add(labels);
    series.sent_bytes = &sent.Add(labels);
    series.active = &active.Add(labels);
    return series;
  };
  for (const std::string& name : names) methods.emplace(name, add(name));
  other = add("other");
}

void Metrics::Impl::AddFrames() {
  auto& total = CounterFamily(registry, "intrawarp_frames_total", "Registrations, by how they ended.");
  auto& latency = HistogramFamily(registry, "intrawarp_frame_latency_seconds",
                                  "From the request's first byte to the last byte handed to the transport.");
  for (size_t c = 0; c < kClassNames.size(); ++c) {
    for (size_t o = 0; o < kOutcomeNames.size(); ++o) {
      frames[c].outcomes[o] = &total.Add({{"class", kClassNames[c]}, {"outcome", kOutcomeNames[o]}});
    }
    frames[c].latency = &latency.Add({{"class", kClassNames[c]}}, kLatencyBuckets);
  }
  auto& phase = HistogramFamily(registry, "intrawarp_frame_phase_seconds", "Where a registration's time went.");
  for (int i = 0; i < kPhases; ++i) phases[i] = &phase.Add({{"phase", kPhaseNames[i]}}, kLatencyBuckets);
  similarity = &HistogramFamily(registry, "intrawarp_registration_similarity",
                                "Normalised cross-correlation after a registration.")
                    .Add({}, kSimilarityBuckets);
  nonconverged = AddCounters(CounterFamily(registry, "intrawarp_registration_nonconverged_total",
                                           "Registrations that ended for another reason than convergence."),
                             "reason", kNonconvergenceNames);
  rejections = AddCounters(
      CounterFamily(registry, "intrawarp_admission_rejections_total", "Requests refused for lack of room, by what of."),
      "reason", kRejectionNames);
}

void Metrics::Impl::AddProducts() {
  products = AddCounters(CounterFamily(registry, "intrawarp_spgemm_jobs_total", "Sparse products, by how they ended."),
                         "outcome", kProductOutcomeNames);
  product_seconds = &HistogramFamily(registry, "intrawarp_spgemm_job_seconds",
                                     "From the request of a sparse product to the last byte handed to the transport.")
                         .Add({}, kLatencyBuckets);
  product_flops = &CounterFamily(registry, "intrawarp_spgemm_flops_total",
                                 "Multiplications and additions of sparse products that ended well.")
                       .Add({});
  product_entries = &CounterFamily(registry, "intrawarp_spgemm_output_nonzeros_total",
                                   "Entries of the results of sparse products that ended well.")
                         .Add({});
}

void Metrics::Impl::AddGauges(const std::string& device) {
  auto& depth = GaugeFamily(registry, "intrawarp_queue_depth", "Jobs that wait.");
  auto& capacity = GaugeFamily(registry, "intrawarp_queue_capacity", "Jobs that may wait.");
  auto& running = GaugeFamily(registry, "intrawarp_jobs_running",
                              "Jobs that have started: they compute, or are held for a better one.");
  for (int i = 0; i < kJobClasses; ++i) {
    const prometheus::Labels labels = {{"class", kJobClassNames[i]}};
    queues[i] = {&depth.Add(labels), &capacity.Add(labels), &running.Add(labels)};
  }
  auto& resident = GaugeFamily(registry, "intrawarp_volumes_resident", "Objects resident on the device, by kind.");
  volumes = &resident.Add({{"kind", "volume"}});
  matrices = &resident.Add({{"kind", "matrix"}});
  transforms = &resident.Add({{"kind", "transform"}});
  resident_bytes = &GaugeFamily(registry, "intrawarp_volume_resident_bytes",
                                "Device memory that resident objects are accounted for.")
                        .Add({});
  resident_capacity_bytes =
      &GaugeFamily(registry, "intrawarp_volume_capacity_bytes", "Device memory that resident objects may take.")
           .Add({});
  auto& memory = GaugeFamily(registry, "intrawarp_device_memory_bytes", "Memory of the device.");
  device_used = &memory.Add({{"device", device}, {"state", "used"}});
  device_free = &memory.Add({{"device", device}, {"state", "free"}});
  auto& pinned =
      GaugeFamily(registry, "intrawarp_pinned_memory_bytes", "Host memory for transfers: leased, or kept for reuse.");
  pinned_leased = &pinned.Add({{"state", "leased"}});
  pinned_kept = &pinned.Add({{"state", "kept"}});
  device_healthy =
      &GaugeFamily(registry, "intrawarp_device_healthy", "1 while the device can be used.").Add({{"device", device}});
  auto& errors = CounterFamily(registry, "intrawarp_device_errors_total",
                               "What went wrong with the device: no memory for a job, or the device lost.");
  device_errors = {&errors.Add({{"device", device}, {"error", "out_of_memory"}}),
                   &errors.Add({{"device", device}, {"error", "lost"}})};
}

void Metrics::Impl::Apply(const MetricsSample& s) const {
  for (int i = 0; i < kJobClasses; ++i) {
    queues[i].depth->Set(s.queues[i].depth);
    queues[i].capacity->Set(s.queues[i].capacity);
    queues[i].jobs_running->Set(s.queues[i].jobs_started);
  }
  volumes->Set(s.volumes);
  matrices->Set(s.matrices);
  transforms->Set(s.transforms);
  resident_bytes->Set(s.resident_bytes);
  resident_capacity_bytes->Set(s.resident_capacity_bytes);
  device_used->Set(s.device_used_bytes);
  device_free->Set(s.device_free_bytes);
  pinned_leased->Set(s.pinned_leased_bytes);
  pinned_kept->Set(s.pinned_kept_bytes);
  device_healthy->Set(s.device_healthy ? 1 : 0);
}

Metrics::Metrics(const BuildInfo& build, absl::string_view device, const std::vector<std::string>& methods,
                 std::chrono::system_clock::time_point start_time)
    : impl_(std::make_unique<Impl>()) {
  impl_->AddBuild(build, start_time);
  impl_->AddMethods(methods);
  impl_->AddFrames();
  impl_->AddProducts();
  impl_->AddGauges(std::string(device));
}

Metrics::~Metrics() = default;

void Metrics::RpcStarted(absl::string_view method) {
  const MethodSeries& series = impl_->Method(method);
  series.started->Increment();
  series.active->Increment();
}

void Metrics::RpcHandled(absl::string_view method, int code, std::chrono::nanoseconds elapsed) {
  const MethodSeries& series = impl_->Method(method);
  series.handled[code >= 0 && code < kCodes ? code : kUnknownCode]->Increment();
  series.seconds->Observe(Seconds(elapsed));
  series.active->Decrement();
}

void Metrics::RpcReceivedBytes(absl::string_view method, int64_t bytes) {
  impl_->Method(method).received_bytes->Increment(static_cast<double>(bytes));
}

void Metrics::RpcSentBytes(absl::string_view method, int64_t bytes) {
  impl_->Method(method).sent_bytes->Increment(static_cast<double>(bytes));
}

void Metrics::FrameDone(WorkClass work, FrameOutcome outcome, const LatencyBreakdown& latency) {
  const FrameSeries& series = impl_->frames[static_cast<int>(work)];
  series.outcomes[static_cast<int>(outcome)]->Increment();
  if (outcome != FrameOutcome::kOk) return;
  series.latency->Observe(Seconds(latency.total()));
  for (int i = 0; i < kPhases; ++i) impl_->phases[i]->Observe(Seconds(latency.phase(static_cast<Phase>(i))));
}

void Metrics::ProductDone(ProductOutcome outcome, std::chrono::nanoseconds elapsed, int64_t flops, int64_t entries) {
  impl_->products[static_cast<int>(outcome)]->Increment();
  if (outcome != ProductOutcome::kOk) return;
  impl_->product_seconds->Observe(Seconds(elapsed));
  impl_->product_flops->Increment(static_cast<double>(flops));
  impl_->product_entries->Increment(static_cast<double>(entries));
}

void Metrics::ObserveSimilarity(double ncc) { impl_->similarity->Observe(ncc); }

void Metrics::CountNonconverged(Nonconvergence reason) { impl_->nonconverged[static_cast<int>(reason)]->Increment(); }

void Metrics::CountRejection(v1::ErrorReason reason) {
  const auto it = std::find(kRejections.begin(), kRejections.end(), reason);
  if (it != kRejections.end()) impl_->rejections[it - kRejections.begin()]->Increment();
}

void Metrics::CountDeviceError(DeviceError error) { impl_->device_errors[static_cast<int>(error)]->Increment(); }

void Metrics::set_sampler(std::function<MetricsSample()> sampler) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->sampler = std::move(sampler);
}

std::string Metrics::Scrape() const {
  {
    // Under the lock, so that after set_sampler(nullptr) the state sampled may go.
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->sampler) impl_->Apply(impl_->sampler());
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return out.str();
}

}  // namespace intrawarp::server
