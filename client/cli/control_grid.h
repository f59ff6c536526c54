// SPDX-License-Identifier: Apache-2.0
// A stored transform, into a file in ITK's form.
#ifndef INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_
#define INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_

#include <string>

#include "absl/status/status.h"
#include "client/cli/session.h"

namespace intrawarp::cli {

// Writes the control grid of "transforms/ID" with its affine part to a file of ItkSuffixes(). FAILED_PRECONDITION for a
// transform without a control grid.
absl::Status WriteControlGrid(const std::string& transform, const std::string& path, Session& session);

// Writes "transforms/ID" to such a file: an affine map or a control grid as it is, another one as its displacement
// field.
absl::Status WriteItkFile(const std::string& transform, const std::string& path, Session& session);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_
