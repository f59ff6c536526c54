// SPDX-License-Identifier: Apache-2.0
// MonitorMetrics: what runs here, the process, and streams whose client makes no progress.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_MONITOR_MONITOR_METRICS_H_
#define INTRAWARP_SERVER_MONITOR_MONITOR_METRICS_H_

#include <chrono>

#include "server/base/version.h"
#include "server/monitor/registry.h"
#include "server/monitor/stream_watch.h"

namespace intrawarp::server {

class MonitorMetrics {
 public:
  // The process is looked at for each scrape of the registry.
  MonitorMetrics(Registry& registry, const BuildInfo& build, std::chrono::system_clock::time_point start_time);

  // A stream was ended because its client made no progress.
  void CountStall(Stall stall) const { stalls_[stall].Add(); }
  // How long the stream has waited that waits longest for its client.
  void SetLongestStall(std::chrono::nanoseconds waited) const { longest_stall_.Set(Seconds(waited)); }

 private:
  void SetProcess() const;

  const EnumCounters<Stall> stalls_;
  const Gauge longest_stall_;
  const Counter cpu_seconds_;
  const Gauge resident_bytes_;
  const Gauge virtual_bytes_;
  const Gauge open_fds_;
  const Gauge max_fds_;
  const Gauge threads_;
  const Registry::Hook process_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_MONITOR_METRICS_H_
