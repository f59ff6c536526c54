// SPDX-License-Identifier: Apache-2.0
// Completion of the command line by a shell, made of the table of commands. Thread-safe function.
#ifndef INTRAWARP_CLIENT_CLI_COMPLETION_H_
#define INTRAWARP_CLIENT_CLI_COMPLETION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/command.h"

namespace intrawarp::cli {

// The shells that CompletionScript knows.
std::vector<std::string> CompletionShells();

// A script for `shell` to source: it completes commands, options, and the values of an option that has a few. Files are
// left to the shell. INVALID_ARGUMENT for another shell.
absl::StatusOr<std::string> CompletionScript(absl::string_view shell, const std::vector<Command>& commands);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_COMPLETION_H_
