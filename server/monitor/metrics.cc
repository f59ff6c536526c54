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

#include "absl/strings/ascii.h"
#include "server/monitor/process_stats.h"

namespace intrawarp::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;
using Buckets = Histogram::BucketBoundaries;

// As go-grpc-prometheus spells them, whose dashboards and alerts are the common ones.
constexpr int kCodes = 17;
constexpr std::array<const char*, kCodes> kCodeNames = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};
constexpr int kUnknownCode = 2;

constexpr std::array<const char*, 2> kWorkNames = {"frame", "register"};
constexpr std::array<const char*, 7> kOutcomeNames = {
    "ok", "late", "rejected", "superseded", "cancelled", "deadline_missed", "failed"};
constexpr std::array<const char*, 5> kProductOutcomeNames = {"ok", "rejected", "cancelled", "deadline_missed",
                                                             "failed"};
constexpr std::array<const char*, 4> kJobOutcomeNames = {"done", "cancelled", "expired", "refused"};
// Reasons that count as rejections; the values of the label are their names in lower case.
constexpr v1::ErrorReason kRejections[] = {
    v1::QUEUE_FULL,          v1::RESIDENT_MEMORY,     v1::PINNED_MEMORY,     v1::TOO_MANY_STREAMS,
    v1::TOO_MANY_UPLOADS,    v1::TOO_MANY_TRANSFORMS, v1::EXCEEDS_CAPACITY,  v1::MULTIPLY_MEMORY,
    v1::DEVICE_HUNG,         v1::WORKSPACE_MEMORY,    v1::TOO_MANY_SESSIONS, v1::DEADLINE_UNREACHABLE,
    v1::TOO_MANY_OPERATIONS, v1::MESSAGE_RATE,        v1::STATE_FULL,        v1::STATE_UNAVAILABLE,
    v1::TOO_MANY_CALLS,      v1::AUDIT_UNAVAILABLE,   v1::CALL_RATE,         v1::OWNER_QUOTA};
constexpr v1::ErrorReason kCallerRefusals[] = {v1::NOT_AUTHENTICATED, v1::ROLE_MISSING};
constexpr std::array<const char*, 3> kAccessFileNames = {"tls", "tokens", "identities"};
constexpr std::array<const char*, 2> kReloadOutcomes = {"failed", "ok"};
constexpr char kTooManyConnections[] = "too_many_connections";
constexpr std::array<const char*, 3> kNonconvergenceNames = {"iteration_limit", "budget", "no_progress"};
constexpr std::array<const char*, 3> kDeviceErrorNames = {"out_of_memory", "lost", "hung"};
constexpr std::array<const char*, 2> kStallNames = {"read", "write"};
constexpr std::array<const char*, 2> kLoadOutcomes = {"ok", "failed"};
constexpr std::array<const char*, 3> kWatchdogNames = {"well", "hung", "lost"};

// Frames and calls that are answered at once: 0.5 ms to 2 s.
const Buckets kShortBuckets = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
                               0.1,    0.15,  0.2,   0.3,   0.5,  0.75, 1,    2};
// Registrations, products and streams: up to an hour.
const Buckets kLongBuckets = {0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600};
// Deadline minus end; what is late lies below zero.
const Buckets kSlackBuckets = {-10, -1, -0.3, -0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1, 10, 60};
// Actual to predicted time.
const Buckets kRatioBuckets = {0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10};
const Buckets kSimilarityBuckets = {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99};

double Seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

std::string LowerName(v1::ErrorReason reason) { return absl::AsciiStrToLower(v1::ErrorReason_Name(reason)); }

Labels With(Labels labels, const std::string& name, const std::string& value) {
  labels[name] = value;
  return labels;
}

template <size_t N>
std::array<Counter*, N> AddCounters(Family<Counter>& family, const std::string& label,
                                    const std::array<const char*, N>& values, const Labels& others = {}) {
  std::array<Counter*, N> counters;
  for (size_t i = 0; i < N; ++i) counters[i] = &family.Add(With(others, label, values[i]));
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
  Counter* received;
  Counter* sent;
  Counter* received_bytes;
  Counter* sent_bytes;
  Gauge* in_flight;
};

