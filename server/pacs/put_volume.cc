// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/put_volume.h"

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/image/pyramid.h"
#include "intrawarp/v1/bulk.pb.h"
#include "io/file/digest.h"
#include "server/bulk/upload_store.h"
#include "server/device/device_set.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_support.h"
#include "server/monitor/watchdog.h"
#include "server/object/make_object.h"
#include "server/placement/replication.h"
#include "server/store/durable_objects.h"
#include "server/volume/volume_kind.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kRetryPeriod{250};
constexpr milliseconds kLookPeriod{50};

absl::Status Cancelled() { return absl::CancelledError("the volume is not wanted any more"); }

// Others may give it back soon.
bool IsWorthWaiting(const absl::Status& status) {
  switch (ReasonOf(status)) {
    case v1::RESIDENT_MEMORY:
    case v1::WORKSPACE_MEMORY:
    case v1::PINNED_MEMORY:
    case v1::QUEUE_FULL:
    case v1::TOO_MANY_UPLOADS:
      return true;
    default:
      return false;
  }
}

// Calls `attempt` until it succeeds, fails for good, or the patience is over.
template <typename Attempt>
auto Persist(const NewVolume& volume, steady_clock::time_point end, const Attempt& attempt) -> decltype(attempt()) {
  for (;;) {
    auto result = attempt();
    absl::Status status;
    if constexpr (std::is_same_v<decltype(result), absl::Status>) {
      status = result;
    } else {
      status = result.status();
    }
    if (status.ok() || !IsWorthWaiting(status) || steady_clock::now() >= end) return result;
    if (volume.cancelled()) return Cancelled();
    std::this_thread::sleep_for(kRetryPeriod);
  }
}

// What the job that makes the volume uses: it outlives whoever waits.
struct Making {
  // Given back after the memory that they stand for.
  Grant grant;
  Grant workspace;
  std::vector<uint8_t> pixels;
  std::unique_ptr<NewObject> object;
  std::shared_ptr<SlabPair> pair;
};

// Waits for the device's thread. A job that waits or is held is cancelled; one that computes is waited for, unless its
// device hangs.
absl::Status Wait(std::future<absl::Status> made, const NewVolume& volume, DeviceContext& device, const void* owner) {
  bool cancelled = false;
  while (made.wait_for(kLookPeriod) != std::future_status::ready) {
    if (!cancelled && volume.cancelled()) {
      cancelled = true;
      device.jobs.Cancel(owner);
    }
    if (cancelled && device.watchdog.state() != WatchdogState::kWell) return Cancelled();
  }
  return made.get();
}

// A volume takes this before it is read. Read voxels are at most float32.
Claim ClaimBefore(const NewVolume& volume, int device) {
  ObjectSpec spec;
  spec.owner = volume.owner;
  spec.total_bytes = volume.geometry.voxels() * int64_t{sizeof(float)};
  spec.resident_bytes = ChargedBytes(PreparedImage::Bytes(volume.geometry));
  Claim claim = ObjectClaim(spec, device);
  claim.uploads = 1;
  return claim;
}

// The rest of ObjectClaim.
Claim WorkspaceClaim(const ObjectSpec& spec, int device) {
  Claim claim;
  claim.device = device;
  claim.workspace_bytes = spec.workspace_bytes;
  claim.owner = spec.owner;
  claim.is_short = true;
  return claim;
}

ObjectSpec SpecOf(const NewVolume& volume, const io::HostVolume& read) {
  ObjectSpec spec;
  spec.id = volume.id;
  spec.owner = volume.owner;
  spec.total_bytes = static_cast<int64_t>(read.pixels.size());
  spec.content_digest = io::Sha256Of(read.pixels.data(), read.pixels.size());
  return spec;
}

VolumeContent ContentOf(const NewVolume& volume, const io::HostVolume& read) {
  VolumeContent content;
  content.geometry = read.geometry;
  content.pixel_type = read.pixel_type;
  content.rescale = {read.rescale_slope, read.rescale_intercept};
  content.provenance = volume.provenance;
  content.is_provisional = volume.is_provisional;
  return content;
}

// The bytes are on the disk before there is an object of them.
absl::StatusOr<ObjectOrigin> KeepBytes(DurableObjects& durable, const Making& making, const VolumeContent& content) {
  ObjectOrigin origin;
  if (!durable.enabled()) return origin;
  const ObjectSpec& spec = making.object->spec();
  const absl::Span<const char> bytes(reinterpret_cast<const char*>(making.pixels.data()), making.pixels.size());
  origin.header = HeaderOf(spec, content).SerializeAsString();
  INTRAWARP_ASSIGN_OR_RETURN(origin.payload, durable.Keep(spec.content_digest, bytes));
  return origin;
}

