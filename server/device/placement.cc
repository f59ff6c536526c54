// SPDX-License-Identifier: Apache-2.0
#include "server/device/placement.h"

#include <algorithm>
#include <limits>

namespace intrawarp::server {
namespace {

using std::chrono::nanoseconds;

nanoseconds TimeToStart(const PlacementState& device) {
  if (device.missing_bytes == 0) return device.wait;
  const double seconds = static_cast<double>(device.missing_bytes) / kCopyBytesPerSecond;
  return device.wait + kCopySetup + std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(seconds));
}

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
