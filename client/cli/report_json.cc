// SPDX-License-Identifier: Apache-2.0
#include "client/cli/report_json.h"

#include <google/protobuf/util/json_util.h>

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/message_json.h"
#include "client/cli/verdict.h"
#include "client/cli/version.h"

namespace intrawarp::cli {
namespace {

// The member of Stage.method that is set; null when none is.
const google::protobuf::FieldDescriptor* MethodField(const v1::Stage& stage) {
  return v1::Stage::descriptor()->FindFieldByNumber(stage.method_case());
}

// UNSPECIFIED for a method without a choice of metrics.
v1::Metric MetricOf(const v1::Stage& stage) {
  const google::protobuf::FieldDescriptor* method = MethodField(stage);
  if (method == nullptr) return v1::METRIC_UNSPECIFIED;
  const google::protobuf::Message& options = stage.GetReflection()->GetMessage(stage, method);
  const google::protobuf::FieldDescriptor* metric = options.GetDescriptor()->FindFieldByName("metric");
  if (metric == nullptr) return v1::METRIC_UNSPECIFIED;
  return static_cast<v1::Metric>(options.GetReflection()->GetEnumValue(options, metric));
}

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

// Null but for a stage with sliding.
Json SecondLayerFraction(const v1::StageReport& stage) {
  return stage.has_second_layer_fraction() ? Finite(stage.second_layer_fraction()) : Json(nullptr);
}

Json Stages(const v1::Report& report) {
  Json stages = Json::array();
  for (int i = 0; i < report.stages_size(); ++i) {
    const v1::StageReport& stage = report.stages(i);
    const v1::Stage options = i < report.options().stages_size() ? report.options().stages(i) : v1::Stage();
    Json levels = Json::array();
    for (const v1::LevelReport& level : stage.levels()) levels.push_back(Level(level));
    stages.push_back({{"name", NameOrNull(MethodOf(options))},
                      {"metric", NameOrNull(MetricName(MetricOf(options)))},
                      {"stop_reason", StopReason(stage.stop_reason())},
                      {"levels", levels},
                      {"second_layer_fraction", SecondLayerFraction(stage)}});
  }
  return stages;
}

// The options as resolved, with the names of the wire.
Json Options(const v1::Report& report) {
  if (!report.has_options()) return nullptr;
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(report.options(), &text, print);
  return printed.ok() ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json(nullptr);
}

Json Matrix(const v1::AffineMap& matrix) {
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

Json AffineShape(const v1::Report& report) {
  if (!report.has_affine_shape()) return nullptr;
  const v1::AffineShape& shape = report.affine_shape();
  return {{"min_stretch", Finite(shape.min_stretch())},
          {"max_stretch", Finite(shape.max_stretch())},
          {"mirrors", shape.mirrors()}};
}

Json InverseConsistency(const v1::Report& report) {
  if (!report.has_inverse_consistency()) return nullptr;
  const v1::InverseConsistency& consistency = report.inverse_consistency();
  return {{"mean", Finite(consistency.mean_mm())}, {"max", Finite(consistency.max_mm())}};
}

Json ErrorEstimate(bool is_known, const v1::ErrorEstimate& error) {
  if (!is_known) return nullptr;
  const auto value = [](bool has, double number) { return has ? Finite(number) : Json(nullptr); };
  return {{"quantile", Finite(error.quantile())},
          {"expected", Finite(error.expected_mm())},
          {"bound", Finite(error.bound_mm())},
          {"bound_p95", Finite(error.bound_p95_mm())},
          {"bound_max", Finite(error.bound_max_mm())},
          {"judged_fraction", Finite(error.judged_fraction())},
          {"agreement", Finite(error.agreement())},
          {"chance", Finite(error.chance())},
          {"affine_expected", value(error.has_affine_expected_mm(), error.affine_expected_mm())},
          {"affine_agreement", value(error.has_affine_agreement(), error.affine_agreement())},
          {"deformation", value(error.has_deformation_mm(), error.deformation_mm())},
          {"rejected_gain", value(error.has_rejected_gain(), error.rejected_gain())},
          {"reach_mm", value(error.has_reach_mm(), error.reach_mm())},
          {"worst_region_expected_mm", value(error.has_worst_region_expected_mm(), error.worst_region_expected_mm())},
          {"worst_region_agreement", value(error.has_worst_region_agreement(), error.worst_region_agreement())},
          {"visible_fraction", value(error.has_visible_fraction(), error.visible_fraction())}};
}

std::string StartWord(v1::StartKind kind) {
  switch (kind) {
    case v1::START_KIND_HEADER:
      return "header";
    case v1::START_KIND_CENTER_OF_MASS:
      return "center_of_mass";
    case v1::START_KIND_ROTATION:
      return "rotation";
    case v1::START_KIND_MIRRORED:
      return "mirrored";
    case v1::START_KIND_NEAR_HEADER:
      return "near_header";
    default:
      return "";
  }
}

// Null but for a slice in a volume.
Json SlicePose(const v1::Report& report) {
  if (!report.has_slice_pose()) return nullptr;
  const v1::SlicePose& pose = report.slice_pose();
  return {{"step_mm", Finite(pose.step_mm())},
          {"offset_rise", Finite(pose.offset_rise())},
          {"tilt_rise", Finite(pose.tilt_rise())},
          {"in_plane_rise", Finite(pose.in_plane_rise())},
          {"observability", Finite(pose.observability())}};
}

// Null where nobody looked.
Json MissingTissue(const v1::Report& report) {
  if (!report.has_missing_tissue()) return nullptr;
  return {{"volume_mm3", Finite(report.missing_tissue().volume_mm3())},
          {"fraction", Finite(report.missing_tissue().fraction())}};
}

// Null without landmarks.
Json Landmarks(const v1::Report& report) {
  if (!report.has_landmarks()) return nullptr;
  const v1::LandmarkFit& fit = report.landmarks();
  Json distances = Json::array();
  for (const double distance : fit.distance_mm()) distances.push_back(Finite(distance));
  return {{"distance_mm", std::move(distances)},
          {"mean_mm", Finite(fit.mean_mm())},
          {"max_mm", Finite(fit.max_mm())},
          {"max_sigmas", Finite(fit.max_sigmas())}};
}

Json Starts(const v1::Report& report) {
  Json rows = Json::array();
  for (const v1::StartCandidate& start : report.starts()) {
    rows.push_back({{"kind", NameOrNull(StartWord(start.kind()))},
                    {"rotation_deg", Finite(start.rotation_deg())},
                    {"offset_mm", start.has_offset_mm() ? Finite(start.offset_mm()) : Json(nullptr)},
                    {"score_before", start.has_score_before() ? Finite(start.score_before()) : Json(nullptr)},
                    {"score_after", Finite(start.score_after())},
                    {"overlap", Finite(start.overlap())},
                    {"matrix", Matrix(start.end())}});
  }
  return rows;
}

// "plus-times" of SEMIRING_PLUS_TIMES; empty for UNSPECIFIED and for values of a later version.
std::string EnumWord(absl::string_view name, absl::string_view prefix) {
  if (!absl::ConsumePrefix(&name, prefix) || name == "UNSPECIFIED") return "";
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"_", "-"}});
}

