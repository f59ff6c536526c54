// SPDX-License-Identifier: Apache-2.0
// Stages between the wire and the engine. Pure functions.
#ifndef INTRAWARP_SERVER_REGISTRATION_STAGE_MESSAGES_H_
#define INTRAWARP_SERVER_REGISTRATION_STAGE_MESSAGES_H_

#include "absl/status/statusor.h"
#include "engine/registration/stage/stage.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::server {

// INVALID_ARGUMENT or UNIMPLEMENTED, naming a field relative to the stage ("ffd.optimizer"), for a stage without a
// method and for enum values that this version does not know. Ranges are left to ValidateRegistration.
absl::StatusOr<StageOptions> StageFromProto(const v1::Stage& from);

v1::Metric MetricToProto(MetricKind metric);

// `from` is resolved: every field of the message is set.
v1::Stage StageToProto(const StageOptions& from);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_STAGE_MESSAGES_H_
