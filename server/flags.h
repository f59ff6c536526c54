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
  // The text after '=' in the help; nullptr: the flag is a switch.
  const char* value;
  // The value that holds without the flag, as the pages show it.
  const char* fallback;
  const char* help;
  FlagMember member;
  // The value in a configuration template where the fallback is not one; nullptr: the fallback.
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

// The list in the form that ParseFlags takes.
CommandSyntax ServerSyntax();

// The list as the help of a terminal, and as a configuration file in which every line is a comment.
std::string CommandLineHelp();
std::string ConfigurationTemplate();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_FLAGS_H_
