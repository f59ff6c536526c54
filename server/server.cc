// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/monitor/log.h"
#include "server/version.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMessageSlack = 64 << 10;  // a message around a chunk
constexpr auto kHousekeepingPeriod = std::chrono::seconds(1);

int64_t HostMemoryBytes() { return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

// Hashing is faster than any one stream is sent; the rest of the cores is the engine's.
int WorkerThreads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 2, 8); }

ServerLimits WithDefaults(ServerLimits limits, DeviceKind kind, const DeviceMemory& memory) {
  if (limits.resident_capacity_bytes == 0) {
    limits.resident_capacity_bytes = kind == DeviceKind::kCuda ? memory.total_bytes / 10 * 8 : memory.total_bytes / 2;
  }
  if (limits.pinned_capacity_bytes == 0) limits.pinned_capacity_bytes = std::min(8 * kGiB, HostMemoryBytes() / 4);
  return limits;
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

// Dead clients free what they hold within seconds, quiet ones may stay; no connection is closed for its age, which
// would end the streams in it.
void SetTransportArguments(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
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
  INTRAWARP_RETURN_IF_ERROR(server->Serve());
  return server;
}

Server::Server(const ServerOptions& options, std::unique_ptr<Device> device, const DeviceMemory& memory)
    : options_(options),
      limits_(WithDefaults(options.limits, device->kind(), memory)),
      device_(std::move(device)),
      pinned_(*device_, limits_.pinned_capacity_bytes),
      budget_(limits_.resident_capacity_bytes),
      transforms_(limits_.max_transforms),
      uploads_(pinned_, budget_, options_.seams, limits_.max_uploads, limits_.upload_ttl),
      metrics_(ThisBuild(), device_->name(), AllMethods(), options_.seams.system_now()),
      workers_(WorkerThreads()),
      monitor_(metrics_) {}

absl::Status Server::Serve() {
  SchedulingOptions scheduling;
  scheduling.capacity.fill(limits_.max_queued_jobs);
  INTRAWARP_ASSIGN_OR_RETURN(jobs_, Scheduler::Create(*device_, scheduling));
  INTRAWARP_ASSIGN_OR_RETURN(copies_, CopyLane::Create(*device_));
  context_.reset(new ServerContext{*device_, *jobs_, *copies_, workers_, pinned_, budget_, volumes_, matrices_,
                                   transforms_, uploads_, metrics_, limits_, options_.seams, register_requests_,
                                   multiply_requests_, streams_});
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
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port);
  for (const NamedService& service : services_) builder.RegisterService(service.service.get());
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits_.max_chunk_bytes + kMessageSlack));
  builder.SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder.SetOption(std::make_unique<ReflectionOption>(options_.reflection));
  SetTransportArguments(builder);
  grpc::ResourceQuota quota("intrawarp");
  quota.Resize(std::max<int64_t>(kGiB, 4 * limits_.max_streams * limits_.max_chunk_bytes));
  builder.SetResourceQuota(quota);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(monitor_.MakeInterceptorFactory());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || port == 0)
    return absl::UnavailableError(absl::StrCat("cannot serve gRPC on ", options_.listen));
  grpc_address_ = absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", port);
  for (const NamedService& service : services_) grpc_->GetHealthCheckService()->SetServingStatus(service.name, true);
  return absl::OkStatus();
}

absl::Status Server::ServeHttp() {
  INTRAWARP_ASSIGN_OR_RETURN(http_,
                             HttpServer::Start(options_.http, [this](const std::string& path) { return Page(path); }));
  return absl::OkStatus();
}

HttpPage Server::Page(const std::string& path) const {
  if (path == "/metrics") return {200, "text/plain; version=0.0.4; charset=utf-8", metrics_.Scrape()};
  HttpPage page;
  if (path == "/healthz") {
    page.status = serving_ ? 200 : 503;
    page.body = serving_ ? "serving\n" : "not serving\n";
  } else {
    page.status = 404;
    page.body = "not found\n";
  }
  return page;
}

MetricsSample Server::Sample() const {
  MetricsSample sample;
  for (int i = 0; i < kJobClasses; ++i) {
    const auto job_class = static_cast<JobClass>(i);
    sample.queues[i] = {jobs_->waiting(job_class), jobs_->capacity(job_class), jobs_->started(job_class)};
  }
  sample.volumes = volumes_.size();
  sample.matrices = matrices_.size();
  sample.transforms = transforms_.size();
  sample.resident_bytes = budget_.used_bytes();
  sample.resident_capacity_bytes = budget_.capacity_bytes();
  if (const auto memory = device_->memory(); memory.ok()) {
    sample.device_free_bytes = memory->free_bytes;
    sample.device_used_bytes = memory->total_bytes - memory->free_bytes;
  }
  sample.pinned_leased_bytes = static_cast<int64_t>(pinned_.leased_bytes());
  sample.pinned_kept_bytes = static_cast<int64_t>(pinned_.kept_bytes());
  sample.device_healthy = device_->health().ok();
  return sample;
}

void Server::Housekeep() {
  uploads_.Expire();
  const steady_clock::time_point now = options_.seams.steady_now();
  volumes_.Expire(now);
  matrices_.Expire(now);
  transforms_.Expire(now);
  const absl::Status health = device_->health();
  if (health.ok() || !serving_.exchange(false)) return;
  metrics_.CountDeviceError(DeviceError::kLost);
  grpc_->GetHealthCheckService()->SetServingStatus(false);
  Log(Severity::kError, "device_lost", {{"device", device_->name()}, {"cause", health.ToString()}});
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
  if (grpc_ != nullptr) {
    // NOT_SERVING for good.
    grpc_->GetHealthCheckService()->Shutdown();
    ShutdownGrpc();
  }
  workers_.Shutdown();
  if (copies_ != nullptr) copies_->Shutdown();
  if (jobs_ != nullptr) jobs_->Shutdown();
  metrics_.set_sampler(nullptr);
  http_.reset();
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
  while (pinned_.leased_bytes() > 0 && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(5));
    uploads_.Clear();
  }
}

Server::~Server() { Stop(); }

}  // namespace intrawarp::server
