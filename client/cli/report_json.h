// SPDX-License-Identifier: Apache-2.0
// The report of a registration as JSON. The names are a contract (other people's scripts read them); what is undefined
// or not finite is null. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_REPORT_JSON_H_
#define INTRAWARP_CLIENT_CLI_REPORT_JSON_H_

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "intrawarp/v1/registration.pb.h"
#include "intrawarp/v1/sparse_matrix.pb.h"

namespace intrawarp::cli {

// Keeps the order in which keys were added, so that a file reads as the contract lists them.
using Json = nlohmann::ordered_json;

// The command line adds this to the report of a result: docs/use/report.md.
struct ReportRecord {
  // "transforms/ID"
  std::string transform;
  // The images, masks and the start as they were given, by the names of the options.
  std::map<std::string, std::string> inputs;
  // The command and its options as they were given.
  std::vector<std::string> command_line;
};

// The version of the names in a report: raised where a name is removed or changes its meaning.
inline constexpr int kReportSchemaVersion = 1;

// `method` is the list of stages as on the command line, "affine,ffd", or "auto"; the stages that auto chose stand in
// the report.
Json ReportToJson(const std::string& method, const v1::Report& report);

// The same, and the record: transform, inputs, command line, version of the client.
Json ReportToJson(const std::string& method, const v1::Report& report, const ReportRecord& record);

// The list of stages of a report, "auto" where the server chose them.
std::string MethodOf(const v1::Report& report);

// One frame of a navigation: the report, all null when the frame failed, with the file's name as "frame" and the cause
// of a failure, else null, as "error".
Json FrameReportToJson(const std::string& method, const std::string& frame, const v1::Report& report,
                       const absl::Status& status);

// A session at its end: counts of frames by their fate, percentiles of their latency.
Json SessionToJson(const v1::Session& context);

// The report of a sparse product.
Json MultiplyReportToJson(const v1::MultiplyReport& report);

// Indented by two, with a line end; bytes that are not UTF-8 are replaced.
std::string JsonText(const Json& json);

// The words of the command line and of the report: "log-demons" for the member log_demons of Stage.method, "ngf". Empty
// for a stage without a method and for UNSPECIFIED.
std::string MethodWord(const std::string& field);
std::string MethodOf(const v1::Stage& stage);
std::string MetricName(v1::Metric metric);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_REPORT_JSON_H_
