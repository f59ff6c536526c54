// SPDX-License-Identifier: Apache-2.0
// Residency: on a server that keeps its objects, device memory is a cache of volumes. A volume that nobody uses gives
// its memory back when a claim needs room, the one that was used longest ago first, and is loaded again from the spool,
// verified, for the work that needs it. Volumes in use (by a job, an open session, a download) and those that are not
// evictable stay.
//
// The forms of a volume, with and without voxels, take each other's place in the store and share one Residency.
#ifndef INTRAWARP_SERVER_STORE_RESIDENCY_H_
#define INTRAWARP_SERVER_STORE_RESIDENCY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

struct DeviceContext;
struct ServerContext;

// The content of a durable object: the upload that would bring it.
struct DurableContent {
  std::string header;   // a serialised UploadHeader
  std::string payload;  // a SHA-256
  int64_t payload_bytes = 0;
};

// Thread safety: safe for concurrent use.
class Residency {
 public:
  using Pointer = std::shared_ptr<const StoredVolume>;
  using DoneFn = std::function<void(const absl::StatusOr<Pointer>&)>;
  enum class State { kSpooled, kLoading, kResident };

  explicit Residency(DurableContent content);

  const DurableContent& content() const { return content_; }
  State state() const;
  // Grows with each use of any volume.
  int64_t last_use() const;
  void Touch();

  // The volume with its voxels has entered the store, or has left it.
  void SetLoaded(const Pointer& loaded);
  void SetSpooled();

  // The volume with its voxels when it is there. Otherwise null, and `done` is called once the load has ended; `*begin`
  // tells the caller to begin it.
  Pointer Enter(DoneFn done, bool* begin);
  // The load has ended.
  void Leave(const absl::StatusOr<Pointer>& loaded);

 private:
  const DurableContent content_;
  mutable std::mutex mutex_;
  State state_ = State::kResident;
  int64_t last_use_;
  std::weak_ptr<const StoredVolume> loaded_;
  std::vector<DoneFn> waiting_;
};

// Whether the voxels are in the memory of this form.
bool HasVoxels(const StoredVolume& volume);

// A form of the volume with its voxels: the one that is there, at once, or one that is loaded to `to`, later, on
// another thread, by the context's DurableObjects::reload. RESOURCE_NOT_FOUND when it was deleted meanwhile;
// OBJECT_DAMAGED for a payload that does not have its digest, after which the volume is lost; those of Ledger::Admit
// once there was no room for two seconds; those of the device.
void LoadVolume(DeviceContext& to, const std::shared_ptr<const StoredVolume>& volume, Residency::DoneFn done);

// The memory of volumes on the device that EvictVolumes could take now.
int64_t EvictableBytes(const VolumeStore& volumes, int device);

// For Ledger::set_reclaim: takes the voxels of volumes that nobody uses until `bytes` of the device are free; none when
// all of them would not suffice.
void EvictVolumes(const ServerContext& context, int device, int64_t bytes);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_RESIDENCY_H_
