// SPDX-License-Identifier: Apache-2.0
#include "server/device/device_metrics.h"

namespace intrawarp::server {
namespace {

constexpr const char* kDeviceErrors[] = {"out_of_memory", "lost", "hung"};
constexpr const char* kWatchdogStates[] = {"well", "hung", "lost"};

}  // namespace

DeviceMetrics::DeviceMetrics(Registry& registry, const std::vector<std::string>& devices)
    : memory_(registry.Gauges("intrawarp_device_memory_bytes", "Memory of a GPU.", {"device", "state"})) {
  const GaugeFamily healthy =
      registry.Gauges("intrawarp_device_healthy", "1 while the device can be used.", {"device"});
  const CounterFamily errors = registry.Counters(
      "intrawarp_device_errors_total",
      "What went wrong with the device: no memory for a job, lost, or not coming back.", {"device", "error"});
  const GaugeFamily state =
      registry.Gauges("intrawarp_watchdog_state", "1 for the state that the watchdog sees.", {"device", "state"});
  for (const std::string& device : devices) {
    Series& series = devices_.emplace_back();
    series.name = device;
    series.errors = EnumCounters<DeviceError>(errors, kDeviceErrors, {device});
    series.healthy = healthy.With({device});
    for (const char* name : kWatchdogStates) series.watchdog.push_back(state.With({device, name}));
  }
}

void DeviceMetrics::Set(int device, const DeviceSample& sample) const {
  const Series& series = devices_[static_cast<size_t>(device)];
  series.healthy.Set(sample.healthy ? 1 : 0);
  for (size_t i = 0; i < series.watchdog.size(); ++i) {
    series.watchdog[i].Set(static_cast<size_t>(sample.watchdog) == i ? 1 : 0);
  }
  if (!sample.memory) return;
  memory_.With({series.name, "used"}).Set(sample.memory->total_bytes - sample.memory->free_bytes);
  memory_.With({series.name, "free"}).Set(sample.memory->free_bytes);
}

}  // namespace intrawarp::server
