// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/admit_call.h"

namespace intrawarp::server {

absl::StatusOr<StreamCount> AdmitCall(ServerContext& context) {
  if (context.watchdog.state() == WatchdogState::kHung) {
    context.metrics.CountRejection(v1::DEVICE_HUNG);
    return WithReason(absl::UnavailableError("the device does not come back"), v1::DEVICE_HUNG);
  }
  absl::StatusOr<StreamCount> count = StreamCount::Acquire(context.streams, context.limits.max_streams);
  if (!count.ok()) context.metrics.CountRejection(v1::TOO_MANY_STREAMS);
  return count;
}

}  // namespace intrawarp::server
