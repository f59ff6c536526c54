// SPDX-License-Identifier: Apache-2.0
// On which of several servers a command runs. Thread-safe functions, except that a CommandContext is one thread's.
#ifndef INTRAWARP_CLIENT_CLI_PLACEMENT_H_
#define INTRAWARP_CLIENT_CLI_PLACEMENT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/command_context.h"
#include "client/cpp/routed_client.h"
#include "engine/base/flags.h"

namespace intrawarp::cli {

// Where Command.placed_by leads. A resource is asked for on every server that is well: NOT_FOUND when none has it,
// UNAVAILABLE when none answers. The errors of reading a file. With one server nothing is asked or read.
absl::StatusOr<client::Route> RouteOf(const std::vector<PlacedBy>& placed_by, const ParsedFlags& flags,
                                      CommandContext& context);

// Runs the command as its reach says. With several servers an error names the one that it comes from.
absl::Status RunOnServers(const Command& command, const ParsedFlags& flags, CommandContext& context);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_PLACEMENT_H_
