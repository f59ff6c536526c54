// SPDX-License-Identifier: Apache-2.0
// intrawarp pacs remotes, pacs echo, pacs find, pacs import
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/message_json.h"
#include "client/cli/report_json.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/uuid.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLookPeriod{500};
// For a server that does not answer while an import goes on.
constexpr std::chrono::minutes kPatience{2};
constexpr int kMaxSeries = 1000;

const char* ProtocolText(v1::RemoteProtocol protocol) {
  switch (protocol) {
    case v1::REMOTE_PROTOCOL_DICOM_GET:
      return "get";
    case v1::REMOTE_PROTOCOL_DICOM_MOVE:
      return "move";
    case v1::REMOTE_PROTOCOL_DICOMWEB:
      return "dicomweb";
    default:
      return "unknown";
  }
}

absl::Status Remotes(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::Remote> remotes, context.client().ListRemotes(context.call()));
  if (flags.Has("json")) {
    context.PrintJson(ListToJson(remotes));
    return absl::OkStatus();
  }
  for (const v1::Remote& remote : remotes) {
    std::printf("%s\t%s\t%s\t%s\n", remote.name().c_str(), ProtocolText(remote.protocol()),
                remote.tls() ? "tls" : "plain", remote.shows_patients() ? "patients" : "no patients");
  }
  return absl::OkStatus();
}

absl::Status Echo(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_RETURN_IF_ERROR(context.client().EchoRemote(flags.Positional(0), context.call()));
  std::printf("OK\n");
  return absl::OkStatus();
}

Json MatchJson(const v1::SeriesMatch& match, bool with_patient) {
  Json json = {{"study_uid", match.study_uid()},
               {"series_uid", match.series_uid()},
               {"modality", match.modality()},
               {"study_date", match.study_date()},
               {"study_time", match.study_time()},
               {"study_description", match.study_description()},
               {"series_description", match.series_description()},
               {"series_number", match.series_number()},
               {"instances", nullptr}};
  if (match.has_instances()) json["instances"] = match.instances();
  if (!with_patient) return json;
  json["patient_id"] = match.patient_id();
  json["patient_name"] = match.patient_name();
  json["patient_birth_date"] = match.patient_birth_date();
  return json;
}

std::string MatchLine(const v1::SeriesMatch& match, bool with_patient) {
  const auto shown = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
  std::vector<std::string> columns = {match.study_uid(),
                                      match.series_uid(),
                                      shown(match.modality()),
                                      shown(match.study_date()),
                                      match.has_instances() ? absl::StrCat(match.instances()) : "-",
                                      shown(match.study_description()),
                                      shown(match.series_description())};
  if (with_patient) {
    for (const std::string& text : {match.patient_id(), match.patient_name(), match.patient_birth_date()}) {
      columns.push_back(shown(text));
    }
  }
  return absl::StrJoin(columns, "\t");
}

absl::Status Find(const ParsedFlags& flags, CommandContext& context) {
  v1::FindSeriesRequest request;
  request.set_remote(flags.Positional(0));
  request.set_study_uid(flags.String("study"));
  request.set_patient_id(flags.String("patient_id"));
  request.set_patient_name(flags.String("patient_name"));
  request.set_accession_number(flags.String("accession_number"));
  request.set_date_from(flags.String("from"));
  request.set_date_to(flags.String("to"));
  request.set_modality(flags.String("modality"));
  request.set_with_patient(flags.Has("with_patient"));
  request.set_max_series(static_cast<int32_t>(flags.Integer("max")));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::FindSeriesResponse found, context.client().FindSeries(request, context.call()));
  if (flags.Has("json")) {
    Json series = Json::array();
    for (const v1::SeriesMatch& match : found.series()) series.push_back(MatchJson(match, request.with_patient()));
    std::printf("%s\n", JsonText({{"series", series}, {"truncated", found.truncated()}}).c_str());
    return absl::OkStatus();
  }
  for (const v1::SeriesMatch& match : found.series()) {
    std::printf("%s\n", MatchLine(match, request.with_patient()).c_str());
  }
  if (found.truncated()) std::fputs("there are more; --max shows more of them\n", stderr);
  return absl::OkStatus();
}

bool HasEnded(const v1::Operation& operation) {
  return operation.state() == v1::OPERATION_STATE_DONE || operation.state() == v1::OPERATION_STATE_FAILED;
}

std::string ProgressText(const v1::Operation& operation) {
  const v1::OperationProgress& progress = operation.progress();
  if (operation.state() == v1::OPERATION_STATE_QUEUED) return "waiting for its turn";
  if (progress.step().empty()) return "asking the archive";
  const std::string total = progress.total() > 0 ? absl::StrCat(" of ", progress.total()) : "";
  return absl::StrCat(progress.step(), " ", progress.done(), total, " ", progress.unit());
}

