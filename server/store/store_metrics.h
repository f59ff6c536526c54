// SPDX-License-Identifier: Apache-2.0
// StoreMetrics: the objects of a server, where the voxels of volumes are, and the disk of the state directory.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_STORE_STORE_METRICS_H_
#define INTRAWARP_SERVER_STORE_STORE_METRICS_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "server/monitor/registry.h"

namespace intrawarp::server {

// The state of the stores, read for a scrape.
struct StoreSample {
  // In bytes of device memory.
  struct Volumes {
    int64_t count = 0;
    int64_t bytes = 0;
  };
  // The room on the file system of the state directory.
  struct Disk {
    int64_t free_bytes = 0;
    int64_t size_bytes = 0;
  };
  // By where their voxels are (server/store/residency.h).
  Volumes resident_volumes;
  Volumes spooled_volumes;
  int64_t matrices = 0;
  int64_t transforms = 0;
  // Unset without a state directory.
  std::optional<Disk> disk;
};

class StoreMetrics {
 public:
  explicit StoreMetrics(Registry& registry);

  // A volume left the device to make room.
  void CountEviction() const { evictions_.Add(); }
  // A volume came back to the device, or did not.
  void VolumeLoaded(bool ok, std::chrono::nanoseconds elapsed) const;
  void Set(const StoreSample& sample) const;

 private:
  // Values of the label outcome.
  enum class Load { kOk, kFailed };

  const Counter evictions_;
  const EnumCounters<Load> loads_;
  const Histogram load_seconds_;
  const GaugeFamily resident_objects_;
  const GaugeFamily volumes_;
  const GaugeFamily volume_bytes_;
  const GaugeFamily disk_free_;
  const GaugeFamily disk_size_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_STORE_METRICS_H_
