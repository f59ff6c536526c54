// SPDX-License-Identifier: Apache-2.0
// DeviceSet: the devices that a server computes on, in the order of --device. There is at least one.
//
// Thread safety: safe for concurrent use once all devices are in it.
#ifndef INTRAWARP_SERVER_DEVICE_DEVICE_SET_H_
#define INTRAWARP_SERVER_DEVICE_DEVICE_SET_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/device/copy_rate.h"
#include "server/device/transfer_queue.h"

namespace intrawarp::server {

struct DeviceContext;

class DeviceSet {
 public:
  DeviceSet();
  ~DeviceSet();

  // Before the first RPC.
  void Add(const DeviceContext& device);

  int size() const { return static_cast<int>(devices_.size()); }
  DeviceContext& operator[](int index) const { return *devices_[index]; }
  // While the watchdog sees every device hang.
  bool AllHang() const;

  TransferQueue& transfers() { return transfers_; }
  CopyRate& copy_rate() { return copy_rate_; }

 private:
  std::vector<std::unique_ptr<DeviceContext>> devices_;
  TransferQueue transfers_;
  CopyRate copy_rate_;
};

// OK for a device that takes work. UNAVAILABLE, with the device's name: DEVICE_LOST when it has failed, DEVICE_HUNG
// while it does not come back.
absl::Status CheckUsable(const DeviceContext& device);
// The same for work that belongs to this device, where other work could go elsewhere. OK for the only device of a
// server, on which work waits for a hang to pass.
absl::Status CheckPlaced(const DeviceContext& device);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_DEVICE_DEVICE_SET_H_
