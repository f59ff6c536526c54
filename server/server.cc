// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <future>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "server/base/version.h"
#include "server/ledger/host_memory.h"
#include "server/monitor/log.h"
#include "server/monitor/log_levels.h"
#include "server/operation/durable_operations.h"
#include "server/placement/replication.h"
#include "server/restore/restore.h"
#include "server/rpc/caller.h"
#include "server/session/durable_sessions.h"
#include "server/store/residency.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMessageSlack = 64 << 10;  // a message around a chunk
constexpr auto kHousekeepingPeriod = std::chrono::seconds(1);
constexpr milliseconds kKeepaliveTime{30000};
constexpr milliseconds kKeepaliveTimeout{5000};
// Until then a connection has shown its certificate, or goes.
constexpr milliseconds kHandshakeTimeout{10000};
// A connection without calls; clients connect again when they need it.
constexpr milliseconds kConnectionIdle = std::chrono::minutes(30);
// A larger header ends its whole connection, with the calls of others that share it through a proxy (gRPC 1.51 knows no
// refusal of the call alone). Proxies refuse such a header themselves: nginx passes 32 KiB, Envoy 60.
constexpr int kMaxHeaderBytes = 64 << 10;
// On one connection, beside the calls allowed in all: health and information get through.
constexpr int kAskingStreams = 64;
// Connections and calls that strangers have at least, whatever the limits of known callers.
constexpr int kLeastStrangers = 8;
// In a flood of connections, a probe keeps its own for the longer the more there are.
constexpr size_t kMostHttpConnections = 1024;

BuildInfo BuildWithGrpc() {
  BuildInfo build = ThisBuild();
  build.grpc = grpc::Version();
  return build;
}

// Hashing is faster than any one stream is sent; the rest of the cores is the engine's.
int WorkerThreads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 2, 8); }

// Defaults: 60 % of a GPU's memory for objects and 30 % for workspaces; 35 % and 25 % of the host's on the CPU, where
// transfers and unfinished uploads need the rest.
LedgerDevice CapacityOf(const ServedDevice& device, const ServerLimits& limits) {
  const int64_t total = device.memory().total_bytes;
  const bool is_cuda = device.device().kind() == DeviceKind::kCuda;
  const int64_t percent = (is_cuda ? total : std::min(total, HostMemoryLimit())) / 100;
  LedgerDevice capacity;
  capacity.capacity.resident_bytes = limits.resident_capacity_bytes;
  capacity.capacity.workspace_bytes = limits.workspace_capacity_bytes;
  if (limits.resident_capacity_bytes == 0) capacity.capacity.resident_bytes = percent * (is_cuda ? 60 : 35);
  if (limits.workspace_capacity_bytes == 0) capacity.capacity.workspace_bytes = percent * (is_cuda ? 30 : 25);
  // Sessions have a quarter of the memory for work to themselves.
  capacity.session_reserve.workspace_bytes = capacity.capacity.workspace_bytes / 4;
  return capacity;
}

std::vector<LedgerDevice> Capacities(const std::vector<std::unique_ptr<ServedDevice>>& devices,
                                     const ServerLimits& limits) {
  std::vector<LedgerDevice> capacities;
  for (const auto& device : devices) {
    capacities.push_back(CapacityOf(*device, limits));
    if (devices.size() > 1) capacities.back().name = device->device().name();
  }
  return capacities;
}

// A per-device limit is reported as the largest of all devices.
ServerLimits WithDefaults(ServerLimits limits, const std::vector<LedgerDevice>& devices) {
  int64_t resident = 0;
  for (const LedgerDevice& device : devices) {
    limits.resident_capacity_bytes = std::max(limits.resident_capacity_bytes, device.capacity.resident_bytes);
    limits.workspace_capacity_bytes = std::max(limits.workspace_capacity_bytes, device.capacity.workspace_bytes);
    resident += device.capacity.resident_bytes;
  }
  if (limits.pinned_capacity_bytes == 0) limits.pinned_capacity_bytes = std::min(8 * kGiB, HostMemoryLimit() / 8);
  if (limits.uploading_capacity_bytes == 0) limits.uploading_capacity_bytes = resident / 2;
  return limits;
}

