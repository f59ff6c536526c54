// SPDX-License-Identifier: Apache-2.0
// intrawarp token new
#include <cstdio>
#include <string>

#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "engine/base/status_macros.h"
#include "server/identity/credentials.h"
#include "server/identity/identity.h"

namespace intrawarp::cli {
namespace {

absl::Status New(const ParsedFlags& flags, CommandContext&) {
  const absl::StatusOr<server::Roles> roles = server::ParseRoles(flags.String("roles"));
  if (!roles.ok()) return UsageError(roles.status());
  const absl::StatusOr<server::NewToken> made = server::MakeToken(flags.String("name"), *roles);
  if (absl::IsInvalidArgument(made.status())) return UsageError(made.status());
  if (!made.ok()) return made.status();
  std::printf("%s\n%s\n", made->token.c_str(), made->line.c_str());
  return absl::OkStatus();
}

}  // namespace

std::vector<Command> TokenCommands() {
  return {{.name = "token new",
           .summary = "makes a bearer token: prints the token, then the line for the server's --tokens file",
           .syntax = {.flags = {{.name = "name",
                                 .placeholder = "NAME",
                                 .help = "who bears it; callers of one name share their objects",
                                 .required = true},
                                {.name = "roles",
                                 .placeholder = "ROLE[,ROLE]",
                                 .help = "frame (registers), stage (brings and deletes), admin",
                                 .required = true}}},
           .needs_server = false,
           .run = New,
           .notes = "The server keeps the token's SHA-256 alone: whoever loses the token makes another one.\n"}};
}

}  // namespace intrawarp::cli
