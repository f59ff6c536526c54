// SPDX-License-Identifier: Apache-2.0
#include "server/store/store_metrics.h"

namespace intrawarp::server {
namespace {

constexpr const char* kLoads[] = {"ok", "failed"};
constexpr const char* kKinds[] = {"volume", "sparse_matrix", "transform"};

}  // namespace

StoreMetrics::StoreMetrics(Registry& registry)
    : evictions_(registry.NewCounter("intrawarp_volume_evictions_total", "Volumes that left the device to make room.")),
      loads_(registry.Counters("intrawarp_volume_loads_total",
                               "Volumes that work waited for, read back from the state directory.", {"outcome"}),
             kLoads),
      load_seconds_(registry.NewHistogram("intrawarp_volume_load_seconds", "Time to read a volume back and prepare it.",
                                          kShortBuckets)),
      resident_objects_(
          registry.Gauges("intrawarp_resident_objects", "Objects resident on the device, by kind.", {"kind"})),
      volumes_(registry.Gauges("intrawarp_volumes", "Volumes, by where their voxels are: resident or spooled.",
                               {"residency"})),
      volume_bytes_(registry.Gauges("intrawarp_volume_bytes",
                                    "Device memory that the volumes take, or would take, by where their voxels are.",
                                    {"residency"})),
      disk_free_(registry.Gauges("intrawarp_state_disk_free_bytes",
                                 "Bytes that the server may still write on the state directory's file system.", {})),
      disk_size_(registry.Gauges("intrawarp_state_disk_size_bytes", "Size of the state directory's file system.", {})) {
  for (const char* kind : kKinds) resident_objects_.With({kind});
}

void StoreMetrics::VolumeLoaded(bool ok, std::chrono::nanoseconds elapsed) const {
  loads_[ok ? Load::kOk : Load::kFailed].Add();
  if (ok) load_seconds_.Observe(Seconds(elapsed));
}

void StoreMetrics::Set(const StoreSample& sample) const {
  resident_objects_.With({"volume"}).Set(sample.resident_volumes.count);
  resident_objects_.With({"sparse_matrix"}).Set(sample.matrices);
  resident_objects_.With({"transform"}).Set(sample.transforms);
  volumes_.With({"resident"}).Set(sample.resident_volumes.count);
  volumes_.With({"spooled"}).Set(sample.spooled_volumes.count);
  volume_bytes_.With({"resident"}).Set(sample.resident_volumes.bytes);
  volume_bytes_.With({"spooled"}).Set(sample.spooled_volumes.bytes);
  if (!sample.disk) return;
  disk_free_.With({}).Set(sample.disk->free_bytes);
  disk_size_.With({}).Set(sample.disk->size_bytes);
}

}  // namespace intrawarp::server