// The families that the methods' series belong to.
struct MethodFamilies {
  explicit MethodFamilies(Registry& r)
      : started(CounterFamily(r, "grpc_server_started_total", "RPCs begun.")),
        handled(CounterFamily(r, "grpc_server_handled_total", "RPCs ended, by status code.")),
        seconds(HistogramFamily(r, "grpc_server_handling_seconds", "Time from begin to end of RPCs.")),
        received(CounterFamily(r, "grpc_server_msg_received_total", "Messages received.")),
        sent(CounterFamily(r, "grpc_server_msg_sent_total", "Messages sent.")),
        received_bytes(CounterFamily(r, "grpc_server_msg_received_bytes_total", "Bytes of messages received.")),
        sent_bytes(CounterFamily(r, "grpc_server_msg_sent_bytes_total", "Bytes of messages sent.")),
        in_flight(GaugeFamily(r, "grpc_server_in_flight", "RPCs under way.")) {}

  MethodSeries Add(const RpcMethod& method) {
    const Labels labels = {
        {"grpc_service", method.service}, {"grpc_method", method.method}, {"grpc_type", method.type}};
    MethodSeries series;
    series.started = &started.Add(labels);
    series.handled = AddCounters(handled, "grpc_code", kCodeNames, labels);
    series.seconds = &seconds.Add(labels, method.type == "unary" ? kShortBuckets : kLongBuckets);
    series.received = &received.Add(labels);
    series.sent = &sent.Add(labels);
    series.received_bytes = &received_bytes.Add(labels);
    series.sent_bytes = &sent_bytes.Add(labels);
    series.in_flight = &in_flight.Add(labels);
    return series;
  }

  Family<Counter>& started;
  Family<Counter>& handled;
  Family<Histogram>& seconds;
  Family<Counter>& received;
  Family<Counter>& sent;
  Family<Counter>& received_bytes;
  Family<Counter>& sent_bytes;
  Family<Gauge>& in_flight;
};

// The series of one class of jobs.
struct JobSeries {
  std::array<Histogram*, kJobOutcomeNames.size()> queue_seconds;
  Counter* busy;
  Counter* held;
  Counter* late;
  Histogram* slack;
  Histogram* prediction;
  // Set from a sample at each scrape.
  Gauge* depth;
  Gauge* capacity;
  Gauge* started;
  Gauge* since_checkpoint;
};

// The series of one device.
struct DeviceSeries {
  std::string name;
  // The label of what each device has its own of: empty for the only device.
  Labels labels;
  std::array<JobSeries, kJobClasses> jobs;
  std::array<Counter*, kDeviceErrorNames.size()> errors;
  // Set from a sample at each scrape.
  Gauge* healthy;
  std::array<Gauge*, kWatchdogNames.size()> watchdog;
};

struct RegistrationSeries {
  std::array<Counter*, kOutcomeNames.size()> outcomes;
  Histogram* seconds;
  std::array<Histogram*, kPhases> phases;
};

// Set at each scrape.
struct ProcessSeries {
  Counter* cpu;
  Gauge* resident;
  Gauge* virtual_memory;
  Gauge* open_fds;
  Gauge* max_fds;
  Gauge* threads;
};

}  // namespace

struct Metrics::Impl {
  Registry registry;
  std::map<std::string, MethodSeries, std::less<>> methods;
  MethodSeries other;
  std::vector<DeviceSeries> devices;
  std::array<RegistrationSeries, kWorkNames.size()> registrations;
  std::array<Counter*, kProductOutcomeNames.size()> products;
  Histogram* product_seconds;
  Counter* product_flops;
  Counter* product_entries;
  Histogram* similarity;
  std::array<Counter*, kNonconvergenceNames.size()> nonconverged;
  std::map<v1::ErrorReason, Counter*> rejections;
  Counter* refused_connections;
  std::array<Counter*, kStallNames.size()> stalls;
  Counter* evictions;
  std::array<Counter*, kLoadOutcomes.size()> loads;
  Histogram* load_seconds;
  std::map<v1::ErrorReason, Counter*> refused_callers;
  std::array<std::array<Counter*, kReloadOutcomes.size()>, kAccessFileNames.size()> reloads;

  // Set from a sample at each scrape.
  Gauge* volumes;
  Family<Gauge>* volume_counts;
  Family<Gauge>* volume_bytes;
  Gauge* matrices;
  Gauge* transforms;
  Family<Gauge>* memory_used;
  Family<Gauge>* memory_evictable;
  Family<Gauge>* memory_capacity;
  Family<Gauge>* operations;
  Family<Gauge>* table_used;
  Family<Gauge>* table_capacity;
  Family<Gauge>* device_memory;
  Gauge* pinned_kept;
  Family<Gauge>* state_disk_free;
  Family<Gauge>* state_disk_size;
  Gauge* longest_stall;
  Gauge* audit_available;
  Gauge* audit_records;
  Counter* audit_lost;
  ProcessSeries process;