// What one owner may have, as it was set; 0: by default.
int64_t OwnerLimit(const ServerLimits& limits, Resource resource) {
  switch (resource) {
    case Resource::kResident:
      return limits.owner_resident_bytes;
    case Resource::kWorkspace:
      return limits.owner_workspace_bytes;
    case Resource::kPinned:
      return limits.owner_pinned_bytes;
    case Resource::kUploading:
      return limits.owner_uploading_bytes;
    case Resource::kTransforms:
      return limits.owner_transforms;
    case Resource::kStreams:
      return limits.owner_streams;
    case Resource::kUploads:
      return limits.owner_uploads;
    case Resource::kSessions:
      return limits.owner_sessions;
    case Resource::kOperations:
      break;
  }
  return limits.owner_operations;
}

// By default half of what all devices have together, and one at least.
Amounts OwnerLimits(const ServerLimits& limits, const LedgerOptions& options) {
  Amounts most;
  for (const Resource resource : AllResources()) {
    int64_t capacity = IsPerDevice(resource) ? 0 : options.capacity[resource];
    for (const LedgerDevice& device : options.devices) {
      capacity += IsPerDevice(resource) ? device.capacity[resource] : 0;
    }
    const int64_t set = OwnerLimit(limits, resource);
    most[resource] = set > 0 ? set : std::max<int64_t>(1, capacity / 2);
  }
  return most;
}

// Sessions have a quarter of the memory for transfers to themselves, and places of their own.
LedgerOptions MakeLedgerOptions(const ServerLimits& limits, std::vector<LedgerDevice> devices,
                                const SchedulingOptions& scheduling, bool has_identities) {
  LedgerOptions options;
  options.lanes = scheduling.lanes;
  options.at_once = scheduling.at_once;
  options.devices = std::move(devices);
  Amounts& reserve = options.session_reserve;
  reserve.pinned_bytes = limits.pinned_capacity_bytes / 4;
  reserve.transforms = int64_t{kSessionTransforms} * limits.max_sessions;
  reserve.streams = limits.max_sessions;
  reserve.sessions = limits.max_sessions;
  Amounts& capacity = options.capacity;
  capacity.pinned_bytes = limits.pinned_capacity_bytes;
  capacity.uploading_bytes = limits.uploading_capacity_bytes;
  capacity.transforms = limits.max_transforms + reserve.transforms;
  capacity.streams = limits.max_streams + reserve.streams;
  capacity.uploads = limits.max_uploads;
  capacity.sessions = limits.max_sessions;
  capacity.operations = limits.max_operations;
  if (has_identities) options.owner_limit = OwnerLimits(limits, options);
  return options;
}

std::vector<Device*> DevicesOf(const std::vector<std::unique_ptr<ServedDevice>>& served) {
  std::vector<Device*> devices;
  for (const auto& device : served) devices.push_back(&device->device());
  return devices;
}

std::vector<std::string> NamesOf(const std::vector<std::unique_ptr<ServedDevice>>& served) {
  std::vector<std::string> names;
  for (const auto& device : served) names.push_back(device->device().name());
  return names;
}

