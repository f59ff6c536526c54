// SPDX-License-Identifier: Apache-2.0
// Every flag of intrawarpd, in one list. The command line, the configuration file and the help are read and printed
// from it; so are the manual page and docs/use/flags.md, which the tests compare with it. Thread-safe functions.
#ifndef INTRAWARP_SERVER_FLAGS_H_
#define INTRAWARP_SERVER_FLAGS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/flags.h"
#include "server/options.h"

namespace intrawarp::server {

// The member of the options that a flag sets.
struct FlagMember {
  // INVALID_ARGUMENT, without the flag's name, for a value that the member does not take.
  std::function<absl::Status(absl::string_view value, CommandLine& to)> set;
  // Whether it differs from what holds without the flag. Empty: of flags that only a command line can have.
  std::function<bool(const ServerOptions& options)> is_changed;
};

struct Flag {
  const char* name;
  // What stands after '=' in the help; nullptr: a switch.
  const char* value;
  // What holds without the flag, as the pages show it.
  const char* fallback;
  const char* help;
  FlagMember member;
  // What a configuration file shows where the fallback is not a value; nullptr: the fallback.
  const char* example = nullptr;
  // Whether only a command line can have it.
  bool is_command = false;
  // Whether it limits one identity, for which a server has to know its callers.
  bool needs_identities = false;
};

struct FlagSection {
  const char* title;
  std::vector<Flag> flags;
};

const std::vector<FlagSection>& FlagSections();

// Null when there is none.
const Flag* FindFlag(absl::string_view name);

// As ParseFlags takes it.
CommandSyntax ServerSyntax();

// The list as the help of a terminal, as the tables of docs/use/flags.md, and as a configuration file in which every
// line is a comment.
std::string CommandLineHelp();
std::string ConfigurationTemplate();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_FLAGS_H_