  // Held while a scrape is made.
  mutable std::mutex mutex;
  std::function<MetricsSample()> sampler;  // guarded by mutex

  void AddDeviceNames(const std::vector<std::string>& names);
  void AddBuild(const BuildInfo& build);
  void AddMethods(const std::vector<RpcMethod>& names);
  void AddJobs();
  void AddRegistrations();
  void AddProducts();
  void AddResources();
  void AddResidency();
  void AddDevices();
  void AddAccess();
  void AddAudit();
  void AddProcess(std::chrono::system_clock::time_point start_time);

  const MethodSeries& Method(absl::string_view name) const {
    const auto it = methods.find(std::string_view(name.data(), name.size()));
    return it == methods.end() ? other : it->second;
  }
  // With the mutex held.
  void Apply(const MetricsSample& sample) const;
  void ApplyDevice(const DeviceSeries& series, const DeviceSample& sample) const;
  void ApplyMemory(const MetricsUse& use, const Labels& labels) const;
  void ApplyProcess() const;
};

void Metrics::Impl::AddBuild(const BuildInfo& build) {
  GaugeFamily(registry, "intrawarp_build_info", "What runs here; always 1.")
      .Add({{"version", build.version}, {"revision", build.revision}, {"cuda", build.cuda}, {"grpc", build.grpc}})
      .Set(1);
}

void Metrics::Impl::AddMethods(const std::vector<RpcMethod>& names) {
  MethodFamilies families(registry);
  for (const RpcMethod& name : names) methods.emplace(name.full_name(), families.Add(name));
  other = families.Add({"other", "other", "unary"});
}

void Metrics::Impl::AddDeviceNames(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    DeviceSeries series;
    series.name = name;
    if (names.size() > 1) series.labels = {{"device", name}};
    devices.push_back(std::move(series));
  }
}

void Metrics::Impl::AddJobs() {
  auto& queue = HistogramFamily(registry, "intrawarp_job_queue_seconds",
                                "From a job's submission to its start, or to its end without one, by outcome.");
  auto& busy = CounterFamily(registry, "intrawarp_job_busy_seconds_total", "Time in which jobs computed.");
  auto& held = CounterFamily(registry, "intrawarp_job_held_seconds_total", "Time in which started jobs were held.");
  auto& late = CounterFamily(registry, "intrawarp_jobs_late_total", "Jobs that ended after their deadline.");
  auto& slack = HistogramFamily(registry, "intrawarp_deadline_slack_seconds",
                                "Deadline minus end of jobs with a deadline; late ones are below zero.");
  auto& prediction = HistogramFamily(registry, "intrawarp_prediction_error_ratio",
                                     "Time that a job computed over the time that was predicted.");
  auto& depth = GaugeFamily(registry, "intrawarp_queue_depth", "Jobs that wait.");
  auto& capacity = GaugeFamily(registry, "intrawarp_queue_capacity", "Jobs that may wait.");
  auto& started = GaugeFamily(registry, "intrawarp_jobs_running",
                              "Jobs that have started: they compute, or are held for a better one.");
  auto& checkpoint = GaugeFamily(registry, "intrawarp_since_checkpoint_seconds",
                                 "Since the last checkpoint of the started job that has gone longest without one.");
  const auto add = [&](const DeviceSeries& device, int i) {
    const Labels labels = With(device.labels, "class", kJobClassNames[i]);
    const Buckets& buckets = static_cast<JobClass>(i) == JobClass::kFrame ? kShortBuckets : kLongBuckets;
    JobSeries series;
    for (size_t o = 0; o < kJobOutcomeNames.size(); ++o) {
      series.queue_seconds[o] = &queue.Add(With(labels, "outcome", kJobOutcomeNames[o]), buckets);
    }
    series.busy = &busy.Add(With(labels, "device", device.name));
    series.held = &held.Add(With(labels, "device", device.name));
    series.late = &late.Add(labels);
    series.slack = &slack.Add(labels, kSlackBuckets);
    series.prediction = &prediction.Add(labels, kRatioBuckets);
    series.depth = &depth.Add(labels);
    series.capacity = &capacity.Add(labels);
    series.started = &started.Add(labels);
    series.since_checkpoint = &checkpoint.Add(labels);
    return series;
  };
  for (DeviceSeries& device : devices) {
    for (int i = 0; i < kJobClasses; ++i) device.jobs[i] = add(device, i);
  }
}

