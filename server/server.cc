// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "server/ledger/host_memory.h"
#include "server/monitor/log.h"
#include "server/version.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMessageSlack = 64 << 10;  // a message around a chunk
constexpr auto kHousekeepingPeriod = std::chrono::seconds(1);
constexpr milliseconds kKeepaliveTime{30000};
constexpr milliseconds kKeepaliveTimeout{5000};
// A connection without calls; clients connect again when they need it.
constexpr milliseconds kConnectionIdle = std::chrono::minutes(30);
constexpr int kMaxHeaderBytes = 8192;
// On one connection, beside the calls allowed in all: health and information get through.
constexpr int kAskingStreams = 64;

// Hashing is faster than any one stream is sent; the rest of the cores is the engine's.
int WorkerThreads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 2, 8); }

// Of a GPU's memory 60 % hold objects and 30 % work. On the CPU all of it is the host's, whose other parts are
// transfers and unfinished uploads.
ServerLimits WithDefaults(ServerLimits limits, DeviceKind kind, const DeviceMemory& memory) {
  const int64_t host = HostMemoryLimit();
  const bool is_cuda = kind == DeviceKind::kCuda;
  const int64_t percent = (is_cuda ? memory.total_bytes : std::min(memory.total_bytes, host)) / 100;
  if (limits.resident_capacity_bytes == 0) limits.resident_capacity_bytes = percent * (is_cuda ? 60 : 35);
  if (limits.workspace_capacity_bytes == 0) limits.workspace_capacity_bytes = percent * (is_cuda ? 30 : 25);
  if (limits.pinned_capacity_bytes == 0) limits.pinned_capacity_bytes = std::min(8 * kGiB, host / 8);
  if (limits.uploading_capacity_bytes == 0) limits.uploading_capacity_bytes = limits.resident_capacity_bytes / 2;
  return limits;
}

// Sessions have a quarter of the memory for work and transfers to themselves, and places of their own.
LedgerOptions MakeLedgerOptions(const ServerLimits& limits, const SchedulingOptions& scheduling) {
  LedgerOptions options;
  options.lanes = scheduling.lanes;
  Amounts& reserve = options.session_reserve;
  reserve.workspace_bytes = limits.workspace_capacity_bytes / 4;
  reserve.pinned_bytes = limits.pinned_capacity_bytes / 4;
  reserve.transforms = int64_t{kSessionTransforms} * limits.max_sessions;
  reserve.streams = limits.max_sessions;
  reserve.sessions = limits.max_sessions;
  Amounts& capacity = options.capacity;
  capacity.resident_bytes = limits.resident_capacity_bytes;
  capacity.workspace_bytes = limits.workspace_capacity_bytes;
  capacity.pinned_bytes = limits.pinned_capacity_bytes;
  capacity.uploading_bytes = limits.uploading_capacity_bytes;
  capacity.transforms = limits.max_transforms + reserve.transforms;
  capacity.streams = limits.max_streams + reserve.streams;
  capacity.uploads = limits.max_uploads;
  capacity.sessions = limits.max_sessions;
  return options;
}

// Linking the reflection library switches reflection on for every server of the process; this makes it a choice.
class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(bool enabled) : enabled_(enabled) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    auto plugin = std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>();
    const std::string name = plugin->name();
    plugins->erase(
        std::remove_if(plugins->begin(), plugins->end(), [&name](const auto& other) { return other->name() == name; }),
        plugins->end());
    if (enabled_) plugins->push_back(std::move(plugin));
  }

 private:
  const bool enabled_;
};

// Dead clients free what they hold within seconds, quiet ones may stay a while; no connection is closed for its age,
// which would end the streams in it.
void SetTransportArguments(grpc::ServerBuilder& builder, const ServerLimits& limits) {
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_calls + kAskingStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(kConnectionIdle.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kKeepaliveTime.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kKeepaliveTimeout.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  // What is received comes in HTTP/2 frames of a chunk instead of 16 KiB, read from the socket in larger pieces.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  builder.AddChannelArgument(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 64 << 10);
  builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 1 << 20);
}

// The shutdown of the whole library, with its last user, can wait ten seconds for a poller of its own that a blocked
// write has started. So the process keeps the library.
void KeepGrpcLibrary() {
  static const bool kept = (grpc_init(), true);
  (void)kept;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, options.open_device(options.device));
  INTRAWARP_ASSIGN_OR_RETURN(const DeviceMemory memory, device->memory());
  std::unique_ptr<Server> server(new Server(options, std::move(device), memory));
  INTRAWARP_ASSIGN_OR_RETURN(server->probe_, DeviceProbe::Create(*server->device_, memory));
  INTRAWARP_RETURN_IF_ERROR(server->Serve());
  return server;
}

