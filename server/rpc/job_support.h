// SPDX-License-Identifier: Apache-2.0
// What the services that compute have in common: submitting, leasing, storing, with the metrics of what was refused.
#ifndef INTRAWARP_SERVER_RPC_JOB_SUPPORT_H_
#define INTRAWARP_SERVER_RPC_JOB_SUPPORT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/device/device.h"
#include "engine/geometry/geometry.h"
#include "engine/schedule/scheduler.h"
#include "server/rpc/job_stream.h"
#include "server/server_context.h"
#include "server/store/transform_store.h"

namespace intrawarp::server {

// `status` with the reason SERVER_STOPPING where it is UNAVAILABLE and the device is sound: the scheduler or the copy
// lane stops. Otherwise as it is.
absl::Status Stopping(const Device& device, const absl::Status& status);

// RESOURCE_EXHAUSTED QUEUE_FULL when the queue of its class is full, DEADLINE_EXCEEDED DEADLINE_UNREACHABLE when its
// deadline cannot be met, both with the predicted time to come back; then the job is dropped without being run.
absl::Status SubmitJob(ServerContext& context, Job job);
// The same for a job of a stream's, which ends with the call, also while it waits or is held.
absl::Status SubmitJob(ServerContext& context, JobStream& stream, Job job);

absl::StatusOr<std::shared_ptr<PinnedBuffer>> LeasePinned(ServerContext& context, int64_t bytes);

absl::StatusOr<ResidentReservation> ReserveResident(ServerContext& context, int64_t bytes);

// ALREADY_EXISTS, or RESOURCE_EXHAUSTED beyond the number allowed.
absl::Status StoreTransform(ServerContext& context, std::shared_ptr<const StoredTransform> transform);
// Room for the transform that a registration will make, of `bytes` at most; null for 0.
absl::StatusOr<std::shared_ptr<ResidentReservation>> ReserveResult(ServerContext& context, int64_t bytes);

// INVALID_ARGUMENT "size: ..." for a grid larger than that of the largest volume (as float32).
absl::Status ValidateOutputSize(const ServerContext& context, const Geometry& grid);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_JOB_SUPPORT_H_