void Metrics::Impl::AddRegistrations() {
  auto& total = CounterFamily(registry, "intrawarp_registrations_total", "Registrations, by how they ended.");
  auto& seconds = HistogramFamily(registry, "intrawarp_registration_seconds",
                                  "From the request's first byte to the last byte handed to the transport.");
  auto& phase = HistogramFamily(registry, "intrawarp_registration_phase_seconds", "Where a registration's time went.");
  for (size_t c = 0; c < kWorkNames.size(); ++c) {
    const Labels labels = {{"class", kWorkNames[c]}};
    const Buckets& buckets = static_cast<WorkClass>(c) == WorkClass::kFrame ? kShortBuckets : kLongBuckets;
    registrations[c].outcomes = AddCounters(total, "outcome", kOutcomeNames, labels);
    registrations[c].seconds = &seconds.Add(labels, buckets);
    for (int i = 0; i < kPhases; ++i) {
      registrations[c].phases[i] = &phase.Add(With(labels, "phase", kPhaseNames[i]), buckets);
    }
  }
  similarity = &HistogramFamily(registry, "intrawarp_registration_similarity",
                                "Normalised cross-correlation after a registration.")
                    .Add({}, kSimilarityBuckets);
  nonconverged = AddCounters(CounterFamily(registry, "intrawarp_registration_nonconverged_total",
                                           "Registrations that ended for another reason than convergence."),
                             "reason", kNonconvergenceNames);
}

void Metrics::Impl::AddProducts() {
  products = AddCounters(CounterFamily(registry, "intrawarp_products_total", "Sparse products, by how they ended."),
                         "outcome", kProductOutcomeNames);
  product_seconds = &HistogramFamily(registry, "intrawarp_product_seconds",
                                     "From the request of a sparse product to the last byte handed to the transport.")
                         .Add({}, kLongBuckets);
  product_flops = &CounterFamily(registry, "intrawarp_product_flops_total",
                                 "Multiplications and additions of sparse products that ended well.")
                       .Add({});
  product_entries = &CounterFamily(registry, "intrawarp_product_nonzeros_total",
                                   "Entries of the results of sparse products that ended well.")
                         .Add({});
}

void Metrics::Impl::AddResources() {
  auto& refused = CounterFamily(registry, "intrawarp_admission_rejections_total",
                                "Requests and connections refused for lack of room, by what of.");
  for (const v1::ErrorReason reason : kRejections) rejections[reason] = &refused.Add({{"reason", LowerName(reason)}});
  refused_connections = &refused.Add({{"reason", kTooManyConnections}});
  stalls = AddCounters(CounterFamily(registry, "intrawarp_streams_stalled_total",
                                     "Streams ended because their client did not send or read for too long."),
                       "waits_for", kStallNames);
  longest_stall = &GaugeFamily(registry, "intrawarp_longest_stall_seconds",
                               "How long the stream that waits longest for its client has waited.")
                       .Add({});
  auto& resident = GaugeFamily(registry, "intrawarp_resident_objects", "Objects resident on the device, by kind.");
  volumes = &resident.Add({{"kind", "volume"}});
  matrices = &resident.Add({{"kind", "sparse_matrix"}});
  transforms = &resident.Add({{"kind", "transform"}});
  memory_used = &GaugeFamily(registry, "intrawarp_memory_used_bytes", "Memory that is accounted for, by kind.");
  memory_evictable = &GaugeFamily(registry, "intrawarp_memory_evictable_bytes",
                                  "Used memory that gives way to work: of kept volumes that nobody uses, by kind.");
  memory_capacity = &GaugeFamily(registry, "intrawarp_memory_capacity_bytes", "Memory that may be used, by kind.");
  operations = &GaugeFamily(registry, "intrawarp_operations", "Operations that are remembered, by kind and state.");
  table_used = &GaugeFamily(registry, "intrawarp_table_used", "Places taken in a bounded table.");
  table_capacity = &GaugeFamily(registry, "intrawarp_table_capacity", "Places of a bounded table.");
  pinned_kept =
      &GaugeFamily(registry, "intrawarp_pinned_kept_bytes", "Pinned host memory that is kept for reuse.").Add({});
  state_disk_free = &GaugeFamily(registry, "intrawarp_state_disk_free_bytes",
                                 "Bytes that the server may still write on the state directory's file system.");
  state_disk_size =
      &GaugeFamily(registry, "intrawarp_state_disk_size_bytes", "Size of the state directory's file system.");
}

