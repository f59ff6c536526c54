// SPDX-License-Identifier: Apache-2.0
#include "server/object/make_object.h"

#include <memory>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/schedule/copy_lane.h"
#include "engine/schedule/scheduler.h"

namespace intrawarp::server {
namespace {

// Gives the bytes back before it returns.
std::optional<absl::Status> MakeFrom(NewObject& object, const BytesFn& bytes,
                                     const absl::StatusOr<const ExecContext*>& ctx) {
  std::optional<StagedUpload> upload = bytes();
  if (!upload) return std::nullopt;
  return ctx.ok() ? object.Make(**ctx, *upload) : ctx.status();
}

}  // namespace

absl::Status MakeObject(DeviceContext& device, NewObject& object, BytesFn bytes, MadeFn made, MakingJob making) {
  auto run = [&object, bytes = std::move(bytes),
              made = std::move(made)](const absl::StatusOr<const ExecContext*>& ctx) {
    const std::optional<absl::Status> status = MakeFrom(object, bytes, ctx);
    if (status) made(*status);
  };
  const std::optional<int64_t> workspace_bytes = object.JobWorkspaceBytes();
  if (!workspace_bytes) return device.copies.Submit(std::move(run));
  Job job;
  job.owner = making.owner;
  job.party = object.spec().owner;
  job.is_short = true;
  job.workspace_bytes = *workspace_bytes;
  job.checkpoint = std::move(making.checkpoint);
  job.run = std::move(run);
  return device.jobs.Submit(std::move(job));
}

absl::StatusOr<std::future<absl::Status>> MakeObject(DeviceContext& device, NewObject& object, BytesFn bytes,
                                                     MakingJob making) {
  // Outlives the waiter, who may go while set_value still runs.
  const auto promise = std::make_shared<std::promise<absl::Status>>();
  const auto made = [promise](const absl::Status& status) { promise->set_value(status); };
  INTRAWARP_RETURN_IF_ERROR(MakeObject(device, object, std::move(bytes), made, std::move(making)));
  return promise->get_future();
}

absl::StatusOr<v1::UploadResponse> StoreObject(ServerContext& context, NewObject& object,
                                               const std::function<absl::StatusOr<Grant>()>& reserve,
                                               const ObjectOrigin& origin) {
  INTRAWARP_ASSIGN_OR_RETURN(std::optional<v1::UploadResponse> resident, object.FindResident(context));
  if (resident) return *std::move(resident);
  INTRAWARP_ASSIGN_OR_RETURN(Grant reservation, reserve());
  return object.Store(context, std::move(reservation), origin);
}

}  // namespace intrawarp::server
