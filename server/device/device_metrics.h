// SPDX-License-Identifier: Apache-2.0
// DeviceMetrics: whether each device can be used, what went wrong with it, and its memory.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_DEVICE_DEVICE_METRICS_H_
#define INTRAWARP_SERVER_DEVICE_DEVICE_METRICS_H_

#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "server/monitor/registry.h"
#include "server/monitor/watchdog.h"

namespace intrawarp::server {

// Values of the label error: no memory for a job, the device lost until a restart, a job or the device that does not
// come back.
enum class DeviceError { kOutOfMemory, kLost, kHung };

// The state of a device, read for a scrape.
struct DeviceSample {
  // Unset: the device has no memory of its own, or has not answered yet.
  std::optional<DeviceMemory> memory;
  bool healthy = true;
  WatchdogState watchdog = WatchdogState::kWell;
};

// The numbers of devices are their places in `devices`.
class DeviceMetrics {
 public:
  // `devices`: their names.
  DeviceMetrics(Registry& registry, const std::vector<std::string>& devices);

  void CountError(DeviceError error, int device) const { devices_[static_cast<size_t>(device)].errors[error].Add(); }
  void Set(int device, const DeviceSample& sample) const;

 private:
  struct Series {
    std::string name;
    EnumCounters<DeviceError> errors;
    Gauge healthy;
    std::vector<Gauge> watchdog;  // in the order of WatchdogState
  };

  const GaugeFamily memory_;
  std::vector<Series> devices_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_DEVICE_DEVICE_METRICS_H_
