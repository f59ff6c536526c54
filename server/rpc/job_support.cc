// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/job_support.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/rpc/rpc_support.h"
#include "server/rpc/wire.h"

namespace intrawarp::server {
namespace {

// `status`, counted when it says that there is no room.
absl::Status Counted(ServerContext& context, const absl::Status& status) {
  context.metrics.CountRejection(ReasonOf(status));
  return status;
}

}  // namespace

absl::Status Stopping(const Device& device, const absl::Status& status) {
  if (!absl::IsUnavailable(status) || !device.health().ok()) return status;
  return WithReason(status, v1::SERVER_STOPPING);
}

absl::Status SubmitJob(ServerContext& context, Job job) {
  job.run = [run = std::move(job.run), &device = context.device](const absl::StatusOr<const ExecContext*>& ctx) {
    run(ctx.ok() ? ctx : absl::StatusOr<const ExecContext*>(Stopping(device, ctx.status())));
  };
  const int max = context.jobs.capacity(job.job_class);
  const absl::Status submitted = context.jobs.Submit(std::move(job));
  if (absl::IsDeadlineExceeded(submitted)) return Counted(context, WithReason(submitted, v1::DEADLINE_UNREACHABLE));
  if (!absl::IsResourceExhausted(submitted)) return Stopping(context.device, submitted);
  return Counted(context, WithReason(submitted, v1::QUEUE_FULL, InUse(max, max)));
}

absl::Status SubmitJob(ServerContext& context, JobStream& stream, Job job) {
  job.owner = &stream;
  stream.set_on_cancel([&jobs = context.jobs, &stream] { jobs.Cancel(&stream); });
  return SubmitJob(context, std::move(job));
}

absl::StatusOr<std::shared_ptr<PinnedBuffer>> LeasePinned(ServerContext& context, int64_t bytes) {
  const int64_t capacity = context.limits.pinned_capacity_bytes;
  if (bytes > capacity) return Counted(context, ExceedsCapacity("pinned_memory", bytes, capacity));
  absl::StatusOr<std::shared_ptr<PinnedBuffer>> lease = context.pinned.Lease(bytes);
  if (lease.ok() || !absl::IsResourceExhausted(lease.status())) return lease;
  const auto in_use = static_cast<int64_t>(context.pinned.leased_bytes());
  return Counted(context, WithReason(lease.status(), v1::PINNED_MEMORY, InUse(bytes, in_use, capacity)));
}

absl::StatusOr<ResidentReservation> ReserveResident(ServerContext& context, int64_t bytes) {
  absl::StatusOr<ResidentReservation> reservation = context.budget.Reserve(bytes);
  if (reservation.ok()) return reservation;
  return Counted(context, reservation.status());
}

absl::Status StoreTransform(ServerContext& context, std::shared_ptr<const StoredTransform> transform) {
  const absl::Status stored = context.transforms.Insert(std::move(transform));
  if (!absl::IsResourceExhausted(stored)) return stored;
  const int64_t max = context.transforms.capacity();
  return Counted(context, WithReason(stored, v1::TOO_MANY_TRANSFORMS, InUse(max, max)));
}

absl::StatusOr<std::shared_ptr<ResidentReservation>> ReserveResult(ServerContext& context, int64_t bytes) {
  if (bytes == 0) return nullptr;
  INTRAWARP_ASSIGN_OR_RETURN(ResidentReservation reservation, ReserveResident(context, bytes));
  return std::make_shared<ResidentReservation>(std::move(reservation));
}

absl::Status ValidateOutputSize(const ServerContext& context, const Geometry& grid) {
  const int64_t most = context.limits.max_volume_bytes / static_cast<int64_t>(sizeof(float));
  if (grid.voxels() <= most) return absl::OkStatus();
  return InvalidField("size", absl::StrCat(SizeString(grid), " voxels, ", most, " are allowed"));
}

}  // namespace intrawarp::server