Json AffineTrials(const v1::Choice& choice) {
  Json rows = Json::array();
  for (const v1::AffineTrial& trial : choice.affine()) {
    rows.push_back({{"metric", NameOrNull(MetricName(trial.metric()))},
                    {"has_result", trial.has_result()},
                    {"predicted_error_mm", ErrorEstimate(trial.has_error(), trial.error())},
                    {"chosen", trial.chosen()}});
  }
  return rows;
}

Json DeformationTrials(const v1::Choice& choice) {
  Json rows = Json::array();
  for (const v1::DeformationTrial& trial : choice.deformations()) {
    rows.push_back({{"metric", NameOrNull(MetricName(trial.metric()))},
                    {"bending_weight", Finite(trial.bending_weight())},
                    {"predicted_error_mm", ErrorEstimate(trial.has_error(), trial.error())},
                    {"gain", trial.has_gain() ? Finite(trial.gain()) : Json(nullptr)},
                    {"deformation_mm", trial.has_deformation_mm() ? Finite(trial.deformation_mm()) : Json(nullptr)},
                    {"contradicts", trial.contradicts()},
                    {"accepted", trial.accepted()},
                    {"chosen", trial.chosen()},
                    {"searched", trial.searched()},
                    {"refined", trial.refined()}});
  }
  return rows;
}

