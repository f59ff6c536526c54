// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/monitor_metrics.h"

#include "server/monitor/process_stats.h"

namespace intrawarp::server {
namespace {

constexpr const char* kStalls[] = {"read", "write"};

}  // namespace

MonitorMetrics::MonitorMetrics(Registry& registry, const BuildInfo& build,
                               std::chrono::system_clock::time_point start_time)
    : stalls_(registry.Counters("intrawarp_streams_stalled_total",
                                "Streams ended because their client did not send or read for too long.", {"waits_for"}),
              kStalls),
      longest_stall_(registry.NewGauge("intrawarp_longest_stall_seconds",
                                       "How long the stream that waits longest for its client has waited.")),
      cpu_seconds_(registry.NewCounter("process_cpu_seconds_total", "User and system time of all threads.")),
      resident_bytes_(registry.NewGauge("process_resident_memory_bytes", "Resident memory.")),
      virtual_bytes_(registry.NewGauge("process_virtual_memory_bytes", "Virtual memory.")),
      open_fds_(registry.NewGauge("process_open_fds", "Open file descriptors.")),
      max_fds_(registry.NewGauge("process_max_fds", "File descriptors that may be open.")),
      threads_(registry.NewGauge("process_threads", "Threads.")),
      process_(registry.OnScrape([this] { SetProcess(); })) {
  registry.Gauges("intrawarp_build_info", "What runs here; always 1.", {"version", "revision", "cuda", "grpc"})
      .With({build.version, build.revision, build.cuda, build.grpc})
      .Set(1);
  registry.NewGauge("process_start_time_seconds", "When the server started, Unix time.")
      .Set(Seconds(start_time.time_since_epoch()));
}

void MonitorMetrics::SetProcess() const {
  const ProcessStats stats = ReadProcessStats();
  cpu_seconds_.RaiseTo(stats.cpu_seconds);
  resident_bytes_.Set(stats.resident_bytes);
  virtual_bytes_.Set(stats.virtual_bytes);
  open_fds_.Set(stats.open_fds);
  max_fds_.Set(stats.max_fds);
  threads_.Set(stats.threads);
}

}  // namespace intrawarp::server