Server::Server(const ServerOptions& options, std::unique_ptr<Device> device, const DeviceMemory& memory)
    : options_(options),
      limits_(WithDefaults(options.limits, device->kind(), memory)),
      device_(std::move(device)),
      scheduling_(options_.scheduling.value_or(DefaultScheduling(*device_))),
      ledger_(MakeLedgerOptions(limits_, scheduling_)),
      pinned_(*device_, static_cast<size_t>(limits_.pinned_capacity_bytes)),
      uploads_(ledger_, pinned_, options_.seams, limits_.upload_ttl),
      sessions_([this](bool any_open) { jobs_->SetFramesOpen(any_open); }),
      metrics_(ThisBuild(), device_->name(), AllMethods(), options_.seams.system_now()),
      workers_(WorkerThreads()),
      receivers_(WorkerThreads()),
      stream_watch_(limits_.stream_idle_timeout),
      watchdog_(options_.watchdog, [this] { return RunningJobs(); }),
      monitor_(metrics_, limits_.max_calls) {}

std::vector<WatchedJob> Server::RunningJobs() const {
  if (options_.running_jobs) return options_.running_jobs();
  std::vector<WatchedJob> watched;
  for (const RunningJob& job : jobs_->running()) {
    watched.push_back({job.job_class, job.since_start, job.since_checkpoint});
  }
  return watched;
}

absl::Status Server::Serve() {
  SchedulingOptions scheduling = scheduling_;
  scheduling.on_job = [this](const JobRecord& record) { metrics_.JobDone(record); };
  scheduling.capacity.fill(limits_.max_queued_jobs);
  INTRAWARP_ASSIGN_OR_RETURN(jobs_, Scheduler::Create(*device_, scheduling));
  INTRAWARP_ASSIGN_OR_RETURN(copies_, CopyLane::Create(*device_));
  context_.reset(new ServerContext{
      *device_, *probe_,       watchdog_, *jobs_,         *copies_,           workers_,          receivers_,
      pinned_,  ledger_,       volumes_,  matrices_,      transforms_,        uploads_,          sessions_,
      metrics_, stream_watch_, limits_,   options_.seams, register_requests_, multiply_requests_});
  metrics_.set_sampler([this] { return Sample(); });
  INTRAWARP_RETURN_IF_ERROR(ServeGrpc());
  serving_ = true;
  INTRAWARP_RETURN_IF_ERROR(ServeHttp());
  housekeeping_ = std::thread([this] { HousekeepingLoop(); });
  return absl::OkStatus();
}

absl::Status Server::ServeGrpc() {
  KeepGrpcLibrary();
  grpc::EnableDefaultHealthCheckService(true);
  services_ = MakeServices(*context_);
  INTRAWARP_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Bind(options_.listen));
  grpc_address_ = listener.address();
  grpc::ServerBuilder builder;
  using Connections = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  ConnectionGate::Acceptor acceptor =
      builder.experimental().AddExternalConnectionAcceptor(Connections::FROM_FD, grpc::InsecureServerCredentials());
  for (const NamedService& service : services_) builder.RegisterService(service.service.get());
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits_.max_chunk_bytes + kMessageSlack));
  builder.SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder.SetOption(std::make_unique<ReflectionOption>(options_.reflection));
  SetTransportArguments(builder, limits_);
  grpc::ResourceQuota quota("intrawarp");
  quota.Resize(std::max<int64_t>(kGiB, 4 * limits_.max_streams * limits_.max_chunk_bytes));
  builder.SetResourceQuota(quota);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(monitor_.MakeInterceptorFactory());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::UnavailableError(absl::StrCat("cannot serve gRPC on ", options_.listen));
  for (const NamedService& service : services_) grpc_->GetHealthCheckService()->SetServingStatus(service.name, true);
  gate_ = std::make_unique<ConnectionGate>(std::move(listener), std::move(acceptor), limits_.max_connections,
                                           kKeepaliveTimeout, metrics_);
  return absl::OkStatus();
}

absl::Status Server::ServeHttp() {
  const HttpRoute health = {"/healthz", /*slow=*/false, [this] { return HealthPage(); }};
  const HttpRoute metrics = {"/metrics", /*slow=*/true, [this] {
                               return HttpPage{200, "text/plain; version=0.0.4; charset=utf-8", metrics_.Scrape()};
                             }};
  INTRAWARP_ASSIGN_OR_RETURN(http_, HttpServer::Start(options_.http, {health, metrics}));
  return absl::OkStatus();
}

HttpPage Server::HealthPage() const {
  HttpPage page;
  page.status = serving() ? 200 : 503;
  page.body = serving() ? "serving\n" : "not serving\n";
  return page;
}

MetricsSample Server::Sample() const {
  MetricsSample sample;
  SampleQueues(sample);
  SampleResources(sample);
  sample.volumes = volumes_.size();
  sample.matrices = matrices_.size();
  sample.transforms = transforms_.size();
  if (device_->kind() == DeviceKind::kCuda) sample.device_memory = probe_->memory();
  sample.device_healthy = device_->health().ok();
  sample.watchdog = watchdog_.state();
  sample.longest_stall = stream_watch_.longest_wait();
  return sample;
}

void Server::SampleQueues(MetricsSample& sample) const {
  for (int i = 0; i < kJobClasses; ++i) {
    const auto job_class = static_cast<JobClass>(i);
    MetricsSample::Queue& queue = sample.queues[i];
    queue.depth = jobs_->waiting(job_class);
    queue.capacity = jobs_->capacity(job_class);
    queue.jobs_started = jobs_->started(job_class);
  }
  for (const WatchedJob& job : RunningJobs()) {
    auto& longest = sample.queues[static_cast<int>(job.job_class)].since_checkpoint;
    longest = std::max(longest, job.since_checkpoint);
  }
}

