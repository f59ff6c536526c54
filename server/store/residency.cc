// SPDX-License-Identifier: Apache-2.0
#include "server/store/residency.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/context/server_context.h"
#include "server/monitor/log.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/store/store_metrics.h"

namespace intrawarp::server {
namespace {

using Pointer = Residency::Pointer;

using Clock = std::chrono::steady_clock;

// How long, and how often, a load asks for room.
constexpr std::chrono::seconds kPatience{2};
constexpr std::chrono::milliseconds kPause{10};

struct Evictable {
  std::string key;
  int64_t last_use = 0;
  int64_t bytes = 0;
};

// The form without voxels.
Pointer Spooled(const StoredVolume& volume) {
  auto spooled = std::make_shared<StoredVolume>();
  spooled->id = volume.id;
  spooled->owner = volume.owner;
  spooled->id_was_chosen = volume.id_was_chosen;
  spooled->evictable = volume.evictable;
  spooled->pixel_type = volume.pixel_type;
  spooled->digest = volume.digest;
  spooled->content_digest = volume.content_digest;
  spooled->provenance = volume.provenance;
  spooled->is_provisional = volume.is_provisional;
  spooled->create_time = volume.create_time;
  spooled->expiry = volume.expiry;
  spooled->image = volume.image.In(Buffer());
  spooled->residency = volume.residency;
  return spooled;
}

// The volumes that may go now, in no order.
std::vector<Evictable> EvictablesOf(const VolumeStore& volumes, int device) {
  std::vector<Evictable> evictables;
  volumes.ForEach([&](const std::string& key, const Pointer& volume) {
    const bool may_go = volume->residency != nullptr && volume->evictable && HasVoxels(*volume) &&
                        volume.use_count() == 1 && volume->reservation.device() == device;
    if (may_go) evictables.push_back({key, volume->residency->last_use(), volume->reservation.resident_bytes()});
  });
  return evictables;
}

int64_t SumOfBytes(const std::vector<Evictable>& evictables) {
  int64_t bytes = 0;
  for (const Evictable& evictable : evictables) bytes += evictable.bytes;
  return bytes;
}

// A volume that was deleted has no payload any more; another one may have its id.
absl::StatusOr<Pointer> PutInPlace(DeviceContext& to, const StoredVolume& spooled,
                                   const absl::StatusOr<Pointer>& loaded) {
  const auto is_it = [&](const StoredVolume& there) { return there.residency == spooled.residency; };
  const std::string key = OwnedKey(spooled.id, spooled.owner);
  if (loaded.ok()) {
    if (to.volumes.Exchange(key, is_it, *loaded)) return loaded;
    return NotFound(StoredVolume::Name(spooled.id));
  }
  if (!absl::IsDataLoss(loaded.status())) {
    return to.volumes.Has(key, is_it) ? loaded.status() : NotFound(StoredVolume::Name(spooled.id));
  }
  const absl::Status damaged = ObjectDamaged(StoredVolume::Name(spooled.id), loaded.status().message());
  if (!to.volumes.Lose(key, is_it, damaged)) return NotFound(StoredVolume::Name(spooled.id));
  Log(Severity::kError, "volume_not_loaded",
      {{"object", StoredVolume::Name(spooled.id)}, {"cause", loaded.status().ToString()}});
  return damaged;
}

// Work that is over may be about to let go of the volumes that are in the way. A load that finds no
// room is queued again behind the others, so it delays each by one pause at most.
void Load(DeviceContext& to, const Pointer& spooled, Clock::time_point begin, Clock::time_point not_before) {
  std::this_thread::sleep_until(not_before);
  const absl::StatusOr<Pointer> made = to.durable.reload(to, *spooled);
  const Clock::time_point now = Clock::now();
  if (absl::IsResourceExhausted(made.status()) && now < begin + kPatience) {
    return to.durable.RunLoad([&to, spooled, begin, now] { Load(to, spooled, begin, now + kPause); });
  }
  const absl::StatusOr<Pointer> loaded = PutInPlace(to, *spooled, made);
  to.metrics.store.VolumeLoaded(loaded.ok(), Clock::now() - begin);
  spooled->residency->Leave(loaded);
}

}  // namespace

Residency::Residency(DurableContent content) : content_(std::move(content)), last_use_(NextReplicaUse()) {}

Residency::State Residency::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

int64_t Residency::last_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_use_;
}

void Residency::Touch() {
  std::lock_guard<std::mutex> lock(mutex_);
  last_use_ = NextReplicaUse();
}

void Residency::SetLoaded(const Pointer& loaded) {
  std::lock_guard<std::mutex> lock(mutex_);
  loaded_ = loaded;
  state_ = State::kResident;
}

void Residency::SetSpooled() {
  std::lock_guard<std::mutex> lock(mutex_);
  loaded_.reset();
  state_ = State::kSpooled;
}

Residency::Pointer Residency::Enter(DoneFn done, bool* begin) {
  std::lock_guard<std::mutex> lock(mutex_);
  *begin = false;
  if (Pointer there = loaded_.lock()) return there;
  waiting_.push_back(std::move(done));
  *begin = std::exchange(state_, State::kLoading) != State::kLoading;
  return nullptr;
}

void Residency::Leave(const absl::StatusOr<Pointer>& loaded) {
  std::vector<DoneFn> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (loaded.ok()) loaded_ = *loaded;
    state_ = loaded.ok() ? State::kResident : State::kSpooled;
    waiting.swap(waiting_);
  }
  for (const DoneFn& done : waiting) done(loaded);
}

bool HasVoxels(const StoredVolume& volume) { return volume.image.volume().data != nullptr; }

void LoadVolume(DeviceContext& to, const std::shared_ptr<const StoredVolume>& volume, Residency::DoneFn done) {
  if (volume->residency != nullptr) volume->residency->Touch();
  if (HasVoxels(*volume)) return done(volume);
  bool begin = false;
  // Copied: it is needed when the volume is there.
  if (const Pointer there = volume->residency->Enter(done, &begin)) return done(there);
  if (begin) to.durable.RunLoad([&to, volume] { Load(to, volume, Clock::now(), Clock::time_point()); });
}

int64_t EvictableBytes(const VolumeStore& volumes, int device) { return SumOfBytes(EvictablesOf(volumes, device)); }

void EvictVolumes(const ServerContext& context, int device, int64_t bytes) {
  std::vector<Evictable> evictables = EvictablesOf(context.volumes, device);
  if (SumOfBytes(evictables) < bytes) return;
  std::sort(evictables.begin(), evictables.end(),
            [](const Evictable& a, const Evictable& b) { return a.last_use < b.last_use; });
  for (const Evictable& evictable : evictables) {
    if (bytes <= 0) return;
    // Its memory goes with the pointer, after the store's lock.
    const Pointer gone = context.volumes.ReplaceUnused(evictable.key, [](const StoredVolume& volume) {
      volume.residency->SetSpooled();
      return Spooled(volume);
    });
    if (gone == nullptr) continue;
    bytes -= evictable.bytes;
    context.metrics.store.CountEviction();
  }
}

}  // namespace intrawarp::server