// "cuda:0,1" for cuda:0 and cuda:1.
std::string JoinNames(const std::vector<std::string>& names) {
  std::string joined = names.front();
  for (size_t i = 1; i < names.size(); ++i) {
    const absl::string_view name = names[i];
    absl::StrAppend(&joined, ",", absl::StripPrefix(name, "cuda:"));
  }
  return joined;
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

int StrangersOf(int known) { return std::max(kLeastStrangers, known / 2); }

GateLimits MakeGateLimits(const ServerOptions& options) {
  const ServerLimits& limits = options.limits;
  GateLimits gate;
  gate.known = limits.max_connections;
  gate.strangers = StrangersOf(limits.max_connections);
  gate.silence = kKeepaliveTimeout;
  gate.first_call = options.first_call_timeout;
  gate.held = options.unaccounted_timeout;
  gate.message_bytes = limits.max_chunk_bytes + kMessageSlack;
  return gate;
}

// Dead clients free what they hold within seconds, quiet ones may stay a while; no connection is closed for its age,
// which would end the streams in it.
void SetTransportArguments(grpc::ServerBuilder& builder, const ServerLimits& limits) {
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_calls + kAskingStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(kConnectionIdle.count()));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, static_cast<int>(kHandshakeTimeout.count()));
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

// Logs what a start found unusual among the durable objects.
void LogFindings(const state::StartFindings& found) {
  constexpr int64_t kSecond = 1'000'000'000;
  if (found.clock_step != 0) {
    Log(Severity::kWarning, "clock_stepped",
        {{"seconds", absl::StrCat(found.clock_step / kSecond)},
         {"expiring", absl::StrCat(found.expiring)},
         {"cause", "the time since the last start does not count towards the end of objects"}});
  }
  if (found.catalogue_is_older()) {
    Log(Severity::kError, "catalogue_is_older",
        {{"generation", absl::StrCat(found.catalogue_generation)},
         {"spool_generation", absl::StrCat(found.spool_generation)},
         {"cause", "an older copy of catalogue.db; what it does not know waits in orphaned/"}});
  }
  if (found.expired > 0) Log(Severity::kInfo, "expired", {{"objects", absl::StrCat(found.expired)}});
  const bool any_moved = found.orphaned > 0 || found.brought_back > 0 || found.removed.files > 0;
  if (!any_moved && found.orphans.files == 0) return;
  Log(any_moved ? Severity::kWarning : Severity::kInfo, "orphaned",
      {{"moved", absl::StrCat(found.orphaned)},
       {"brought_back", absl::StrCat(found.brought_back)},
       {"removed", absl::StrCat(found.removed.files)},
       {"payloads", absl::StrCat(found.orphans.files)},
       {"bytes", absl::StrCat(found.orphans.bytes)}});
}

size_t MostDescriptors() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<size_t>(limit.rlim_cur) : 0;
}

// The shutdown of the whole library, with its last user, can wait ten seconds for a poller of its own that a blocked
// write has started. So the process keeps the library.
void KeepGrpcLibrary() {
  static const bool kept = (grpc_init(), true);
  (void)kept;
}

}  // namespace

absl::StatusOr<Server::ServedDevices> Server::OpenDevices(const ServerOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> specs, ParseDevices(options.device));
  ServedDevices served;
  for (const std::string& spec : specs) {
    INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, options.open_device(spec));
    INTRAWARP_ASSIGN_OR_RETURN(const DeviceMemory memory, device->memory());
    served.push_back(std::make_unique<ServedDevice>(std::move(device), memory, options.watchdog, options.running_jobs));
  }
  return served;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckExposure(options.access, options.listen, options.allow_no_identity));
  INTRAWARP_RETURN_IF_ERROR(CheckPageExposure(options.page, options.access, options.allow_no_identity));
  INTRAWARP_RETURN_IF_ERROR(CheckIdentityLimits(options));
  INTRAWARP_ASSIGN_OR_RETURN(ServedDevices served, OpenDevices(options));
  std::unique_ptr<Server> server(new Server(options, std::move(served)));
  INTRAWARP_RETURN_IF_ERROR(server->access_.Load());
  INTRAWARP_RETURN_IF_ERROR(server->OpenAudit());
  INTRAWARP_RETURN_IF_ERROR(server->StartDevices());
  INTRAWARP_RETURN_IF_ERROR(server->RestoreDurable());
  INTRAWARP_RETURN_IF_ERROR(server->Serve());
  return server;
}