void Metrics::Impl::AddResidency() {
  evictions = &CounterFamily(registry, "intrawarp_volume_evictions_total", "Volumes that left the device to make room.")
                   .Add({});
  loads = AddCounters(CounterFamily(registry, "intrawarp_volume_loads_total",
                                    "Volumes that work waited for, read back from the state directory."),
                      "outcome", kLoadOutcomes);
  load_seconds =
      &HistogramFamily(registry, "intrawarp_volume_load_seconds", "Time to read a volume back and prepare it.")
           .Add({}, kShortBuckets);
  volume_counts =
      &GaugeFamily(registry, "intrawarp_volumes", "Volumes, by where their voxels are: resident or spooled.");
  volume_bytes = &GaugeFamily(registry, "intrawarp_volume_bytes",
                              "Device memory that the volumes take, or would take, by where their voxels are.");
}

void Metrics::Impl::AddAccess() {
  auto& refused =
      CounterFamily(registry, "intrawarp_callers_refused_total", "Calls refused for want of an identity or of a role.");
  for (const v1::ErrorReason reason : kCallerRefusals) {
    refused_callers[reason] = &refused.Add({{"reason", LowerName(reason)}});
  }
  auto& family = CounterFamily(registry, "intrawarp_access_reloads_total",
                               "Changed files of certificates and credentials, taken up or found broken.");
  for (size_t i = 0; i < reloads.size(); ++i) {
    reloads[i] = AddCounters(family, "outcome", kReloadOutcomes, {{"file", kAccessFileNames[i]}});
  }
}

void Metrics::Impl::AddAudit() {
  audit_available =
      &GaugeFamily(registry, "intrawarp_audit_available", "0 while the audit log cannot be written.").Add({});
  audit_records =
      &GaugeFamily(registry, "intrawarp_audit_records", "Records of the audit log that are on the disk.").Add({});
  audit_lost =
      &CounterFamily(registry, "intrawarp_audit_records_lost_total", "Audit records that found no room.").Add({});
}

void Metrics::Impl::AddDevices() {
  device_memory = &GaugeFamily(registry, "intrawarp_device_memory_bytes", "Memory of a GPU.");
  auto& healthy = GaugeFamily(registry, "intrawarp_device_healthy", "1 while the device can be used.");
  auto& errors = CounterFamily(registry, "intrawarp_device_errors_total",
                               "What went wrong with the device: no memory for a job, lost, or not coming back.");
  auto& state = GaugeFamily(registry, "intrawarp_watchdog_state", "1 for the state that the watchdog sees.");
  for (DeviceSeries& device : devices) {
    const Labels labels = {{"device", device.name}};
    device.healthy = &healthy.Add(labels);
    device.errors = AddCounters(errors, "error", kDeviceErrorNames, labels);
    for (size_t i = 0; i < kWatchdogNames.size(); ++i) {
      device.watchdog[i] = &state.Add(With(labels, "state", kWatchdogNames[i]));
    }
  }
}

void Metrics::Impl::AddProcess(std::chrono::system_clock::time_point start_time) {
  GaugeFamily(registry, "process_start_time_seconds", "When the server started, Unix time.")
      .Add({})
      .Set(std::chrono::duration<double>(start_time.time_since_epoch()).count());
  process = {
      &CounterFamily(registry, "process_cpu_seconds_total", "User and system time of all threads.").Add({}),
      &GaugeFamily(registry, "process_resident_memory_bytes", "Resident memory.").Add({}),
      &GaugeFamily(registry, "process_virtual_memory_bytes", "Virtual memory.").Add({}),
      &GaugeFamily(registry, "process_open_fds", "Open file descriptors.").Add({}),
      &GaugeFamily(registry, "process_max_fds", "File descriptors that may be open.").Add({}),
      &GaugeFamily(registry, "process_threads", "Threads.").Add({}),
  };
}

