// SPDX-License-Identifier: Apache-2.0
#include "client/cli/report_json.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace intrawarp::cli {
namespace {

Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json NameOrNull(const std::string& name) { return name.empty() ? Json(nullptr) : Json(name); }

Json StopReason(v1::StopReason reason) {
  switch (reason) {
    case v1::STOP_REASON_CONVERGED:
      return "converged";
    case v1::STOP_REASON_ITERATION_LIMIT:
      return "iteration_limit";
    case v1::STOP_REASON_BUDGET:
      return "budget";
    case v1::STOP_REASON_NO_PROGRESS:
      return "no_progress";
    default:
      return nullptr;
  }
}

Json VerdictName(v1::Verdict verdict) {
  switch (verdict) {
    case v1::VERDICT_OK:
      return "ok";
    case v1::VERDICT_REVIEW:
      return "review";
    default:
      return nullptr;
  }
}

Json Level(const v1::LevelReport& level) {
  Json size = Json::array();
  for (int64_t n : level.size()) size.push_back(n);
  return {{"size", size},
          {"iterations", level.iterations()},
          {"value_before", Finite(level.value_before())},
          {"value_after", Finite(level.value_after())}};
}

Json Stages(const v1::Report& report) {
  Json stages = Json::array();
  for (const v1::StageReport& stage : report.stages()) {
    Json levels = Json::array();
    for (const v1::LevelReport& level : stage.levels()) levels.push_back(Level(level));
    stages.push_back({{"name", NameOrNull(MethodName(stage.method()))},
                      {"metric", NameOrNull(MetricName(stage.metric()))},
                      {"stop_reason", StopReason(stage.stop_reason())},
                      {"levels", levels}});
  }
  return stages;
}

Json Matrix(const v1::Matrix& matrix) {
  if (matrix.values_size() != 16) return nullptr;
  Json rows = Json::array();
  for (int r = 0; r < 4; ++r) {
    Json row = Json::array();
    for (int c = 0; c < 4; ++c) row.push_back(Finite(matrix.values(4 * r + c)));
    rows.push_back(row);
  }
  return rows;
}

Json Similarity(const v1::Similarity& s) {
  const auto value = [](bool has, double number) { return has ? Finite(number) : Json(nullptr); };
  return {{"mse", value(s.has_mse(), s.mse())}, {"sse", value(s.has_sse(), s.sse())},
          {"mae", value(s.has_mae(), s.mae())}, {"ncc", value(s.has_ncc(), s.ncc())},
          {"nmi", value(s.has_nmi(), s.nmi())}, {"ssim", value(s.has_ssim(), s.ssim())}};
}

Json Jacobian(const v1::Report& report) {
  if (!report.has_jacobian()) return nullptr;
  const v1::JacobianReport& jacobian = report.jacobian();
  return {{"min", Finite(jacobian.min())},
          {"max", Finite(jacobian.max())},
          {"nonpositive_fraction", Finite(jacobian.nonpositive_fraction())}};
}

Json InverseConsistency(const v1::Report& report) {
  if (!report.has_inverse_consistency()) return nullptr;
  const v1::InverseConsistency& consistency = report.inverse_consistency();
  return {{"mean", Finite(consistency.mean_mm())}, {"max", Finite(consistency.max_mm())}};
}

// "plus-times" of SEMIRING_PLUS_TIMES; empty for UNSPECIFIED and for values of a later version.
std::string EnumWord(absl::string_view name, absl::string_view prefix) {
  if (!absl::ConsumePrefix(&name, prefix) || name == "UNSPECIFIED") return "";
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"_", "-"}});
}

Json Latency(const v1::LatencyBreakdown& ms) {
  return {{"receive", Finite(ms.receive())}, {"admit", Finite(ms.admit())},     {"queue", Finite(ms.queue())},
          {"upload", Finite(ms.upload())},   {"prepare", Finite(ms.prepare())}, {"optimise", Finite(ms.optimise())},
          {"assess", Finite(ms.assess())},   {"encode", Finite(ms.encode())},   {"download", Finite(ms.download())},
          {"send", Finite(ms.send())},       {"total", Finite(ms.total())}};
}

}  // namespace

std::string MethodName(v1::Method method) {
  switch (method) {
    case v1::METHOD_RIGID:
      return "rigid";
    case v1::METHOD_AFFINE:
      return "affine";
    case v1::METHOD_FFD:
      return "ffd";
    case v1::METHOD_LOG_DEMONS:
      return "log-demons";
    default:
      return "";
  }
}

std::string MetricName(v1::Metric metric) {
  switch (metric) {
    case v1::METRIC_SSD:
      return "ssd";
    case v1::METRIC_NGF:
      return "ngf";
    case v1::METRIC_NMI:
      return "nmi";
    case v1::METRIC_LNCC:
      return "lncc";
    default:
      return "";
  }
}

Json ReportToJson(const std::string& method, const v1::Report& report) {
  Json reasons = Json::array();
  for (const std::string& reason : report.verdict_reasons()) reasons.push_back(reason);
  return {{"method", method},
          {"device", NameOrNull(report.device())},
          {"stop_reason", StopReason(report.stop_reason())},
          {"stages", Stages(report)},
          {"matrix", Matrix(report.matrix())},
          {"similarity", {{"before", Similarity(report.before())}, {"after", Similarity(report.after())}}},
          {"overlap", Finite(report.overlap())},
          {"jacobian", Jacobian(report)},
          {"inverse_consistency_mm", InverseConsistency(report)},
          {"verdict", VerdictName(report.verdict())},
          {"reasons", reasons},
          {"latency_ms", Latency(report.latency_ms())}};
}

Json FrameReportToJson(const std::string& method, const std::string& frame, const v1::Report& report,
                       const absl::Status& status) {
  Json json = {
      {"frame", frame},
      {"error", status.ok() ? Json(nullptr) : Json(status.ToString(absl::StatusToStringMode::kWithNoExtraData))}};
  const Json measured = ReportToJson(method, report);
  for (const auto& [name, value] : measured.items()) {
    json[name] = status.ok() || name == "method" ? value : Json(nullptr);
  }
  return json;
}

Json MultiplyReportToJson(const v1::MultiplyReport& report) {
  return {{"device", NameOrNull(report.device())},
          {"precision", NameOrNull(EnumWord(v1::Precision_Name(report.precision()), "PRECISION_"))},
          {"semiring", NameOrNull(EnumWord(v1::Semiring_Name(report.semiring()), "SEMIRING_"))},
          {"rows", report.shape().rows()},
          {"columns", report.shape().columns()},
          {"entries", report.shape().entries()},
          {"estimate",
           {{"products", report.estimate().products()},
            {"max_entries", report.estimate().max_entries()},
            {"workspace_bytes", report.estimate().workspace_bytes()},
            {"result_bytes", report.estimate().result_bytes()}}},
          {"latency_ms", Latency(report.latency_ms())}};
}

std::string JsonText(const Json& json) {
  return absl::StrCat(json.dump(2, ' ', false, Json::error_handler_t::replace), "\n");
}

}  // namespace intrawarp::cli
