// SPDX-License-Identifier: Apache-2.0
// What a command of the command line is, and the families of them. Thread-compatible plain values.
#ifndef INTRAWARP_CLIENT_CLI_COMMAND_H_
#define INTRAWARP_CLIENT_CLI_COMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "client/cli/session.h"

namespace intrawarp::cli {

struct Command {
  // One or two words: "volume put".
  std::string name;
  std::string summary;
  CommandSyntax syntax;
  // Whether --server must be given.
  bool needs_server = true;
  // Prints results to stdout. A status made by UsageError means a wrong command line.
  std::function<absl::Status(const ParsedFlags& flags, Session& session)> run;
  // What --help prints after the options.
  std::string notes = "";
};

std::vector<Command> VolumeCommands();
std::vector<Command> RegisterCommands();
std::vector<Command> NavigateCommands();
std::vector<Command> TransformCommands();
std::vector<Command> MatrixCommands();
std::vector<Command> ServerCommands();
std::vector<Command> StateCommands();
std::vector<Command> TokenCommands();
std::vector<Command> AuditCommands();
std::vector<Command> DicomCommands();
std::vector<Command> PhantomCommands();
std::vector<Command> SelfTestCommands();
std::vector<Command> BenchCommands();

// Marks an error as a wrong command line (exit status 2). OK stays OK.
absl::Status UsageError(absl::Status status);
bool IsUsageError(const absl::Status& status);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_COMMAND_H_
