// SPDX-License-Identifier: Apache-2.0
#include "server/job/job_support.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/unreachable.h"
#include "server/base/names.h"
#include "server/base/wire.h"
#include "server/context/limits.h"
#include "server/device/device_set.h"
#include "server/job/admission_metrics.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

// `status`, counted when it says that there is no room.
absl::Status Counted(ServerContext& context, const absl::Status& status) {
  context.metrics.admission.CountRejection(ReasonOf(status));
  return status;
}

absl::Status Unreachable(ServerContext& context, const absl::Status& status) {
  return Counted(context, WithReason(status, v1::DEADLINE_UNREACHABLE));
}

// Why a job that was admitted has no context.
absl::Status WhyNotRun(DeviceContext& context, const absl::Status& status) {
  return IsUnreachable(status) ? Unreachable(context, status) : Stopping(context.device, status);
}

}  // namespace

absl::Status Stopping(const Device& device, const absl::Status& status) {
  if (!absl::IsUnavailable(status) || !device.health().ok()) return status;
  return WithReason(status, v1::SERVER_STOPPING);
}

absl::Status WhyRefused(const DeviceContext& context, JobClass job_class, const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return Stopping(context.device, status);
  const int max = context.jobs.capacity(job_class);
  return WithReason(status, v1::QUEUE_FULL, InUse(max, max));
}

absl::Status SubmitJob(DeviceContext& context, Job job) {
  INTRAWARP_RETURN_IF_ERROR(CheckPlaced(context));
  job.run = [run = std::move(job.run), &context](const absl::StatusOr<const ExecContext*>& ctx) {
    run(ctx.ok() ? ctx : absl::StatusOr<const ExecContext*>(WhyNotRun(context, ctx.status())));
  };
  const JobClass job_class = job.job_class;
  const absl::Status submitted = context.jobs.Submit(std::move(job));
  if (IsUnreachable(submitted)) return Unreachable(context, submitted);
  const absl::Status refused = WhyRefused(context, job_class, submitted);
  return absl::IsResourceExhausted(submitted) ? Counted(context, refused) : refused;
}

absl::StatusOr<Grant> Admit(ServerContext& context, const Claim& claim, Share share) {
  absl::StatusOr<Grant> grant = context.ledger.Admit(claim, share);
  if (grant.ok()) return grant;
  return Counted(context, grant.status());
}

absl::StatusOr<Grant> Admit(DeviceContext& context, Claim claim, Share share) {
  claim.device = context.index;
  return Admit(static_cast<ServerContext&>(context), claim, share);
}

int64_t PinnedClaim(int64_t bytes) {
  return bytes < 0 ? bytes : static_cast<int64_t>(PinnedPool::RoundedBytes(static_cast<size_t>(bytes)));
}

absl::StatusOr<std::shared_ptr<PinnedBuffer>> LeasePinned(ServerContext& context, Grant& grant, int64_t bytes) {
  auto part = std::make_shared<Grant>(grant.Split({.pinned_bytes = PinnedClaim(bytes)}));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<PinnedBuffer> lease, context.pinned.Lease(static_cast<size_t>(bytes)));
  PinnedBuffer* const buffer = lease.get();
  return std::shared_ptr<PinnedBuffer>(buffer, [lease = std::move(lease), part = std::move(part)](auto*) mutable {
    lease.reset();
    part.reset();
  });
}

absl::StatusOr<std::shared_ptr<PinnedBuffer>> LeasePinned(ServerContext& context, int64_t bytes,
                                                          const std::string& owner, Share share) {
  Claim claim{{.pinned_bytes = PinnedClaim(bytes)}};
  claim.owner = owner;
  INTRAWARP_ASSIGN_OR_RETURN(Grant grant, Admit(context, claim, share));
  return LeasePinned(context, grant, bytes);
}

absl::Status ValidateOutputSize(const ServerLimits& limits, const Geometry& grid) {
  const int64_t most = limits.max_volume_bytes / static_cast<int64_t>(sizeof(float));
  if (grid.voxels() <= most) return absl::OkStatus();
  return InvalidField("size", absl::StrCat(SizeString(grid), " voxels, ", most, " are allowed"));
}

}  // namespace intrawarp::server
