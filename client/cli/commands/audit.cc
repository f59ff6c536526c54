// SPDX-License-Identifier: Apache-2.0
// intrawarp audit verify
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "engine/base/status_macros.h"
#include "server/audit/audit_verify.h"

namespace intrawarp::cli {
namespace {

// The position that a flag gives; UsageError for another value.
absl::StatusOr<audit::Position> PositionOf(const ParsedFlags& flags, const std::string& name) {
  absl::StatusOr<audit::Position> position = audit::ParsePosition(flags.String(name));
  if (!position.ok()) return UsageError(absl::InvalidArgumentError(absl::StrCat("--", name, ": must be \"SEQ HASH\"")));
  return position;
}

absl::Status Verify(const ParsedFlags& flags, CommandContext&) {
  std::string key;
  if (flags.Has("key")) {
    INTRAWARP_ASSIGN_OR_RETURN(key, audit::ReadKey(state::PosixFiles(), flags.String("key")));
  }
  audit::AuditExpectations expected;
  if (flags.Has("after")) {
    INTRAWARP_ASSIGN_OR_RETURN(expected.after, PositionOf(flags, "after"));
  }
  if (flags.Has("head")) {
    INTRAWARP_ASSIGN_OR_RETURN(expected.head, PositionOf(flags, "head"));
  }
  INTRAWARP_ASSIGN_OR_RETURN(
      const audit::AuditFindings found,
      audit::VerifyAudit(state::PosixFiles(), flags.Positional(0), audit::ChainHash(key), expected));
  for (const std::string& error : found.errors) std::printf("damaged: %s\n", error.c_str());
  if (found.torn_bytes > 0) {
    std::printf("%lld bytes of a record that was never acknowledged\n", static_cast<long long>(found.torn_bytes));
  }
  if (!found.unfinished.empty()) {
    std::printf("calls that began to send and have no record of their end began with record%s %s\n",
                found.unfinished.size() == 1 ? "" : "s", absl::StrJoin(found.unfinished, ", ").c_str());
  }
  std::printf("%lld records, head %s\n", static_cast<long long>(found.records),
              audit::FormatPosition(found.end).c_str());
  if (found.errors.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(found.errors.size(), " errors"));
}

}  // namespace

std::vector<Command> AuditCommands() {
  return {{.name = "audit verify",
           .summary = "verifies a server's --audit_dir; a server may be using it",
           .syntax = {.flags = {{.name = "key", .placeholder = "FILE", .help = "the server's --audit_key"},
                                {.name = "head",
                                 .placeholder = "\"SEQ HASH\"",
                                 .help = "a head that was noted down: the log must contain it"},
                                {.name = "after",
                                 .placeholder = "\"SEQ HASH\"",
                                 .help = "the last record of the files that were moved away"}},
                      .positionals = {"DIR"}},
           .needs_server = false,
           .run = Verify}};
}

}  // namespace intrawarp::cli