Server::Server(const ServerOptions& options, ServedDevices served)
    : options_(options),
      limits_(WithDefaults(options.limits, Capacities(served, options.limits))),
      served_(std::move(served)),
      device_name_(JoinNames(NamesOf(served_))),
      metrics_(BuildWithGrpc(), NamesOf(served_), AllMethods(), options_.seams.system_now()),
      ledger_(MakeLedgerOptions(limits_, Capacities(served_, options.limits),
                                options_.scheduling.value_or(DefaultScheduling(served_[0]->device())),
                                options_.access.has_identities())),
      pinned_(DevicesOf(served_), static_cast<size_t>(limits_.pinned_capacity_bytes)),
      uploads_(ledger_, pinned_, options_.seams, limits_.upload_ttl),
      sessions_([this](int device, bool any_open) { served_[device]->jobs().SetFramesOpen(any_open); }),
      operations_(ledger_, options_.seams, {.ttl = limits_.operation_ttl}),
      message_limits_(options_.message_limits),
      access_(options_.access, options_.call_limits, metrics_.rpc, metrics_.admission, options_.seams),
      audit_(options_.seams),
      workers_(WorkerThreads()),
      receivers_(WorkerThreads()),
      stream_watch_(limits_.stream_idle_timeout),
      gate_(MakeGateLimits(options_), metrics_.rpc, metrics_.admission),
      monitor_(metrics_.rpc, metrics_.admission, access_, audit_, gate_, limits_.max_calls,
               StrangersOf(limits_.max_calls)) {}

absl::Status Server::OpenAudit() {
  if (options_.audit_dir.empty()) {
    return options_.audit_key.empty() ? absl::OkStatus() : absl::InvalidArgumentError("--audit_key: needs --audit_dir");
  }
  audit::AuditOptions options;
  options.directory = options_.audit_dir;
  if (!options_.audit_key.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(options.key, audit::ReadKey(*options_.audit_files, options_.audit_key));
  }
  const BuildInfo build = ThisBuild();
  return audit_.Open(*options_.audit_files, std::move(options),
                     {{"version", build.version}, {"revision", build.revision}, {"devices", device_name_}});
}

absl::Status Server::StartDevices() {
  context_.reset(new ServerContext{devices_,           workers_,       receivers_,  pinned_,        ledger_,
                                   volumes_,           matrices_,      transforms_, uploads_,       sessions_,
                                   metrics_.rooms(),   stream_watch_,  limits_,     options_.seams, register_requests_,
                                   multiply_requests_, product_plans_, durable_,    operations_,    message_limits_});
  sessions_.set_has_taps(options_.page.is_used());
  for (int i = 0; i < static_cast<int>(served_.size()); ++i) {
    ServedDevice& device = *served_[i];
    SchedulingOptions scheduling = options_.scheduling.value_or(DefaultScheduling(device.device()));
    scheduling.on_job = [this, i](const JobRecord& record) { metrics_.job.JobDone(record, i); };
    scheduling.capacity.fill(limits_.max_queued_jobs);
    const int own_jobs = limits_.owner_jobs > 0 ? limits_.owner_jobs : std::max(1, limits_.max_queued_jobs / 2);
    if (options_.access.has_identities()) scheduling.owner_capacity.fill(own_jobs);
    INTRAWARP_RETURN_IF_ERROR(device.Start(scheduling));
    devices_.Add(device.ContextIn(*context_, i));
  }
  ledger_.set_reclaim([this](int device, int64_t bytes) { Reclaim(device, bytes); });
  return absl::OkStatus();
}

// Plans go before replicas that would have to be copied again, and those before volumes that would have to be read
// again.
void Server::Reclaim(int device, int64_t bytes) {
  const int64_t before = ledger_.use(Resource::kResident, device).in_use;
  const auto missing = [&] { return bytes - (before - ledger_.use(Resource::kResident, device).in_use); };
  product_plans_.Drop(device, bytes);
  if (missing() > 0) DropReplicas(*context_, device, missing());
  if (missing() > 0) EvictVolumes(*context_, device, missing());
}

