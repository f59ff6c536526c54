// SPDX-License-Identifier: Apache-2.0
// What a command of the command line is. Thread-compatible plain values.
#ifndef INTRAWARP_CLIENT_CLI_COMMAND_H_
#define INTRAWARP_CLIENT_CLI_COMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command_context.h"
#include "engine/base/flags.h"

namespace intrawarp::cli {

// What a command does where --server names several servers.
enum class Reach {
  // Is refused.
  kOne,
  // Runs on each, one after the other, under a line that names it.
  kEach,
  // Runs on the server that Command.placed_by chooses, and again on the next one in its order when that one fails.
  kPlaced,
  // Chooses by itself.
  kOwn,
};

// A flag (or "", the first positional) that names a resource or a file.
struct PlacedBy {
  std::string flag;
  // A file is a volume, whose voxels count; otherwise its bytes do.
  bool is_volume = true;
};

struct Command {
  // One or two words: "volume put".
  std::string name;
  std::string summary;
  CommandSyntax syntax;
  // Whether --server must be given.
  bool needs_server = true;
  Reach reach = Reach::kOne;
  // The server is the one where the first resource among these lies; where all are files, the first file's digest says
  // it. A flag that is absent is passed over.
  std::vector<PlacedBy> placed_by = {};
  // Prints results to stdout. A status made by UsageError means a wrong command line.
  std::function<absl::Status(const ParsedFlags& flags, CommandContext& context)> run;
  // What --help prints after the options.
  std::string notes = "";
};

// --json, of commands that list or show.
FlagSpec JsonFlagSpec();

// Marks an error as a wrong command line (exit status 2). OK stays OK.
absl::Status UsageError(absl::Status status);
bool IsUsageError(const absl::Status& status);

// Marks an error as a result that --require_ok does not take (exit status 3). OK stays OK.
absl::Status NotOkError(absl::Status status);
bool IsNotOkError(const absl::Status& status);

// "CODE: cause" on one line, whatever a server or a file name put into the message.
std::string ErrorText(const absl::Status& status);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_COMMAND_H_
