// SPDX-License-Identifier: Apache-2.0
#include "server/placement/placement.h"

#include <algorithm>
#include <limits>

#include "server/device/device_set.h"

namespace intrawarp::server {
namespace {

std::chrono::nanoseconds TimeToStart(const PlacementState& device) { return device.wait + device.copy; }

// Whether the work should rather go to `a`.
bool IsBetter(const PlacementState& a, const PlacementState& b) {
  if (a.fits != b.fits) return a.fits;
  return TimeToStart(a) < TimeToStart(b);
}

}  // namespace

std::optional<int> PlaceWork(const std::vector<PlacementState>& devices) {
  std::optional<int> best;
  for (int i = 0; i < static_cast<int>(devices.size()); ++i) {
    if (devices[i].usable && (!best || IsBetter(devices[i], devices[*best]))) best = i;
  }
  return best;
}

std::optional<int> PlaceSession(const std::vector<PlacementState>& devices) {
  const bool some_fits =
      std::any_of(devices.begin(), devices.end(), [](const auto& device) { return device.usable && device.fits; });
  const auto counts = [some_fits](const PlacementState& device) {
    return device.usable && (device.fits || !some_fits);
  };
  double least = std::numeric_limits<double>::max();
  for (const PlacementState& device : devices) {
    if (counts(device)) least = std::min(least, device.load);
  }
  std::vector<PlacementState> candidates = devices;
  for (PlacementState& device : candidates) device.usable = counts(device) && device.load < least + kEqualLoad;
  return PlaceWork(candidates);
}

}  // namespace intrawarp::server