absl::Status Server::RestoreDurable() {
  if (options_.state_dir.empty()) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(durable_.Open(*options_.state_files, options_.state_dir, options_.seams));
  durable_.set_reload(MakeDurableVolume);
  LogFindings(durable_.state().findings());
  INTRAWARP_RETURN_IF_ERROR(RestoreObjects(*context_));
  INTRAWARP_RETURN_IF_ERROR(RestoreOperations(*context_));
  return RestoreSessions(*context_);
}

absl::Status Server::Serve() {
  scraped_ = metrics_.registry.OnScrape([this] { SetMetrics(); });
  INTRAWARP_RETURN_IF_ERROR(ServeSharedMemory());
  INTRAWARP_RETURN_IF_ERROR(ServeDicom());
  INTRAWARP_RETURN_IF_ERROR(ServeGrpc());
  serving_ = true;
  INTRAWARP_RETURN_IF_ERROR(ServeHttp());
  INTRAWARP_RETURN_IF_ERROR(ServePage());
  access_.StartReloading([this] { monitor_.EndRevoked(); });
  housekeeping_ = std::thread([this] { HousekeepingLoop(); });
  return absl::OkStatus();
}

absl::Status Server::ServeSharedMemory() {
  if (options_.shared_memory.socket.empty()) return CheckSharedMemoryOptions(options_.shared_memory);
  INTRAWARP_ASSIGN_OR_RETURN(shared_memory_, SharedMemory::Start(options_.shared_memory, metrics_.registry));
  sessions_.set_shared_memory(shared_memory_.get());
  return absl::OkStatus();
}

absl::Status Server::ServeGrpc() {
  KeepGrpcLibrary();
  grpc::EnableDefaultHealthCheckService(true);
  services_ = MakeServices(*context_, dicom_ == nullptr ? nullptr : dicom_->importer());
  INTRAWARP_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Bind(options_.listen));
  ConnectionGate::Prepare(listener);
  grpc_address_ = listener.address();
  grpc::ServerBuilder builder;
  using Connections = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  ConnectionGate::Acceptor acceptor =
      builder.experimental().AddExternalConnectionAcceptor(Connections::FROM_FD, access_.credentials());
  builder.SetContextAllocator(std::make_unique<CallContexts>(audit_));
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
  gate_.Start(std::move(listener), std::move(acceptor));
  return absl::OkStatus();
}

absl::Status Server::ServeHttp() {
  const HttpRoute health = {"/healthz", /*slow=*/false, [this] { return HealthPage(); }};
  const HttpRoute metrics = {
      "/metrics", /*slow=*/true, [this] {
        return HttpPage{200, "text/plain; version=0.0.4; charset=utf-8", metrics_.registry.Scrape()};
      }};
  HttpLimits limits;
  limits.connections = std::clamp(MostDescriptors() / 4, limits.connections, kMostHttpConnections);
  INTRAWARP_ASSIGN_OR_RETURN(http_, HttpServer::Start(options_.http, {health, metrics}, limits));
  return absl::OkStatus();
}

absl::Status Server::ServePage() {
  if (!options_.page.is_used()) return absl::OkStatus();
  const auto identify = [this](const std::string& authorization) { return access_.IdentifyBearer(authorization); };
  INTRAWARP_ASSIGN_OR_RETURN(
      page_, PageServer::Start(options_.page, options_.access, access_.tls(), *context_, identify, audit_));
  return absl::OkStatus();
}

std::string Server::page_address() const {
  if (page_ == nullptr) return "";
  return absl::StrCat(page_->has_tls() ? "https://" : "http://", page_->address(), "/");
}

