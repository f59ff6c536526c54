// SPDX-License-Identifier: Apache-2.0
// intrawarp server info, server report, server log_level, health
#include <google/protobuf/util/json_util.h>

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/files.h"
#include "client/cli/message_json.h"
#include "client/cli/report_json.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "wire/convert.h"

namespace intrawarp::cli {
namespace {

void PrintDevices(const v1::ServerInfo& info) {
  for (const v1::Device& device : info.devices()) {
    std::printf("device %s: %s, %lld of %lld MiB free, %s\n", device.name().c_str(), device.model().c_str(),
                static_cast<long long>(device.memory_free_bytes() >> 20),
                static_cast<long long>(device.memory_total_bytes() >> 20), device.healthy() ? "healthy" : "unhealthy");
  }
}

void PrintUsage(const v1::ServerInfo& info) {
  const v1::Usage& usage = info.usage();
  std::printf("resident: %lld of %lld MiB; volumes %lld, transforms %lld, matrices %lld\n",
              static_cast<long long>(usage.resident_bytes() >> 20),
              static_cast<long long>(info.limits().resident_capacity_bytes() >> 20),
              static_cast<long long>(usage.volumes()), static_cast<long long>(usage.transforms()),
              static_cast<long long>(usage.sparse_matrices()));
  std::printf("under way: uploads %lld, streams %lld, jobs %lld\n", static_cast<long long>(usage.uploads()),
              static_cast<long long>(usage.streams()), static_cast<long long>(usage.jobs()));
}

void PrintAbilities(const v1::ServerInfo& info) {
  std::string methods, metrics;
  for (const std::string& method : info.methods()) absl::StrAppend(&methods, " ", MethodWord(method));
  for (int metric : info.metrics()) absl::StrAppend(&metrics, " ", MetricName(static_cast<v1::Metric>(metric)));
  std::printf("methods:%s\nmetrics:%s\n", methods.c_str(), metrics.c_str());
}

absl::Status Info(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::ServerInfo info, context.client().GetServerInfo(context.call()));
  if (flags.Has("json")) {
    context.PrintJson(MessageToJson(info));
    return absl::OkStatus();
  }
  std::printf("version %s (%s)\n", info.version().c_str(), info.revision().c_str());
  PrintDevices(info);
  PrintUsage(info);
  PrintAbilities(info);
  return absl::OkStatus();
}

// A bug report needs this of the server: everything that ServerInfo tells, which names no object of a client's.
absl::Status WriteReport(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", {".json"}));
  INTRAWARP_ASSIGN_OR_RETURN(const bool serving, context.client().IsServing("", context.call()));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::ServerInfo info, context.client().GetServerInfo(context.call()));
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(info, &text, options).ok()) {
    return absl::InternalError("the server's information cannot be written as JSON");
  }
  Json report = {{"serving", serving}};
  report["server"] = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string out = flags.String("out");
  return Annotate(io::WriteSmallFile(out, JsonText(report)), out);
}

std::string LevelWord(v1::LogLevel level) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::LogLevel_Name(level), "LOG_LEVEL_"));
}

absl::StatusOr<v1::LogLevel> ParseLevel(const std::string& word) {
  for (const v1::LogLevel level :
       {v1::LOG_LEVEL_DEBUG, v1::LOG_LEVEL_INFO, v1::LOG_LEVEL_WARNING, v1::LOG_LEVEL_ERROR}) {
    if (word == LevelWord(level)) return level;
  }
  return UsageError(absl::InvalidArgumentError("LEVEL: must be debug, info, warning or error"));
}

absl::StatusOr<google::protobuf::Duration> ParseTime(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration <= absl::ZeroDuration() || duration > absl::Hours(24 * 7)) {
    return UsageError(absl::InvalidArgumentError("--for: must be a time up to 168h, as 30s, 10m or 2h"));
  }
  return DurationToProto(absl::ToChronoNanoseconds(duration));
}

template <typename Levels>
void PrintLevels(const Levels& levels) {
  for (const v1::RoomLogLevel& level : levels) {
    const auto left = static_cast<long long>(level.reverts_after().seconds());
    const std::string end = level.has_reverts_after() ? absl::StrCat(", for ", left, " s") : "";
    std::printf("%s %s%s\n", level.room().c_str(), LevelWord(level.level()).c_str(), end.c_str());
  }
}

absl::Status LogLevel(const ParsedFlags& flags, CommandContext& context) {
  if (flags.positional_count() == 0) {
    if (flags.Has("for") || flags.Has("room")) {
      return UsageError(absl::InvalidArgumentError("LEVEL: is missing"));
    }
    INTRAWARP_ASSIGN_OR_RETURN(const v1::ServerInfo info, context.client().GetServerInfo(context.call()));
    PrintLevels(info.log_levels());
    return absl::OkStatus();
  }
  v1::SetLogLevelRequest request;
  INTRAWARP_ASSIGN_OR_RETURN(const v1::LogLevel level, ParseLevel(flags.Positional(0)));
  request.set_level(level);
  request.set_room(flags.String("room"));
  if (flags.Has("for")) {
    INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_revert_after(), ParseTime(flags.String("for")));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::RoomLogLevel> levels,
                             context.client().SetLogLevel(request, context.call()));
  PrintLevels(levels);
  return absl::OkStatus();
}

absl::Status Health(const ParsedFlags&, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const bool serving, context.client().IsServing("", context.call()));
  if (!serving) return absl::UnavailableError("the server is not serving");
  std::printf("SERVING\n");
  return absl::OkStatus();
}

}  // namespace

std::vector<Command> ServerCommands() {
  return {
      {.name = "server info",
       .summary = "what the server is, what it can do, and what it holds",
       .syntax = {.flags = {JsonFlagSpec()}},
       .reach = Reach::kEach,
       .run = Info},
      {.name = "server report",
       .summary = "what a bug report needs of the server, as JSON",
       .syntax = {.flags = {{.name = "out", .placeholder = "OUT.json", .help = "where to write it", .required = true}}},
       .run = WriteReport,
       .notes = "It names no volume, transform, matrix or session. docs/operate/operators-guide.md lists what else to "
                "send.\n"},
      {.name = "server log_level",
       .summary = "how talkative the server's log is, by room; with LEVEL, changes it",
       .syntax = {.flags = {{.name = "room",
                             .placeholder = "ROOM",
                             .help = "only lines about this: server, rpc, registration or sparse",
                             .choices = {"server", "rpc", "registration", "sparse"}},
                            {.name = "for",
                             .placeholder = "TIME",
                             .help = "revert after this, as 10m; without it the level stays"}},
                  .positionals = {"[LEVEL]"}},
       .reach = Reach::kEach,
       .run = LogLevel,
       .notes = "LEVEL is debug, info, warning or error. Changing it takes the role admin.\n"},
      {.name = "health",
       .summary = "succeeds when the server is serving; with several, when all are",
       .syntax = {},
       .reach = Reach::kEach,
       .run = Health},
  };
}

}  // namespace intrawarp::cli
