// SPDX-License-Identifier: Apache-2.0
// What the services that compute have in common: submitting, leasing, storing, with the metrics of what was refused.
#ifndef INTRAWARP_SERVER_JOB_JOB_SUPPORT_H_
#define INTRAWARP_SERVER_JOB_JOB_SUPPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/device/device.h"
#include "engine/device/pinned_pool.h"
#include "engine/geometry/geometry.h"
#include "engine/schedule/scheduler.h"
#include "server/context/server_context.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

// `status` with the reason SERVER_STOPPING where it is UNAVAILABLE and the device is sound: the scheduler or the copy
// lane stops. Otherwise as it is.
absl::Status Stopping(const Device& device, const absl::Status& status);

// Why JobQueue::Submit or CopyLane::Submit took nothing, as clients are told: QUEUE_FULL, with the places of the class,
// or Stopping. For jobs without a deadline.
absl::Status WhyRefused(const DeviceContext& context, JobClass job_class, const absl::Status& status);

// RESOURCE_EXHAUSTED QUEUE_FULL when the queue of its class is full, DEADLINE_EXCEEDED DEADLINE_UNREACHABLE when its
// deadline cannot be met, both with the predicted time to come back; UNAVAILABLE of CheckPlaced. Then the job is
// dropped without being run. A job that is judged only later, or loses its time in the queue, is told
// DEADLINE_UNREACHABLE by its `run`.
absl::Status SubmitJob(DeviceContext& context, Job job);
// A place for a transform that is made, and room for `bytes` of device memory that it will hold.
using ReserveFn = std::function<absl::StatusOr<std::shared_ptr<Grant>>(int64_t bytes)>;

// Ledger::Admit, with the refusal counted in the metrics.
absl::StatusOr<Grant> Admit(ServerContext& context, const Claim& claim, Share share = Share::kCommon);
// The same for a claim on the memory of this device.
absl::StatusOr<Grant> Admit(DeviceContext& context, Claim claim, Share share = Share::kCommon);

// What a lease of `bytes` takes of Resource::kPinned.
int64_t PinnedClaim(int64_t bytes);
// A buffer of `bytes`, for which `grant` holds PinnedClaim(bytes); that part of it is given back after the buffer.
absl::StatusOr<std::shared_ptr<PinnedBuffer>> LeasePinned(ServerContext& context, Grant& grant, int64_t bytes);
// The same with a claim of its own, for `owner`.
absl::StatusOr<std::shared_ptr<PinnedBuffer>> LeasePinned(ServerContext& context, int64_t bytes,
                                                          const std::string& owner, Share share = Share::kCommon);

// INVALID_ARGUMENT "size: ..." for a grid larger than that of the largest volume (as float32).
absl::Status ValidateOutputSize(const ServerLimits& limits, const Geometry& grid);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_JOB_JOB_SUPPORT_H_
