// SPDX-License-Identifier: Apache-2.0
// The outputs of a command that makes several files: each is tried, also where another one failed, and every failure is
// told by the name of its option. Thread-compatible.
#ifndef INTRAWARP_CLIENT_CLI_OUTPUTS_H_
#define INTRAWARP_CLIENT_CLI_OUTPUTS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command_context.h"
#include "engine/base/flags.h"

namespace intrawarp::cli {

class Outputs {
 public:
  // Both outlive the object.
  Outputs(const ParsedFlags& flags, CommandContext& context) : flags_(flags), context_(context) {}

  // Runs a step that these outputs need, unless none of them is asked for and has what it needed so far. A step that
  // fails fails them all. What the server says may be tried again is tried again (CommandContext::Retrying).
  void Make(const std::vector<std::string>& names, const std::function<absl::Status()>& step);

  // With several servers: a failure that another one may not have, for which nothing further was tried; otherwise OK.
  const absl::Status& server_fault() const { return server_fault_; }

  // OK, or the failure of one output; those of all others are told on stderr. `advice` says how they can be had.
  absl::Status Finish(const std::string& advice) const;

 private:
  bool IsWanted(const std::string& name) const { return flags_.Has(name) && failures_.count(name) == 0; }

  const ParsedFlags& flags_;
  CommandContext& context_;
  std::map<std::string, absl::Status> failures_;
  std::vector<std::string> order_;  // of the failures
  absl::Status server_fault_;
};

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_OUTPUTS_H_
