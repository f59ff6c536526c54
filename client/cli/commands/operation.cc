// SPDX-License-Identifier: Apache-2.0
// intrawarp operation list | get | wait | cancel
#include <cstdio>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/command_context.h"
#include "client/cli/commands/commands.h"
#include "client/cli/matrix_files.h"
#include "client/cli/message_json.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli {
namespace {

// "RUNNING" of OPERATION_STATE_RUNNING, in lower case.
std::string Lower(const std::string& name, const char* prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime(absl::RFC3339_sec, absl::FromUnixSeconds(time.seconds()), absl::UTCTimeZone());
}

std::string ProgressText(const v1::OperationProgress& progress) {
  std::string text = progress.step();
  if (progress.done() == 0 && progress.total() == 0) return text;
  absl::StrAppend(&text, text.empty() ? "" : ", ", progress.done());
  if (progress.total() > 0) absl::StrAppend(&text, " of ", progress.total());
  if (!progress.unit().empty()) absl::StrAppend(&text, " ", progress.unit());
  return text;
}

// A word on its state.
std::string Detail(const v1::Operation& operation) {
  switch (operation.state()) {
    case v1::OPERATION_STATE_DONE: {
      std::string names;
      for (const std::string& name : operation.results()) absl::StrAppend(&names, names.empty() ? "" : " ", name);
      return ShownMatrixNames(names);
    }
    case v1::OPERATION_STATE_FAILED: {
      const absl::Status status = client::FromRpcStatus(operation.error());
      return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
    }
    default:
      return ProgressText(operation.progress());
  }
}

std::string Row(const v1::Operation& operation) {
  std::string row =
      absl::StrCat(operation.name(), "\t", Lower(v1::OperationKind_Name(operation.kind()), "OPERATION_KIND_"), "\t",
                   Lower(v1::OperationState_Name(operation.state()), "OPERATION_STATE_"), "\t",
                   TimeText(operation.create_time()), "\t");
  absl::StrAppend(&row, operation.has_expire_time() ? TimeText(operation.expire_time()) : "-", "\t", Detail(operation),
                  OwnerColumn(operation.owner()));
  return row;
}

// ID stands for operations/ID.
std::string NameIn(const ParsedFlags& flags) {
  const std::string name = flags.Positional(0);
  return absl::StartsWith(name, "operations/") ? name : absl::StrCat("operations/", name);
}

absl::Status List(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::Operation> operations,
                             context.client().ListOperations(context.call()));
  if (flags.Has("json")) {
    context.PrintJson(ListToJson(operations));
    return absl::OkStatus();
  }
  for (const v1::Operation& operation : operations) std::printf("%s\n", Row(operation).c_str());
  return absl::OkStatus();
}

absl::Status Get(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Operation operation,
                             context.client().GetOperation(NameIn(flags), context.call()));
  if (flags.Has("json")) {
    context.PrintJson(MessageToJson(operation));
    return absl::OkStatus();
  }
  std::printf("%s\n", Row(operation).c_str());
  return absl::OkStatus();
}

absl::Status Wait(const ParsedFlags& flags, CommandContext& context) {
  client::CallOptions options = context.call();
  if (flags.Has("timeout_s")) {
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.Number("timeout_s") * 1000));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Operation operation, context.client().WaitOperation(NameIn(flags), options));
  if (operation.state() == v1::OPERATION_STATE_FAILED) return client::FromRpcStatus(operation.error());
  for (const std::string& name : operation.results()) std::printf("%s\n", ShownMatrixNames(name).c_str());
  return absl::OkStatus();
}

absl::Status Cancel(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Operation operation,
                             context.client().CancelOperation(NameIn(flags), context.call()));
  std::printf("%s\n", Row(operation).c_str());
  return absl::OkStatus();
}

}  // namespace

std::vector<Command> OperationCommands() {
  return {
      {.name = "operation list",
       .summary = "list operations: name, kind, state, begin, expiry, progress or results or error, owner",
       .syntax = {.flags = {JsonFlagSpec()}},
       .reach = Reach::kEach,
       .run = List},
      {.name = "operation get",
       .summary = "show an operation",
       .syntax = {.flags = {JsonFlagSpec()}, .positionals = {"ID"}},
       .run = Get},
      {.name = "operation wait",
       .summary = "wait for an operation to end; prints what it made",
       .syntax = {.flags = {{.name = "timeout_s",
                             .type = FlagType::kNumber,
                             .placeholder = "S",
                             .help = "give up after this, DEADLINE_EXCEEDED; default: never",
                             .minimum = 0.001,
                             .maximum = 1e7}},
                  .positionals = {"ID"}},
       .run = Wait,
       .notes = "A connection that breaks meanwhile is made again. Exit status 1 for an operation that failed.\n"},
      {.name = "operation cancel",
       .summary = "make an operation end",
       .syntax = {.flags = {}, .positionals = {"ID"}},
       .run = Cancel},
  };
}

}  // namespace intrawarp::cli
