// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/admit_call.h"

#include "server/device/device_set.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_support.h"
#include "server/status/errors.h"

namespace intrawarp::server {

absl::StatusOr<Grant> AdmitCall(ServerContext& context, const std::string& owner, Share share) {
  if (context.devices.AllHang()) {
    context.metrics.admission.CountRejection(v1::DEVICE_HUNG);
    return WithReason(absl::UnavailableError("the device does not come back"), v1::DEVICE_HUNG);
  }
  Claim claim{{.streams = 1}};
  claim.owner = owner;
  return Admit(context, claim, share);
}

}  // namespace intrawarp::server