// The server's choice for want of named stages, and its reasons; null where stages were named.
Json Choice(const v1::Report& report) {
  if (!report.has_choice()) return nullptr;
  const v1::Choice& choice = report.choice();
  const std::string reason = EnumWord(v1::ChoiceReason_Name(choice.reason()), "CHOICE_REASON_");
  return {{"text", choice.text()},
          {"affine", AffineTrials(choice)},
          {"correlation", choice.has_correlation() ? Finite(choice.correlation()) : Json(nullptr)},
          {"correlation_ratio", choice.has_correlation_ratio() ? Finite(choice.correlation_ratio()) : Json(nullptr)},
          {"reason", NameOrNull(reason)},
          {"deformations", DeformationTrials(choice)}};
}

Json Latency(const v1::LatencyBreakdown& ms) {
  return {{"receive", Finite(ms.receive_ms())},   {"admit", Finite(ms.admit_ms())},
          {"queue", Finite(ms.queue_ms())},       {"upload", Finite(ms.upload_ms())},
          {"prepare", Finite(ms.prepare_ms())},   {"optimise", Finite(ms.optimise_ms())},
          {"assess", Finite(ms.assess_ms())},     {"encode", Finite(ms.encode_ms())},
          {"download", Finite(ms.download_ms())}, {"send", Finite(ms.send_ms())},
          {"total", Finite(ms.total_ms())}};
}

Json ReasonDetails(const v1::Report& report) {
  Json rows = Json::array();
  for (const v1::VerdictReason& reason : report.reasons()) {
    rows.push_back({{"cause", NameOrNull(CauseWord(reason.cause()))},
                    {"message", reason.message()},
                    {"value", reason.has_value() ? Finite(reason.value()) : Json(nullptr)},
                    {"limit", reason.has_limit() ? Finite(reason.limit()) : Json(nullptr)},
                    {"text", ReasonText(reason, report)}});
  }
  return rows;
}

// With the names of the wire; null where the server tells none.
Json Provenance(const v1::Report& report) {
  if (!report.has_provenance()) return nullptr;
  const v1::ReportProvenance& from = report.provenance();
  const auto digest = [](const std::string& bytes) { return NameOrNull(absl::BytesToHexString(bytes)); };
  return {{"server_version", NameOrNull(from.server_version())},
          {"server_revision", NameOrNull(from.server_revision())},
          {"receive_time", TimeToJson(from.has_receive_time(), from.receive_time())},
          {"report_time", TimeToJson(from.has_report_time(), from.report_time())},
          {"fixed", NameOrNull(from.fixed())},
          {"moving", NameOrNull(from.moving())},
          {"fixed_digest", digest(from.fixed_digest())},
          {"moving_digest", digest(from.moving_digest())},
          {"fixed_mask_digest", digest(from.fixed_mask_digest())},
          {"moving_mask_digest", digest(from.moving_mask_digest())},
          {"fixed_weight_digest", digest(from.fixed_weight_digest())},
          {"moving_weight_digest", digest(from.moving_weight_digest())}};
}

}  // namespace

std::string MethodWord(const std::string& field) { return absl::StrReplaceAll(field, {{"_", "-"}}); }

std::string MethodOf(const v1::Stage& stage) {
  const google::protobuf::FieldDescriptor* field = MethodField(stage);
  return field == nullptr ? "" : MethodWord(field->name());
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
    case v1::METRIC_MIND:
      return "mind";
    default:
      return "";
  }
}

