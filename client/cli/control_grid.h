// SPDX-License-Identifier: Apache-2.0
// A stored transform, into a file in ITK's form.
#ifndef INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_
#define INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command_context.h"
#include "io/format/itk_transform.h"

namespace intrawarp::cli {

// Writes the control grid of "transforms/ID" with its affine part to a file of ItkSuffixes(). FAILED_PRECONDITION for a
// transform without a control grid.
absl::Status WriteControlGrid(const std::string& transform, const std::string& path, CommandContext& context);

// Writes "transforms/ID" to such a file: an affine map or a control grid as it is, another one as its displacement
// field.
absl::Status WriteItkFile(const std::string& transform, const std::string& path, CommandContext& context);

// "transforms/ID" as T(x) = A(x + u(x)): an affine map or a control grid as it is; of a velocity or a displacement, u
// on the grid of the fixed image, with the affine part taken out of it, so that T is A outside of the grid.
absl::StatusOr<io::ItkTransform> FetchFactored(const std::string& transform, CommandContext& context);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_CONTROL_GRID_H_
