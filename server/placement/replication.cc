// SPDX-License-Identifier: Apache-2.0
#include "server/placement/replication.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/base/worker_pool.h"
#include "server/device/device_set.h"
#include "server/job/job_support.h"
#include "server/placement/device_transfer.h"
#include "server/store/residency.h"

namespace intrawarp::server {
namespace {

using DoneFn = std::function<void(const absl::Status&)>;

// The memory of an object, and the object in another device's copy of it. The copy's buffers are those of the pieces,
// in their order.

DeviceBytes MemoryOf(const StoredVolume& volume) {
  return {{volume.image.volume().data, PreparedImage::Bytes(volume.image.geometry())}};
}

std::shared_ptr<const StoredVolume> CopyOf(const StoredVolume& volume, std::vector<Buffer> memory, Grant grant) {
  auto copy = std::make_shared<StoredVolume>();
  copy->id = volume.id;
  copy->owner = volume.owner;
  copy->id_was_chosen = volume.id_was_chosen;
  copy->pixel_type = volume.pixel_type;
  copy->digest = volume.digest;
  copy->content_digest = volume.content_digest;
  copy->provenance = volume.provenance;
  copy->is_provisional = volume.is_provisional;
  copy->create_time = volume.create_time;
  copy->expiry = volume.expiry;
  copy->reservation = std::move(grant);
  copy->image = volume.image.In(std::move(memory[0]));
  return copy;
}

DeviceBytes MemoryOf(const StoredMatrix& matrix) {
  const ConstCsrView view = matrix.matrix.view();
  return {{view.row_offsets, (int64_t{view.rows} + 1) * int64_t{sizeof(int64_t)}},
          {view.column_indices, view.entries * int64_t{sizeof(int32_t)}},
          {view.values, view.entries * BytesPerValue(view.type)}};
}

std::shared_ptr<const StoredMatrix> CopyOf(const StoredMatrix& matrix, std::vector<Buffer> memory, Grant grant) {
  const ConstCsrView view = matrix.matrix.view();
  auto copy = std::make_shared<StoredMatrix>();
  copy->id = matrix.id;
  copy->owner = matrix.owner;
  copy->id_was_chosen = matrix.id_was_chosen;
  copy->digest = matrix.digest;
  copy->content_digest = matrix.content_digest;
  copy->create_time = matrix.create_time;
  copy->expiry = matrix.expiry;
  copy->reservation = std::move(grant);
  copy->matrix = CsrMatrix(view, view.type, std::move(memory[0]), std::move(memory[1]), std::move(memory[2]));
  return copy;
}

DeviceBytes MemoryOf(const StoredTransform& stored) {
  const Transform& transform = stored.transform;
  const auto piece = [](const ConstFieldView& field) {
    return DevicePiece{field.data, 3 * field.geometry.voxels() * int64_t{sizeof(float)}};
  };
  if (transform.has_control_grid()) return {piece(transform.control_grid())};
  if (!transform.has_displacement()) return {};
  if (!transform.has_velocity()) return {piece(transform.displacement())};
  return {piece(transform.velocity()), piece(transform.displacement()), piece(transform.backward())};
}

Transform TransformIn(const Transform& from, std::vector<Buffer> memory) {
  if (from.has_control_grid()) {
    return Transform(from.affine(), std::move(memory[0]), from.control_grid().geometry, from.domain());
  }
  if (!from.has_velocity()) return Transform(std::move(memory[0]), *from.domain());
  return Transform(from.affine(), {std::move(memory[0]), std::move(memory[1]), std::move(memory[2])}, *from.domain());
}

std::shared_ptr<const StoredTransform> CopyOf(const StoredTransform& stored, std::vector<Buffer> memory, Grant grant) {
  return std::make_shared<StoredTransform>(
      StoredTransform{stored.id, stored.create_time, stored.report, std::make_shared<Grant>(std::move(grant)),
                      TransformIn(stored.transform, std::move(memory)), stored.expiry, stored.request, stored.digest,
                      stored.id_was_chosen, stored.owner});
}

// Calls `visit` with each pointer that is not null.
template <typename Visit>
void ForEach(const Inputs& inputs, const Visit& visit) {
  const auto all = [&visit](const auto& slots) {
    for (auto* slot : slots) {
      if (*slot != nullptr) visit(*slot);
    }
  };
  all(inputs.volumes);
  all(inputs.matrices);
  all(inputs.transforms);
}

// Whether the object has to be loaded before it is anywhere.
bool IsSpooled(const StoredVolume& volume) { return !HasVoxels(volume); }
template <typename Stored>
bool IsSpooled(const Stored&) {
  return false;
}

// Copies `original` unless the transfer before this one has. `slot` gets the copy.
template <typename Stored>
void Copy(DeviceContext& to, std::shared_ptr<const Stored>& slot, Share share, TransferQueue::Turn turn, DoneFn done) {
  const std::shared_ptr<const Stored> original = slot;
  if (std::shared_ptr<const Stored> there = original->replicas->Find(to.index)) {
    slot = std::move(there);
    return done(absl::OkStatus());
  }
  ResidentBytes bytes{original, MemoryOf(*original)};
  absl::StatusOr<Grant> grant = Admit(to, {{.resident_bytes = TotalBytes(bytes.bytes)}}, share);
  if (!grant.ok()) return done(grant.status());
  auto granted = std::make_shared<Grant>(*std::move(grant));
  StartTransfer(to.devices[DeviceOf(*original)], to, std::move(bytes), share,
                [&to, &slot, original, granted, turn = std::move(turn),
                 done = std::move(done)](absl::StatusOr<std::vector<Buffer>> copied) {
                  if (!copied.ok()) return done(copied.status());
                  slot = CopyOf(*original, *std::move(copied), std::move(*granted));
                  original->replicas->Insert(to.index, slot);
                  done(absl::OkStatus());
                });
}

template <typename Stored>
void BringLoaded(DeviceContext& to, std::shared_ptr<const Stored>& slot, Share share, DoneFn done) {
  const int home = DeviceOf(*slot);
  if (home == to.index || MemoryOf(*slot).empty()) return done(absl::OkStatus());
  if (std::shared_ptr<const Stored> there = slot->replicas->Find(to.index)) {
    slot = std::move(there);
    return done(absl::OkStatus());
  }
  const absl::Status usable = CheckUsable(to.devices[home]);
  if (!usable.ok()) return done(usable);
  // A pinned slab may have to be page-locked, which takes its time.
  to.workers.Submit([&to, &slot, home, share, done = std::move(done)]() mutable {
    to.devices.transfers().Submit(home, to.index,
                                  [&to, &slot, share, done = std::move(done)](TransferQueue::Turn turn) mutable {
                                    Copy(to, slot, share, std::move(turn), std::move(done));
                                  });
  });
}

template <typename Stored>
void Bring(DeviceContext& to, std::shared_ptr<const Stored>& slot, Share share, DoneFn done) {
  BringLoaded(to, slot, share, std::move(done));
}

void Bring(DeviceContext& to, std::shared_ptr<const StoredVolume>& slot, Share share, DoneFn done) {
  LoadVolume(to, slot,
             [&to, &slot, share,
              done = std::move(done)](const absl::StatusOr<std::shared_ptr<const StoredVolume>>& loaded) mutable {
               if (!loaded.ok()) return done(loaded.status());
               slot = *loaded;
               BringLoaded(to, slot, share, std::move(done));
             });
}

// One input after the other.
class Bringing final : public std::enable_shared_from_this<Bringing> {
 public:
  Bringing(DeviceContext& to, const Inputs& inputs, Share share, DoneFn done) : done_(std::move(done)) {
    ForEach(inputs, [this, &to, share](auto& slot) {
      steps_.push_back([&to, &slot, share](DoneFn next) { Bring(to, slot, share, std::move(next)); });
    });
  }

