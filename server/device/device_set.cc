// SPDX-License-Identifier: Apache-2.0
#include "server/device/device_set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/device/device.h"
#include "server/context/server_context.h"
#include "server/monitor/watchdog.h"
#include "server/status/errors.h"

namespace intrawarp::server {

DeviceSet::DeviceSet() = default;
DeviceSet::~DeviceSet() = default;

void DeviceSet::Add(const DeviceContext& device) { devices_.push_back(std::make_unique<DeviceContext>(device)); }

bool DeviceSet::AllHang() const {
  return std::all_of(devices_.begin(), devices_.end(),
                     [](const auto& device) { return device->watchdog.state() == WatchdogState::kHung; });
}

absl::Status CheckUsable(const DeviceContext& device) {
  const std::string& name = device.device.name();
  const absl::Status health = device.device.health();
  if (!health.ok()) return WithReason(health, v1::DEVICE_LOST, {{"device", name}});
  switch (device.watchdog.state()) {
    case WatchdogState::kWell:
      return absl::OkStatus();
    case WatchdogState::kHung:
      return WithReason(absl::UnavailableError(absl::StrCat(name, " does not come back")), v1::DEVICE_HUNG,
                        {{"device", name}});
    case WatchdogState::kLost:
      break;
  }
  return WithReason(absl::UnavailableError(absl::StrCat(name, " failed")), v1::DEVICE_LOST, {{"device", name}});
}

absl::Status CheckPlaced(const DeviceContext& device) {
  return device.devices.size() == 1 ? absl::OkStatus() : CheckUsable(device);
}

}  // namespace intrawarp::server