void Metrics::Impl::ApplyMemory(const MetricsUse& use, const Labels& labels) const {
  memory_used->Add(With(labels, "kind", use.what)).Set(use.used);
  memory_evictable->Add(With(labels, "kind", use.what)).Set(use.evictable);
  memory_capacity->Add(With(labels, "kind", use.what)).Set(use.capacity);
}

void Metrics::Impl::ApplyDevice(const DeviceSeries& series, const DeviceSample& s) const {
  for (int i = 0; i < kJobClasses; ++i) {
    series.jobs[i].depth->Set(s.queues[i].depth);
    series.jobs[i].capacity->Set(s.queues[i].capacity);
    series.jobs[i].started->Set(s.queues[i].jobs_started);
    series.jobs[i].since_checkpoint->Set(Seconds(s.queues[i].since_checkpoint));
  }
  for (const MetricsUse& use : s.memory) ApplyMemory(use, series.labels);
  if (s.device_memory) {
    const int64_t used = s.device_memory->total_bytes - s.device_memory->free_bytes;
    device_memory->Add({{"device", series.name}, {"state", "used"}}).Set(used);
    device_memory->Add({{"device", series.name}, {"state", "free"}}).Set(s.device_memory->free_bytes);
  }
  series.healthy->Set(s.healthy ? 1 : 0);
  for (size_t i = 0; i < series.watchdog.size(); ++i) {
    series.watchdog[i]->Set(static_cast<size_t>(s.watchdog) == i ? 1 : 0);
  }
}

void Metrics::Impl::Apply(const MetricsSample& s) const {
  for (size_t i = 0; i < std::min(devices.size(), s.devices.size()); ++i) ApplyDevice(devices[i], s.devices[i]);
  volumes->Set(s.volumes);
  const std::pair<const char*, const MetricsSample::Volumes&> residencies[] = {{"resident", s.resident_volumes},
                                                                               {"spooled", s.spooled_volumes}};
  for (const auto& [residency, amount] : residencies) {
    volume_counts->Add({{"residency", residency}}).Set(static_cast<double>(amount.count));
    volume_bytes->Add({{"residency", residency}}).Set(static_cast<double>(amount.bytes));
  }
  matrices->Set(s.matrices);
  transforms->Set(s.transforms);
  for (const MetricsUse& use : s.memory) ApplyMemory(use, {});
  for (const MetricsSample::Operations& some : s.operations) {
    operations->Add({{"kind", some.kind}, {"state", some.state}}).Set(static_cast<double>(some.count));
  }
  for (const MetricsUse& use : s.tables) {
    table_used->Add({{"table", use.what}}).Set(use.used);
    table_capacity->Add({{"table", use.what}}).Set(use.capacity);
  }
  pinned_kept->Set(s.pinned_kept_bytes);
  if (s.state_disk) {
    state_disk_free->Add({}).Set(s.state_disk->free_bytes);
    state_disk_size->Add({}).Set(s.state_disk->size_bytes);
  }
  longest_stall->Set(Seconds(s.longest_stall));
  audit_available->Set(s.audit.available ? 1 : 0);
  audit_records->Set(static_cast<double>(s.audit.records));
  audit_lost->Increment(static_cast<double>(s.audit.lost) - audit_lost->Value());
}

void Metrics::Impl::ApplyProcess() const {
  const ProcessStats stats = ReadProcessStats();
  process.cpu->Increment(std::max(0.0, stats.cpu_seconds - process.cpu->Value()));
  process.resident->Set(stats.resident_bytes);
  process.virtual_memory->Set(stats.virtual_bytes);
  process.open_fds->Set(stats.open_fds);
  process.max_fds->Set(stats.max_fds);
  process.threads->Set(stats.threads);
}

Metrics::Metrics(const BuildInfo& build, const std::vector<std::string>& devices, const std::vector<RpcMethod>& methods,
                 std::chrono::system_clock::time_point start_time)
    : impl_(std::make_unique<Impl>()) {
  impl_->AddDeviceNames(devices);
  impl_->AddBuild(build);
  impl_->AddMethods(methods);
  impl_->AddJobs();
  impl_->AddRegistrations();
  impl_->AddProducts();
  impl_->AddResources();
  impl_->AddResidency();
  impl_->AddDevices();
  impl_->AddAccess();
  impl_->AddAudit();
  impl_->AddProcess(start_time);
}

Metrics::~Metrics() = default;

