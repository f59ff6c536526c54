// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/put_volume.h"

#include <algorithm>
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
#include "server/bulk/upload_kind.h"
#include "server/bulk/upload_slabs.h"
#include "server/bulk/upload_store.h"
#include "server/device/device_set.h"
#include "server/job/job_support.h"
#include "server/monitor/watchdog.h"
#include "server/placement/replication.h"
#include "server/store/durable_objects.h"
#include "server/volume/volume_kind.h"
#include "wire/convert.h"

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
  std::unique_ptr<UploadKind> kind;
  std::shared_ptr<SlabPair> pair;
  std::promise<absl::Status> made;
};

// Waits for a promise of the device's threads. A job that waits or is held is cancelled; one that computes is waited
// for, unless its device hangs.
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

v1::UploadHeader HeaderOf(const NewVolume& volume, const io::HostVolume& read) {
  v1::UploadHeader header;
  header.set_id(volume.id);
  header.set_upload_id(volume.is_provisional ? kProvisionalUpload : volume.id);
  header.set_total_bytes(static_cast<int64_t>(read.pixels.size()));
  header.set_sha256(io::Sha256Of(read.pixels.data(), read.pixels.size()));
  v1::VolumeUpload& content = *header.mutable_volume();
  *content.mutable_geometry() = GeometryToProto(read.geometry);
  *content.mutable_provenance() = volume.provenance;
  content.set_pixel_type(PixelTypeToProto(read.pixel_type));
  content.mutable_rescale()->set_slope(read.rescale_slope);
  content.mutable_rescale()->set_intercept(read.rescale_intercept);
  return header;
}

// Read voxels are at most float32.
Claim ClaimFor(const NewVolume& volume, int device) {
  Claim claim;
  claim.device = device;
  claim.resident_bytes = ChargedBytes(PreparedImage::Bytes(volume.geometry));
  claim.uploading_bytes = std::max(claim.resident_bytes, volume.geometry.voxels() * int64_t{sizeof(float)});
  claim.uploads = 1;
  claim.owner = volume.owner;
  return claim;
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

absl::Status Make(ServerContext& context, DeviceContext& device, const NewVolume& volume,
                  const std::shared_ptr<Making>& making, steady_clock::time_point end) {
  INTRAWARP_RETURN_IF_ERROR(TakeSlabs(context, device, volume, making, end));
  const auto submit = [&]() -> absl::Status {
    Job job;
    job.owner = making.get();
    job.party = volume.owner;
    job.is_short = true;
    job.workspace_bytes = making->kind->spec().workspace_bytes;
    job.run = [making](const absl::StatusOr<const ExecContext*>& ctx) {
      StagedUpload upload(making->pixels.data(), std::move(making->pair));
      making->made.set_value(ctx.ok() ? making->kind->Make(**ctx, upload) : ctx.status());
    };
    return SubmitJob(device, std::move(job));
  };
  std::future<absl::Status> made = making->made.get_future();
  INTRAWARP_RETURN_IF_ERROR(Persist(volume, end, submit));
  const absl::Status status = Wait(std::move(made), volume, device, making.get());
  context.uploads.slabs().Retry();
  return status;
}

absl::StatusOr<PutResult> Store(ServerContext& context, Making& making, const ObjectOrigin& origin) {
  UploadKind& kind = *making.kind;
  const UploadSpec& spec = kind.spec();
  INTRAWARP_ASSIGN_OR_RETURN(std::optional<v1::UploadResponse> response, kind.FindResident(context));
  if (!response) {
    Grant reservation = making.grant.Split({.resident_bytes = spec.resident_bytes});
    INTRAWARP_ASSIGN_OR_RETURN(response, kind.Store(context, std::move(reservation), origin));
  }
  return PutResult{response->volume().name(), spec.content_digest, spec.identity_digest};
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
  auto making = std::make_shared<Making>();
  INTRAWARP_ASSIGN_OR_RETURN(making->grant, Persist(volume, end, [&] {
                               return Admit(static_cast<ServerContext&>(context), ClaimFor(volume, device.index));
                             }));
  INTRAWARP_ASSIGN_OR_RETURN(io::HostVolume read, volume.read());
  const v1::UploadHeader header = HeaderOf(volume, read);
  making->pixels = std::move(read.pixels);
  INTRAWARP_ASSIGN_OR_RETURN(making->kind, ParseVolumeUpload(header, context));
  making->kind->set_owner(volume.owner);
  INTRAWARP_RETURN_IF_ERROR(making->kind->Validate(making->pixels.data()));
  const UploadSpec& spec = making->kind->spec();
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<v1::UploadResponse> resident, making->kind->FindResident(context));
  if (resident) return PutResult{resident->volume().name(), spec.content_digest, spec.identity_digest};
  Claim workspace;
  workspace.device = device.index;
  workspace.workspace_bytes = spec.workspace_bytes;
  workspace.owner = volume.owner;
  workspace.is_short = true;
  INTRAWARP_ASSIGN_OR_RETURN(
      making->workspace, Persist(volume, end, [&] { return Admit(static_cast<ServerContext&>(context), workspace); }));
  ObjectOrigin origin;
  if (context.durable.enabled()) {
    origin.header = header.SerializeAsString();
    const absl::Span<const char> bytes(reinterpret_cast<const char*>(making->pixels.data()), making->pixels.size());
    INTRAWARP_ASSIGN_OR_RETURN(origin.payload, context.durable.Keep(spec.content_digest, bytes));
  }
  INTRAWARP_RETURN_IF_ERROR(Make(context, device, volume, making, end));
  return Store(context, *making, origin);
}

}  // namespace intrawarp::server
