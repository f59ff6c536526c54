// SPDX-License-Identifier: Apache-2.0
// The commands of the command line, a function for each group, which its own file defines. Thread-safe.
#ifndef INTRAWARP_CLIENT_CLI_COMMANDS_COMMANDS_H_
#define INTRAWARP_CLIENT_CLI_COMMANDS_COMMANDS_H_

#include <vector>

#include "client/cli/command.h"

namespace intrawarp::cli {

std::vector<Command> VolumeCommands();
std::vector<Command> RegisterCommands();
std::vector<Command> NavigateCommands();
std::vector<Command> TransformCommands();
std::vector<Command> MatrixCommands();
std::vector<Command> OperationCommands();
std::vector<Command> ServerCommands();
std::vector<Command> StateCommands();
std::vector<Command> TokenCommands();
std::vector<Command> AuditCommands();
std::vector<Command> DicomCommands();
std::vector<Command> PacsCommands();
std::vector<Command> PhantomCommands();
std::vector<Command> SelfTestCommands();
std::vector<Command> BenchCommands();

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_COMMANDS_COMMANDS_H_
