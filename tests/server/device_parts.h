// SPDX-License-Identifier: Apache-2.0
// DeviceParts: the devices of a server without the server: for each of them a copy lane and a DeviceContext, for all of
// them pinned memory, a ledger and the metrics of admission. The context has nothing else (partial_context.h).
//
// Thread-compatible; the parts have their own rules.
#ifndef INTRAWARP_TESTS_SERVER_DEVICE_PARTS_H_
#define INTRAWARP_TESTS_SERVER_DEVICE_PARTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/pinned_pool.h"
#include "engine/schedule/copy_lane.h"
#include "server/device/device_set.h"
#include "server/job/admission_metrics.h"
#include "server/ledger/ledger.h"
#include "server/monitor/registry.h"
#include "tests/server/partial_context.h"

namespace intrawarp::server {

class DeviceParts {
 public:
  static constexpr int64_t kDeviceBytes = int64_t{1} << 30;
  static constexpr int64_t kPinnedBytes = int64_t{256} << 20;

  // The devices outlive it.
  explicit DeviceParts(const std::vector<Device*>& devices) : ledger_(Capacity(devices)), pinned_(devices, 0) {
    parts_.devices = &devices_;
    parts_.pinned = &pinned_;
    parts_.ledger = &ledger_;
    parts_.admission = &admission_;
    for (Device* const device : devices) {
      lanes_.push_back(*CopyLane::Create(*device));
      devices_.Add({parts_.Make(), devices_.size(), *device, *NoPart<const DeviceProbe>(), *NoPart<const Watchdog>(),
                    *NoPart<JobQueue>(), *lanes_.back()});
    }
  }

  DeviceContext& operator[](int device) { return devices_[device]; }
  CopyLane& lane(int device = 0) { return *lanes_[device]; }
  Ledger& ledger() { return ledger_; }
  DeviceSet& devices() { return devices_; }
  int64_t in_use(Resource resource) const { return ledger_.in_use(resource); }
  // A grant of so much.
  Grant Take(const Amounts& amounts) { return *ledger_.Admit(Claim{amounts}); }
  // The page of metrics.
  std::string Scrape() const { return registry_.Scrape(); }

 private:
  static LedgerOptions Capacity(const std::vector<Device*>& devices) {
    LedgerOptions options;
    options.capacity.pinned_bytes = kPinnedBytes;
    for (Device* const device : devices) {
      options.devices.push_back({device->name(), {.resident_bytes = kDeviceBytes}, {}});
    }
    return options;
  }

  Registry registry_;
  const AdmissionMetrics admission_{registry_, {"cpu"}};
  Ledger ledger_;
  PinnedPool pinned_;
  DeviceSet devices_;
  PartialContext parts_;
  std::vector<std::unique_ptr<CopyLane>> lanes_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_DEVICE_PARTS_H_