absl::Status Server::ServeDicom() {
  if (!options_.dicom.is_used()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(dicom_, DicomNode::Start(options_.dicom, options_.state_dir,
                                                      options_.access.has_identities(), *context_, audit_));
  return absl::OkStatus();
}

bool Server::AnyIsWell() const {
  return std::any_of(served_.begin(), served_.end(),
                     [](const auto& device) { return device->watchdog().state() == WatchdogState::kWell; });
}

// Nothing else: whoever can reach the port can ask. The metrics tell how each device is.
HttpPage Server::HealthPage() const {
  HttpPage page;
  page.status = serving() ? 200 : 503;
  page.body = serving() ? "serving\n" : "not serving\n";
  return page;
}

void Server::SetMetrics() const {
  for (int i = 0; i < devices_.size(); ++i) SetDeviceMetrics(i);
  SetAdmissionMetrics();
  SetStoreMetrics();
  metrics_.operation.Set(operations_.counts());
  metrics_.monitor.SetLongestStall(stream_watch_.longest_wait());
  metrics_.trail.Set(audit_);
}

void Server::SetDeviceMetrics(int index) const {
  const ServedDevice& device = *served_[index];
  DeviceSample sample;
  if (device.device().kind() == DeviceKind::kCuda) sample.memory = device.probe().memory();
  sample.healthy = device.device().health().ok();
  sample.watchdog = device.watchdog().state();
  metrics_.device.Set(index, sample);
  std::array<QueueSample, kJobClasses> queues;
  for (int i = 0; i < kJobClasses; ++i) {
    const auto job_class = static_cast<JobClass>(i);
    queues[i].depth = device.jobs().waiting(job_class);
    queues[i].capacity = device.jobs().capacity(job_class);
    queues[i].started = device.jobs().started(job_class);
  }
  for (const WatchedJob& job : device.RunningJobs()) {
    auto& longest = queues[static_cast<int>(job.job_class)].since_checkpoint;
    longest = std::max(longest, job.since_checkpoint);
  }
  metrics_.job.Set(index, queues);
}

void Server::SetStoreMetrics() const {
  StoreSample sample;
  volumes_.ForEach([&sample](const std::string&, const std::shared_ptr<const StoredVolume>& volume) {
    StoreSample::Volumes& volumes = HasVoxels(*volume) ? sample.resident_volumes : sample.spooled_volumes;
    ++volumes.count;
    volumes.bytes += PreparedImage::Bytes(volume->image.geometry());
  });
  sample.matrices = matrices_.size();
  sample.transforms = transforms_.size();
  if (!options_.state_dir.empty()) {
    std::error_code error;
    const std::filesystem::space_info disk = std::filesystem::space(options_.state_dir, error);
    if (!error) sample.disk = {static_cast<int64_t>(disk.available), static_cast<int64_t>(disk.capacity)};
  }
  metrics_.store.Set(sample);
}

void Server::SetAdmissionMetrics() const {
  std::vector<int64_t> evictable;
  for (int i = 0; i < devices_.size(); ++i) {
    evictable.push_back(EvictableBytes(volumes_, i) + product_plans_.EvictableBytes(i));
  }
  metrics_.admission.Set(ledger_, evictable);
  metrics_.admission.SetPinnedPooled(static_cast<int64_t>(pinned_.pooled_bytes()));
  metrics_.admission.SetTable("calls", monitor_.calls(), limits_.max_calls);
  const int64_t strangers = gate_.strangers();
  metrics_.admission.SetTable("connections", gate_.connections() - strangers, limits_.max_connections);
  metrics_.admission.SetTable("stranger_connections", strangers, StrangersOf(limits_.max_connections));
}

void Server::Housekeep() {
  std::lock_guard<std::mutex> lock(housekeep_mutex_);
  uploads_.Expire();
  const steady_clock::time_point now = options_.seams.steady_now();
  ExpireObjects(now);
  product_plans_.Expire();
  sessions_.Expire(now);
  operations_.Expire(now);
  stream_watch_.Check(now, metrics_.monitor);
  if (shared_memory_ != nullptr) shared_memory_->Expire(now);
  audit_.Check(now);
  if (TheLogLevels().Check(now)) Log(Severity::kInfo, "log_level_reverted");
  for (int i = 0; i < devices_.size(); ++i) CheckDevice(i);
}

// One expiry at a time: a disk that does not answer must not collect them.
void Server::ExpireObjects(steady_clock::time_point now) {
  if (expiring_.exchange(true)) return;
  durable_.Run([this, now] {
    durable_.Expire(volumes_, now);
    durable_.Expire(matrices_, now);
    durable_.Expire(transforms_, now);
    durable_.WriteTime(now);
    expiring_ = false;
  });
}

// A process gives up when its last device is lost or has hung for long enough.
void Server::CheckDevice(int index) {
  const Watchdog::Finding finding = served_[index]->Check(options_.seams.steady_now());
  if (finding.changed) ReportDevice(index, finding);
  if (finding.give_up && !AnyIsWell() && options_.give_up) options_.give_up();
}

void Server::ReportDevice(int index, const Watchdog::Finding& finding) {
  grpc_->GetHealthCheckService()->SetServingStatus(AnyIsWell());
  const Device& device = served_[index]->device();
  switch (finding.state) {
    case WatchdogState::kWell:
      return Log(Severity::kInfo, "device_recovered", {{"device", device.name()}});
    case WatchdogState::kHung:
      metrics_.device.CountError(DeviceError::kHung, index);
      return Log(Severity::kError, "device_hung", {{"device", device.name()}, {"waits_for", finding.hung}});
    case WatchdogState::kLost:
      metrics_.device.CountError(DeviceError::kLost, index);
      return Log(Severity::kError, "device_lost", {{"device", device.name()}, {"cause", device.health().ToString()}});
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
  access_.Stop();
  gate_.Stop();
  // Beside the calls under way: both have the same time.
  const std::future<void> dicom_stopped = std::async(std::launch::async, [this] {
    if (dicom_ != nullptr) dicom_->Stop(steady_clock::now() + options_.drain_timeout);
  });
  if (grpc_ != nullptr) {
    // NOT_SERVING for good.
    grpc_->GetHealthCheckService()->Shutdown();
    ShutdownGrpc();
  }
  page_.reset();
  workers_.Shutdown();
  receivers_.Shutdown();
  sessions_.SuspendAll(absl::UnavailableError("the server is shutting down"));
  dicom_stopped.wait();  // a slow peer takes none of the time of sessions
  for (const auto& device : served_) device->Shutdown();
  durable_.Shutdown();
  scraped_ = {};
  audit_.Close();
  http_.reset();
  dicom_.reset();
  grpc_.reset();
  WaitForTransport();
}

void Server::ReloadAccess() {
  if (access_.Reload()) monitor_.EndRevoked();
}

// gRPC's own shutdown waits for health watches, which never end, and for idle clients that do not answer. Once our
// calls have ended, it need not.
void Server::ShutdownGrpc() {
  const auto deadline = std::chrono::system_clock::now() + options_.drain_timeout;
  std::future<void> done = std::async(std::launch::async, [this, deadline] { grpc_->Shutdown(deadline); });
  const auto drained = steady_clock::now() + options_.drain_timeout;
  monitor_.WaitIdle(drained);
  operations_.WaitIdle(drained);
  operations_.CancelAll(WithReason(absl::UnavailableError("the server is shutting down"), v1::SERVER_STOPPING));
  while (done.wait_for(milliseconds(20)) != std::future_status::ready) {
    grpc_server_cancel_all_calls(grpc_->c_server());
    audit_.Check(options_.seams.steady_now());  // nobody else asks any more
  }
  grpc_->Wait();
}

// The transport may refer to pinned memory for a moment after its last call, and a client may read its last fields.
void Server::WaitForTransport() {
  const auto deadline = steady_clock::now() + std::chrono::seconds(5);
  uploads_.Clear();
  while (ledger_.in_use(Resource::kPinned) > 0 && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(5));
    uploads_.Clear();
    if (shared_memory_ != nullptr) shared_memory_->Expire(options_.seams.steady_now());
  }
}

Server::~Server() { Stop(); }

}  // namespace intrawarp::server