// The import goes on whatever becomes of this: a server that does not answer for a while is asked again.
absl::StatusOr<v1::Operation> WaitFor(v1::Operation operation, CommandContext& context) {
  ProgressLine line;
  steady_clock::time_point answered = steady_clock::now();
  while (!HasEnded(operation)) {
    line.Show(ProgressText(operation));
    absl::StatusOr<v1::Operation> now = context.client().WaitOperation(operation.name(), kLookPeriod, context.call());
    INTRAWARP_RETURN_IF_ERROR(context.CheckInterrupt());
    if (now.ok()) {
      operation = *std::move(now);
      answered = steady_clock::now();
      continue;
    }
    if (!absl::IsUnavailable(now.status()) || steady_clock::now() > answered + kPatience) return now.status();
    std::this_thread::sleep_for(kLookPeriod);
  }
  return operation;
}

absl::Status Import(const ParsedFlags& flags, CommandContext& context) {
  v1::ImportSeriesRequest request;
  request.set_remote(flags.Positional(0));
  request.set_study_uid(flags.String("study"));
  request.set_series_uid(flags.String("series"));
  request.set_request_id(flags.String("request_id"));
  if (request.request_id().empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_request_id(), client::RandomUuid());
  }
  INTRAWARP_ASSIGN_OR_RETURN(v1::Operation operation, context.client().ImportSeries(request, context.call()));
  if (flags.Has("detach")) {
    std::printf("%s\n", operation.name().c_str());
    return absl::OkStatus();
  }
  INTRAWARP_ASSIGN_OR_RETURN(operation, WaitFor(std::move(operation), context));
  if (operation.state() == v1::OPERATION_STATE_FAILED) return client::FromRpcStatus(operation.error());
  for (const std::string& name : operation.results()) std::printf("%s\n", name.c_str());
  return absl::OkStatus();
}

FlagSpec Text(std::string name, std::string placeholder, std::string help, bool required = false) {
  return {
      .name = std::move(name), .placeholder = std::move(placeholder), .help = std::move(help), .required = required};
}

FlagSpec Switch(std::string name, std::string help) {
  return {.name = std::move(name), .type = FlagType::kSwitch, .placeholder = "", .help = std::move(help)};
}

}  // namespace

std::vector<Command> PacsCommands() {
  return {
      {.name = "pacs remotes",
       .summary = "list the archives that series can be imported from",
       .syntax = {.flags = {JsonFlagSpec()}},
       .reach = Reach::kEach,
       .run = Remotes},
      {.name = "pacs echo",
       .summary = "ask whether an archive is there and serves us",
       .syntax = {.flags = {}, .positionals = {"REMOTE"}},
       .run = Echo},
      {.name = "pacs find",
       .summary = "list series of an archive: study, series, modality, date, images, descriptions",
       .syntax = {.flags = {Text("patient_id", "ID",
                                 "of this patient; * and ? stand for other characters, if you may see patients"),
                            Text("patient_name", "NAME", "of this patient, as Family^Given"),
                            Text("accession_number", "NUMBER", "of this accession number"),
                            Text("study", "UID", "of this study"),
                            Text("from", "YYYYMMDD", "of this day or later"),
                            Text("to", "YYYYMMDD", "of this day or earlier"),
                            Text("modality", "CT|MR|...", "of this modality"),
                            Switch("with_patient", "also the patient's id, name and date of birth; not every role may"),
                            {.name = "max",
                             .type = FlagType::kInteger,
                             .placeholder = "N",
                             .help = "at most so many (200)",
                             .minimum = 1,
                             .maximum = kMaxSeries},
                            Switch("json", "as JSON")},
                  .positionals = {"REMOTE"}},
       .run = Find,
       .notes = "One of --patient_id, --patient_name, --accession_number, --study and --from must be given.\n"},
      {.name = "pacs import",
       .summary = "bring a series of an archive as volumes; prints their names",
       .syntax = {.flags = {Text("study", "UID", "the study, as pacs find shows it", /*required=*/true),
                            Text("series", "UID", "the series", /*required=*/true),
                            Switch("detach", "do not wait; prints the name of the operation"),
                            Text("request_id", "ID", "the operation's id (random); a repetition finds it")},
                  .positionals = {"REMOTE"}},
       .run = Import,
       .notes = "The import goes on when this command ends before it, by Ctrl-C too.\n"},
  };
}

}  // namespace intrawarp::cli
