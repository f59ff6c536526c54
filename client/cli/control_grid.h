// SPDX-License-Identifier: Apache-2.0
// The control grid of a stored transform, into a file.
#ifndef INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_
#define INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_

#include <string>

#include "absl/status/status.h"
#include "client/cli/session.h"

namespace intrawarp::cli {

// Writes "transforms/ID" to a .tfm file. FAILED_PRECONDITION for a transform without a control grid.
absl::Status WriteControlGrid(const std::string& transform, const std::string& path, Session& session);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_