absl::Status TakeSlabs(ServerContext& context, DeviceContext& device, const NewVolume& volume,
                       const std::shared_ptr<Making>& making, steady_clock::time_point end) {
  if (device.device.kind() == DeviceKind::kCpu) return absl::OkStatus();
  auto taken = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> ready = taken->get_future();
  context.uploads.slabs().Take(static_cast<int64_t>(making->pixels.size()),
                               [making, taken](absl::StatusOr<std::shared_ptr<SlabPair>> pair) {
                                 const absl::Status status = pair.status();
                                 if (pair.ok()) making->pair = *std::move(pair);
                                 taken->set_value(status);
                               });
  while (ready.wait_for(kLookPeriod) != std::future_status::ready) {
    if (volume.cancelled()) return Cancelled();
    if (steady_clock::now() >= end) {
      return WithReason(absl::ResourceExhaustedError("slabs: no pinned memory was free in time"), v1::PINNED_MEMORY);
    }
  }
  return ready.get();
}

// The reason of a refusal is counted.
absl::StatusOr<std::future<absl::Status>> Submit(DeviceContext& device, const std::shared_ptr<Making>& making) {
  INTRAWARP_RETURN_IF_ERROR(CheckPlaced(device));
  const auto bytes = [making] { return StagedUpload(making->pixels.data(), std::move(making->pair)); };
  absl::StatusOr<std::future<absl::Status>> made = MakeObject(device, *making->object, bytes, {.owner = making.get()});
  if (made.ok()) return made;
  const absl::Status refused = WhyRefused(device, JobClass::kInteractive, made.status());
  device.metrics.admission.CountRejection(ReasonOf(refused));
  return refused;
}

absl::Status Make(ServerContext& context, DeviceContext& device, const NewVolume& volume,
                  const std::shared_ptr<Making>& making, steady_clock::time_point end) {
  INTRAWARP_RETURN_IF_ERROR(TakeSlabs(context, device, volume, making, end));
  INTRAWARP_ASSIGN_OR_RETURN(std::future<absl::Status> made,
                             Persist(volume, end, [&] { return Submit(device, making); }));
  const absl::Status status = Wait(std::move(made), volume, device, making.get());
  context.uploads.slabs().Retry();
  return Stopping(device.device, status);
}

PutResult ResultOf(const ObjectSpec& spec, const v1::UploadResponse& response) {
  return {response.volume().name(), spec.content_digest, spec.identity_digest};
}

}  // namespace

bool MayPass(const absl::Status& status) {
  if (absl::IsUnavailable(status) || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) return true;
  const v1::ErrorReason reason = ReasonOf(status);
  return IsWorthWaiting(status) || reason == v1::OWNER_QUOTA || reason == v1::STATE_FULL;
}

absl::StatusOr<PutResult> PutVolume(ServerContext& context, const NewVolume& volume,
                                    std::chrono::nanoseconds patience) {
  const steady_clock::time_point end = steady_clock::now() + patience;
  DeviceContext& device = PlaceObject(context);
  INTRAWARP_RETURN_IF_ERROR(CheckPlaced(device));
  const auto admit = [&](const Claim& claim) {
    return Persist(volume, end, [&] { return Admit(static_cast<ServerContext&>(context), claim); });
  };
  auto making = std::make_shared<Making>();
  INTRAWARP_ASSIGN_OR_RETURN(making->grant, admit(ClaimBefore(volume, device.index)));
  INTRAWARP_ASSIGN_OR_RETURN(io::HostVolume read, volume.read());
  const VolumeContent content = ContentOf(volume, read);
  INTRAWARP_ASSIGN_OR_RETURN(making->object,
                             NewVolumeObject(SpecOf(volume, read), content, context.limits, device.device));
  making->pixels = std::move(read.pixels);
  INTRAWARP_RETURN_IF_ERROR(making->object->Validate(making->pixels.data()));
  const ObjectSpec& spec = making->object->spec();
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<v1::UploadResponse> resident, making->object->FindResident(context));
  if (resident) return ResultOf(spec, *resident);
  INTRAWARP_ASSIGN_OR_RETURN(making->workspace, admit(WorkspaceClaim(spec, device.index)));
  INTRAWARP_ASSIGN_OR_RETURN(const ObjectOrigin origin, KeepBytes(context.durable, *making, content));
  INTRAWARP_RETURN_IF_ERROR(Make(context, device, volume, making, end));
  const auto reserve = [&making, &spec]() -> absl::StatusOr<Grant> { return TakeReservation(making->grant, spec); };
  INTRAWARP_ASSIGN_OR_RETURN(const v1::UploadResponse stored, StoreObject(context, *making->object, reserve, origin));
  return ResultOf(spec, stored);
}

}  // namespace intrawarp::server
