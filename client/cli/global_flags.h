// SPDX-License-Identifier: Apache-2.0
// The options that say which server the command line talks to, and how. Each may stand before the command or after it,
// in the environment (--tls_ca as INTRAWARP_TLS_CA), or in a configuration file; the first of these that names an
// option counts, and an empty variable means "none". Thread-compatible plain values.
//
// The file has a line `name = value` for each option; # begins a comment. INTRAWARP_CONFIG names it; unset, it is
// $XDG_CONFIG_HOME/intrawarp/config or ~/.config/intrawarp/config, which need not exist; empty, no file is read.
#ifndef INTRAWARP_CLIENT_CLI_GLOBAL_FLAGS_H_
#define INTRAWARP_CLIENT_CLI_GLOBAL_FLAGS_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/flags.h"

namespace intrawarp::cli {

// The default address of intrawarpd.
inline constexpr char kDefaultServer[] = "127.0.0.1:50051";

CommandSyntax GlobalSyntax();

// The command's options and the global ones whose names it does not use itself.
CommandSyntax WithGlobalFlags(CommandSyntax syntax);

// The variable of an option: "INTRAWARP_TLS_CA".
std::string VariableOf(const std::string& flag);

// getenv, or a test's.
using Environment = std::function<const char*(const char* name)>;

class GlobalFlags {
 public:
  // `before` and `after` are the options before and after the command. INVALID_ARGUMENT, which names the place, for an
  // option given twice on the command line, a file with a line that is not one, an unknown option, or a server that
  // is not HOST:PORT.
  static absl::StatusOr<GlobalFlags> Resolve(const ParsedFlags& before, const ParsedFlags& after,
                                             const Environment& environment);

  // "" for an option that nothing names; --server has kDefaultServer then.
  std::string String(const std::string& name) const;

 private:
  std::map<std::string, std::string> values_;
};

// OK for a target that gRPC can take: a name or an address with its port, or a name with a scheme ("unix:PATH"), and
// for any list of servers (client/cpp/server_names.h judges it). INVALID_ARGUMENT says what is missing.
absl::Status CheckServer(const std::string& target);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_GLOBAL_FLAGS_H_
