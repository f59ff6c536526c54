// SPDX-License-Identifier: Apache-2.0
// From the options of register and navigate to resources on the server. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_REGISTRATION_INPUTS_H_
#define INTRAWARP_CLIENT_CLI_REGISTRATION_INPUTS_H_

#include "absl/status/statusor.h"
#include "client/cli/command_context.h"
#include "client/cli/registration_flags.h"

namespace intrawarp::cli {

// The options with masks (uploaded when they are paths) and start (read when it is a matrix file).
absl::StatusOr<v1::RegistrationOptions> WithInputs(const RegistrationFlags& flags, Temporaries& temporaries);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_REGISTRATION_INPUTS_H_
