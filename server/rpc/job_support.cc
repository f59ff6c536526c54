// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/job_support.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/rpc/rpc_support.h"
#include "server/rpc/wire.h"

namespace intrawarp::server {
namespace {

// `status`, counted and given a reason when it says that there is too much of something.
absl::Status Counted(ServerContext& context, absl::Status status, Rejection rejection, absl::string_view reason) {
  if (!absl::IsResourceExhausted(status)) return status;
  context.metrics.CountRejection(rejection);
  return WithReason(std::move(status), reason);
}

}  // namespace

absl::Status SubmitJob(ServerContext& context, Job job) {
  return Counted(context, context.jobs.Submit(std::move(job)), Rejection::kQueueFull, "QUEUE_FULL");
}

absl::StatusOr<std::shared_ptr<PinnedBuffer>> LeasePinned(ServerContext& context, int64_t bytes) {
  absl::StatusOr<std::shared_ptr<PinnedBuffer>> lease = context.pinned.Lease(bytes);
  if (lease.ok()) return lease;
  return Counted(context, lease.status(), Rejection::kPinnedMemory, "PINNED_MEMORY");
}

absl::StatusOr<ResidentReservation> ReserveResident(ServerContext& context, int64_t bytes) {
  absl::StatusOr<ResidentReservation> reservation = context.budget.Reserve(bytes);
  if (reservation.ok()) return reservation;
  return Counted(context, reservation.status(), Rejection::kResidentMemory, "RESIDENT_MEMORY");
}

absl::Status StoreTransform(ServerContext& context, std::shared_ptr<const StoredTransform> transform) {
  return Counted(context, context.transforms.Insert(std::move(transform)), Rejection::kTooManyTransforms,
                 "TOO_MANY_TRANSFORMS");
}

absl::StatusOr<std::shared_ptr<ResidentReservation>> ReserveResult(ServerContext& context, int64_t bytes) {
  if (bytes == 0) return nullptr;
  INTRAWARP_ASSIGN_OR_RETURN(ResidentReservation reservation, ReserveResident(context, bytes));
  return std::make_shared<ResidentReservation>(std::move(reservation));
}

absl::Status StoreResult(ServerContext& context, const std::string& id, const RegistrationOutcome& outcome,
                         const v1::Report& report) {
  return StoreTransform(
      context, std::make_shared<StoredTransform>(StoredTransform{id, context.seams.system_now(), report,
                                                                 outcome.reservation, outcome.result.transform}));
}

absl::Status ValidateOutputSize(const ServerContext& context, const Geometry& grid) {
  const int64_t most = context.limits.max_volume_bytes / static_cast<int64_t>(sizeof(float));
  if (grid.voxels() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("size: ", SizeString(grid), " voxels, ", most, " are allowed"));
}

}  // namespace intrawarp::server