const char* NameOf(AccessFile file) { return kAccessFileNames[static_cast<int>(file)]; }

void Metrics::RpcStarted(absl::string_view method) {
  const MethodSeries& series = impl_->Method(method);
  series.started->Increment();
  series.in_flight->Increment();
}

void Metrics::RpcHandled(absl::string_view method, int code, std::chrono::nanoseconds elapsed) {
  const MethodSeries& series = impl_->Method(method);
  series.handled[code >= 0 && code < kCodes ? code : kUnknownCode]->Increment();
  series.seconds->Observe(Seconds(elapsed));
  series.in_flight->Decrement();
}

void Metrics::RpcMessageReceived(absl::string_view method) { impl_->Method(method).received->Increment(); }

void Metrics::RpcReceivedBytes(absl::string_view method, int64_t bytes) {
  impl_->Method(method).received_bytes->Increment(static_cast<double>(bytes));
}

void Metrics::RpcSent(absl::string_view method, int64_t bytes) {
  const MethodSeries& series = impl_->Method(method);
  series.sent->Increment();
  series.sent_bytes->Increment(static_cast<double>(bytes));
}

void Metrics::JobDone(const JobRecord& job, int device) {
  const JobSeries& series = impl_->devices[device].jobs[static_cast<int>(job.job_class)];
  series.queue_seconds[static_cast<int>(job.outcome)]->Observe(Seconds(job.queued));
  series.busy->Increment(std::max(0.0, Seconds(job.busy)));
  series.held->Increment(std::max(0.0, Seconds(job.held)));
  if (job.slack) {
    series.slack->Observe(Seconds(*job.slack));
    if (*job.slack < SchedulerClock::Duration(0)) series.late->Increment();
  }
  const bool was_predicted = job.predicted && *job.predicted > SchedulerClock::Duration(0);
  if (was_predicted && job.outcome == JobOutcome::kDone) {
    series.prediction->Observe(Seconds(job.busy) / Seconds(*job.predicted));
  }
}

void Metrics::FrameDone(WorkClass work, FrameOutcome outcome, const LatencyBreakdown& latency) {
  const RegistrationSeries& series = impl_->registrations[static_cast<int>(work)];
  series.outcomes[static_cast<int>(outcome)]->Increment();
  if (outcome != FrameOutcome::kOk && outcome != FrameOutcome::kLate) return;
  series.seconds->Observe(Seconds(latency.total()));
  for (int i = 0; i < kPhases; ++i) series.phases[i]->Observe(Seconds(latency.phase(static_cast<Phase>(i))));
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
  const auto it = impl_->rejections.find(reason);
  if (it != impl_->rejections.end()) it->second->Increment();
}

void Metrics::CountRefusedConnection() { impl_->refused_connections->Increment(); }

void Metrics::CountDeviceError(DeviceError error, int device) {
  impl_->devices[device].errors[static_cast<int>(error)]->Increment();
}

void Metrics::CountRefusedCaller(v1::ErrorReason reason) {
  const auto it = impl_->refused_callers.find(reason);
  if (it != impl_->refused_callers.end()) it->second->Increment();
}

void Metrics::CountReload(AccessFile file, bool taken_up) {
  impl_->reloads[static_cast<int>(file)][taken_up ? 1 : 0]->Increment();
}

void Metrics::SetCertificateEnd(std::chrono::system_clock::time_point end) {
  GaugeFamily(impl_->registry, "intrawarp_tls_certificate_not_after_timestamp_seconds",
              "End of the server's TLS certificate, in seconds since 1970.")
      .Add({})
      .Set(std::chrono::duration<double>(end.time_since_epoch()).count());
}

void Metrics::CountVolumeEviction() { impl_->evictions->Increment(); }

void Metrics::VolumeLoaded(bool ok, std::chrono::nanoseconds elapsed) {
  impl_->loads[ok ? 0 : 1]->Increment();
  if (ok) impl_->load_seconds->Observe(Seconds(elapsed));
}

void Metrics::CountStall(Stall stall) { impl_->stalls[static_cast<int>(stall)]->Increment(); }

void Metrics::set_sampler(std::function<MetricsSample()> sampler) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->sampler = std::move(sampler);
}

std::string Metrics::Scrape() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->sampler) impl_->Apply(impl_->sampler());
  impl_->ApplyProcess();
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return out.str();
}

}  // namespace intrawarp::server