Json ReportToJson(const std::string& method, const v1::Report& report) {
  Json reasons = Json::array();
  for (const v1::VerdictReason& reason : report.reasons()) reasons.push_back(reason.message());
  return {{"method", method},
          {"device", NameOrNull(report.device())},
          {"stop_reason", StopReason(report.stop_reason())},
          {"stages", Stages(report)},
          {"matrix", Matrix(report.affine())},
          {"similarity", {{"before", Similarity(report.before())}, {"after", Similarity(report.after())}}},
          {"overlap", Finite(report.overlap())},
          {"affine_shape", AffineShape(report)},
          {"jacobian", Jacobian(report)},
          {"inverse_consistency_mm", InverseConsistency(report)},
          {"predicted_error_mm", ErrorEstimate(report.has_error(), report.error())},
          {"verdict", VerdictName(report.verdict())},
          {"reasons", reasons},
          {"reason_details", ReasonDetails(report)},
          {"starts", Starts(report)},
          {"slice_pose", SlicePose(report)},
          {"missing_tissue", MissingTissue(report)},
          {"landmarks", Landmarks(report)},
          {"same_frame_of_reference",
           report.has_same_frame_of_reference() ? Json(report.same_frame_of_reference()) : Json(nullptr)},
          {"start_margin", report.has_start_margin() ? Finite(report.start_margin()) : Json(nullptr)},
          {"choice", Choice(report)},
          {"latency_ms", Latency(report.latency())},
          {"options", Options(report)},
          {"provenance", Provenance(report)}};
}

Json ReportToJson(const std::string& method, const v1::Report& report, const ReportRecord& record) {
  Json json = {{"schema_version", kReportSchemaVersion}, {"transform", NameOrNull(record.transform)}};
  json.update(ReportToJson(method, report));
  json["client"] = {{"version", kVersion}, {"revision", kRevision}};
  json["inputs"] = Json::object();
  for (const auto& [name, given] : record.inputs) json["inputs"][name] = given;
  json["command_line"] = record.command_line;
  return json;
}

std::string MethodOf(const v1::Report& report) {
  if (report.has_choice()) return "auto";
  std::vector<std::string> stages;
  for (const v1::Stage& stage : report.options().stages()) stages.push_back(MethodOf(stage));
  return absl::StrJoin(stages, ",");
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

Json SessionToJson(const v1::Session& context) {
  const v1::SessionStatistics& s = context.statistics();
  const auto value = [](bool has, double number) { return has ? Finite(number) : Json(nullptr); };
  return {{"session", context.name()},
          {"frames",
           {{"ok", s.frames_ok()},
            {"late", s.frames_late()},
            {"missed", s.frames_missed()},
            {"superseded", s.frames_superseded()},
            {"refused", s.frames_refused()},
            {"failed", s.frames_failed()},
            {"dropped", s.frames_dropped()}}},
          {"latency_ms",
           {{"p50", value(s.has_latency_p50_ms(), s.latency_p50_ms())},
            {"p90", value(s.has_latency_p90_ms(), s.latency_p90_ms())},
            {"p99", value(s.has_latency_p99_ms(), s.latency_p99_ms())}}},
          {"coarse_fields", s.coarse_fields()},
          {"load", value(context.has_load(), context.load())},
          {"resumptions", context.resumptions()}};
}

namespace {

Json EstimateToJson(const v1::MultiplyEstimate& estimate) {
  return {{"products", estimate.multiplications()},
          {"max_entries", estimate.max_entries()},
          {"workspace_bytes", estimate.workspace_bytes()},
          {"result_bytes", estimate.result_bytes()}};
}

// Null unless the product is a triple product.
Json IntermediateToJson(const v1::MultiplyReport& report) {
  if (!report.has_intermediate()) return nullptr;
  const v1::IntermediateProduct& first = report.intermediate();
  return {{"rows", first.shape().rows()},
          {"columns", first.shape().columns()},
          {"entries", first.shape().entries()},
          {"plan_reused", first.plan_reused()},
          {"estimate", EstimateToJson(first.estimate())}};
}

}  // namespace

Json MultiplyReportToJson(const v1::MultiplyReport& report) {
  return {{"device", NameOrNull(report.device())},
          {"precision", NameOrNull(EnumWord(v1::Precision_Name(report.options().precision()), "PRECISION_"))},
          {"semiring", NameOrNull(EnumWord(v1::Semiring_Name(report.options().semiring()), "SEMIRING_"))},
          {"rows", report.shape().rows()},
          {"columns", report.shape().columns()},
          {"entries", report.shape().entries()},
          {"plan_reused", report.plan_reused()},
          {"estimate", EstimateToJson(report.estimate())},
          {"intermediate", IntermediateToJson(report)},
          {"latency_ms", Latency(report.latency())}};
}

std::string JsonText(const Json& json) {
  return absl::StrCat(json.dump(2, ' ', false, Json::error_handler_t::replace), "\n");
}

}  // namespace intrawarp::cli
