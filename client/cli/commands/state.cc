// SPDX-License-Identifier: Apache-2.0
// intrawarp state check
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "engine/base/status_macros.h"
#include "server/state/state_store.h"

namespace intrawarp::cli {
namespace {

absl::Status Check(const ParsedFlags& flags, CommandContext&) {
  INTRAWARP_ASSIGN_OR_RETURN(const state::StateReport report,
                             state::CheckState(state::PosixFiles(), flags.Positional(0)));
  for (const std::string& error : report.errors) std::printf("damaged: %s\n", error.c_str());
  std::printf("%lld objects, %lld sessions, %lld bytes, %lld files that the next start moves to orphaned/ or removes\n",
              static_cast<long long>(report.objects), static_cast<long long>(report.sessions),
              static_cast<long long>(report.payload_bytes), static_cast<long long>(report.leftover_files));
  if (report.orphans.files > 0) {
    std::printf("%lld payloads of %lld bytes in orphaned/, which no object needs\n",
                static_cast<long long>(report.orphans.files), static_cast<long long>(report.orphans.bytes));
  }
  if (report.errors.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(report.errors.size(), " errors"));
}

}  // namespace

std::vector<Command> StateCommands() {
  return {{.name = "state check",
           .summary = "verifies a server's --state_dir while no server uses it",
           .syntax = {.flags = {}, .positionals = {"DIR"}},
           .needs_server = false,
           .run = Check}};
}

}  // namespace intrawarp::cli