MetricsUse Server::UseOf(Resource resource) const {
  const ResourceUse use = ledger_.use(resource);
  const absl::string_view name = kResourceNames[static_cast<int>(resource)];
  return {std::string(absl::StripSuffix(name, "_memory")), use.in_use, use.capacity};
}

void Server::SampleResources(MetricsSample& sample) const {
  sample.pinned_kept_bytes = static_cast<int64_t>(pinned_.kept_bytes());
  for (const Resource resource : {Resource::kResident, Resource::kWorkspace, Resource::kPinned}) {
    sample.memory.push_back(UseOf(resource));
  }
  for (const Resource resource : {Resource::kTransforms, Resource::kUploads, Resource::kSessions, Resource::kStreams}) {
    sample.tables.push_back(UseOf(resource));
  }
  sample.tables.push_back({"calls", monitor_.calls(), limits_.max_calls});
  sample.tables.push_back({"connections", gate_->connections(), limits_.max_connections});
}

void Server::Housekeep() {
  std::lock_guard<std::mutex> lock(housekeep_mutex_);
  uploads_.Expire();
  const steady_clock::time_point now = options_.seams.steady_now();
  volumes_.Expire(now);
  matrices_.Expire(now);
  transforms_.Expire(now);
  sessions_.Expire(now);
  stream_watch_.Check(now, metrics_);
  CheckDevice();
}

void Server::CheckDevice() {
  const steady_clock::time_point now = options_.seams.steady_now();
  const Watchdog::Finding finding = watchdog_.Check(now, {probe_->probing_since(), !device_->health().ok()});
  probe_->Begin(now);
  if (finding.changed) ReportDevice(finding);
  if (finding.give_up && options_.give_up) options_.give_up();
}

void Server::ReportDevice(const Watchdog::Finding& finding) {
  grpc_->GetHealthCheckService()->SetServingStatus(finding.state == WatchdogState::kWell);
  switch (finding.state) {
    case WatchdogState::kWell:
      return Log(Severity::kInfo, "device_recovered", {{"device", device_->name()}});
    case WatchdogState::kHung:
      metrics_.CountDeviceError(DeviceError::kHung);
      return Log(Severity::kError, "device_hung", {{"device", device_->name()}, {"waits_for", finding.hung}});
    case WatchdogState::kLost:
      metrics_.CountDeviceError(DeviceError::kLost);
      return Log(Severity::kError, "device_lost",
                 {{"device", device_->name()}, {"cause", device_->health().ToString()}});
  }
}

void Server::HousekeepingLoop() {
  std::unique_lock<std::mutex> lock(housekeeping_mutex_);
  while (!housekeeping_wake_.wait_for(lock, kHousekeepingPeriod, [this] { return housekeeping_stop_; })) {
    lock.unlock();
    Housekeep();
    lock.lock();
  }
}

void Server::Stop() {
  if (std::exchange(stopped_, true)) return;
  serving_ = false;
  if (housekeeping_.joinable()) {
    {
      std::lock_guard<std::mutex> lock(housekeeping_mutex_);
      housekeeping_stop_ = true;
    }
    housekeeping_wake_.notify_one();
    housekeeping_.join();
  }
  if (gate_ != nullptr) gate_->Stop();
  if (grpc_ != nullptr) {
    // NOT_SERVING for good.
    grpc_->GetHealthCheckService()->Shutdown();
    ShutdownGrpc();
  }
  workers_.Shutdown();
  receivers_.Shutdown();
  sessions_.CloseAll(absl::UnavailableError("the server is shutting down"));
  if (copies_ != nullptr) copies_->Shutdown();
  if (jobs_ != nullptr) jobs_->Shutdown();
  metrics_.set_sampler(nullptr);
  http_.reset();
  gate_.reset();
  grpc_.reset();
  WaitForTransport();
}

// gRPC's own shutdown waits for health watches, which never end, and for idle clients that do not answer. Once our
// calls have ended, it need not.
void Server::ShutdownGrpc() {
  const auto deadline = std::chrono::system_clock::now() + options_.drain_timeout;
  std::future<void> done = std::async(std::launch::async, [this, deadline] { grpc_->Shutdown(deadline); });
  monitor_.WaitIdle(steady_clock::now() + options_.drain_timeout);
  while (done.wait_for(milliseconds(20)) != std::future_status::ready) grpc_server_cancel_all_calls(grpc_->c_server());
  grpc_->Wait();
}

// The transport may refer to pinned memory for a moment after its last call.
void Server::WaitForTransport() {
  const auto deadline = steady_clock::now() + std::chrono::seconds(5);
  uploads_.Clear();
  while (ledger_.in_use(Resource::kPinned) > 0 && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(5));
    uploads_.Clear();
  }
}

Server::~Server() { Stop(); }

}  // namespace intrawarp::server