  void Next(const absl::Status& status) {
    if (!status.ok() || next_ == steps_.size()) return done_(status);
    steps_[next_++]([self = shared_from_this()](const absl::Status& brought) { self->Next(brought); });
  }

 private:
  const DoneFn done_;
  std::vector<std::function<void(DoneFn)>> steps_;
  size_t next_ = 0;
};

// A copy that may go, and when it was used last.
struct Droppable {
  int64_t last_use = 0;
  std::function<int64_t()> drop;  // the bytes that it freed
};

template <typename Store>
void AddDroppable(const Store& store, int device, std::vector<Droppable>& to) {
  for (const auto& object : store.List("", std::numeric_limits<int>::max())) {
    const std::optional<int64_t> last_use = object->replicas->Droppable(device);
    if (!last_use) continue;
    to.push_back({*last_use, [replicas = object->replicas, device] {
                    const auto dropped = replicas->Drop(device);
                    return dropped == nullptr ? int64_t{0} : TotalBytes(MemoryOf(*dropped));
                  }});
  }
}

}  // namespace

int DeviceOf(const StoredVolume& volume) { return volume.reservation.device(); }
int DeviceOf(const StoredMatrix& matrix) { return matrix.reservation.device(); }
int DeviceOf(const StoredTransform& transform) {
  return transform.reservation == nullptr ? 0 : transform.reservation->device();
}

std::shared_ptr<const StoredVolume> FindOn(const DeviceContext& to, const std::shared_ptr<const StoredVolume>& volume) {
  if (volume->residency != nullptr) volume->residency->Touch();
  if (!HasVoxels(*volume)) return nullptr;
  return DeviceOf(*volume) == to.index ? volume : volume->replicas->Find(to.index);
}

std::vector<PlacementState> PlacementStates(ServerContext& context, const Inputs& inputs, JobClass job_class,
                                            const Claim& claim, Share share) {
  std::vector<PlacementState> states(context.devices.size());
  for (int i = 0; i < context.devices.size(); ++i) {
    DeviceContext& device = context.devices[i];
    PlacementState& state = states[i];
    int64_t missing_bytes = 0;
    state.usable = CheckUsable(device).ok();
    state.wait = device.jobs.PredictedWait(job_class);
    ForEach(inputs, [&](const auto& object) {
      const int64_t bytes = TotalBytes(MemoryOf(*object));
      if (IsSpooled(*object)) {
        missing_bytes += bytes;
        return;
      }
      const int home = DeviceOf(*object);
      if (bytes == 0 || home == i || object->replicas->Has(i)) return;
      missing_bytes += bytes;
      if (!CheckUsable(context.devices[home]).ok()) state.usable = false;
    });
    state.copy = context.devices.copy_rate().Predict(missing_bytes);
    const Ledger& ledger = context.ledger;
    state.fits = claim.resident_bytes + missing_bytes <= ledger.available(Resource::kResident, share, i) &&
                 claim.workspace_bytes <= ledger.available(Resource::kWorkspace, share, i);
  }
  return states;
}

absl::Status NoUsableDevice(const ServerContext& context, const Inputs& inputs) {
  absl::Status why;
  ForEach(inputs, [&](const auto& object) {
    if (why.ok()) why = CheckUsable(context.devices[DeviceOf(*object)]);
  });
  return why.ok() ? CheckUsable(context.devices[0]) : why;
}

absl::StatusOr<DeviceContext*> PlaceJob(ServerContext& context, const Inputs& inputs, JobClass job_class,
                                        const Claim& claim) {
  if (context.devices.size() == 1) return &context.devices[0];
  const std::optional<int> placed = PlaceWork(PlacementStates(context, inputs, job_class, claim, Share::kCommon));
  if (!placed) return NoUsableDevice(context, inputs);
  return &context.devices[*placed];
}

DeviceContext& PlaceObject(ServerContext& context) {
  const auto room = [&context](int i) {
    const bool usable = CheckUsable(context.devices[i]).ok();
    return usable ? context.ledger.available(Resource::kResident, Share::kCommon, i) : -1;
  };
  int best = 0;
  for (int i = 1; i < context.devices.size(); ++i) {
    if (room(i) > room(best)) best = i;
  }
  return context.devices[best];
}

void BringTo(DeviceContext& to, const Inputs& inputs, Share share, DoneFn done) {
  std::make_shared<Bringing>(to, inputs, share, std::move(done))->Next(absl::OkStatus());
}

void DropReplicas(const ServerContext& context, int device, int64_t bytes) {
  std::vector<Droppable> droppable;
  AddDroppable(context.volumes, device, droppable);
  AddDroppable(context.matrices, device, droppable);
  AddDroppable(context.transforms, device, droppable);
  std::sort(droppable.begin(), droppable.end(),
            [](const Droppable& a, const Droppable& b) { return a.last_use < b.last_use; });
  for (const Droppable& copy : droppable) {
    if (bytes <= 0) return;
    bytes -= copy.drop();
  }
}

}  // namespace intrawarp::server
