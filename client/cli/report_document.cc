// SPDX-License-Identifier: Apache-2.0
#include "client/cli/report_document.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace intrawarp::cli {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

const Json& At(const Json& json, const std::string& path) {
  static const Json* const null = new Json(nullptr);
  const Json::json_pointer pointer(path);
  return json.contains(pointer) ? json.at(pointer) : *null;
}

// Numbers with four digits, texts without quotes, "-" for what is undefined.
std::string Shown(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return absl::StrFormat("%.4g", value.get<double>());
  return value.dump();
}

std::string WithUnit(const Json& value, const std::string& unit) {
  return value.is_null() ? "-" : absl::StrCat(Shown(value), unit);
}

Rows ErrorRows(const Json& report) {
  if (At(report, "/predicted_error_mm").is_null()) {
    return {{"expected error", "not predicted: the images have too little structure"}};
  }
  const auto mm = [&](const char* name) {
    return WithUnit(At(report, absl::StrCat("/predicted_error_mm/", name)), " mm");
  };
  return {{"expected error", mm("expected")},
          {"bound of 95 % of errors", mm("bound")},
          {"95th percentile of the bounds", mm("bound_p95")},
          {"largest bound", mm("bound_max")},
          {"part of the image that was judged", Shown(At(report, "/predicted_error_mm/judged_fraction"))}};
}

Rows SimilarityRows(const Json& report) {
  Rows rows;
  for (const char* name : {"ncc", "nmi", "ssim", "mse", "mae"}) {
    rows.emplace_back(name, absl::StrCat(Shown(At(report, absl::StrCat("/similarity/before/", name))), " before, ",
                                         Shown(At(report, absl::StrCat("/similarity/after/", name))), " after"));
  }
  rows.emplace_back("overlap", Shown(At(report, "/overlap")));
  return rows;
}

Rows DeformationRows(const Json& report) {
  Rows rows = {{"smallest Jacobian determinant", Shown(At(report, "/jacobian/min"))},
               {"largest Jacobian determinant", Shown(At(report, "/jacobian/max"))},
               {"part of it that folds", Shown(At(report, "/jacobian/nonpositive_fraction"))},
               {"inverse consistency, mean", WithUnit(At(report, "/inverse_consistency_mm/mean"), " mm")},
               {"inverse consistency, largest", WithUnit(At(report, "/inverse_consistency_mm/max"), " mm")}};
  int number = 0;
  for (const Json& row : At(report, "/matrix")) {
    std::string text;
    for (const Json& v : row) absl::StrAppend(&text, text.empty() ? "" : "  ", Shown(v));
    rows.emplace_back(absl::StrCat("affine part, row ", ++number), text);
  }
  return rows;
}

Rows StageRows(const Json& report) {
  Rows rows = {{"method", Shown(At(report, "/method"))},
               {"device", Shown(At(report, "/device"))},
               {"stop reason", Shown(At(report, "/stop_reason"))}};
  if (!At(report, "/choice/text").is_null()) rows.emplace_back("choice", Shown(At(report, "/choice/text")));
  for (const Json& stage : At(report, "/stages")) {
    for (const Json& level : At(stage, "/levels")) {
      rows.emplace_back(
          absl::StrCat(Shown(At(stage, "/name")), ", ", Shown(At(stage, "/metric")), ", ",
                       absl::StrReplaceAll(Shown(At(level, "/size")), {{",", "x"}, {"[", ""}, {"]", ""}})),
          absl::StrCat(Shown(At(level, "/iterations")), " iterations, value ", Shown(At(level, "/value_before")),
                       " to ", Shown(At(level, "/value_after"))));
    }
    const Json& second = At(stage, "/second_layer_fraction");
    if (!second.is_null()) rows.emplace_back("part of the image in the second layer", Shown(second));
  }
  return rows;
}

Rows TimingRows(const Json& report) {
  Rows rows;
  for (const auto& [phase, ms] : At(report, "/latency_ms").items()) {
    rows.emplace_back(phase, ms.is_number() ? absl::StrFormat("%.1f ms", ms.get<double>()) : "-");
  }
  return rows;
}

bool NamesResource(const std::string& text) {
  return absl::StrContains(text, "volumes/") || absl::StrContains(text, "transforms/");
}

Rows OptionRows(const Json& report) {
  Rows rows;
  const Json& options = At(report, "/options");
  if (!options.is_object()) return rows;
  const Json flat = options.flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string shown = Shown(value);
    if (NamesResource(shown)) shown = "given";
    rows.emplace_back(absl::StrReplaceAll(path.substr(1), {{"/", "."}}), std::move(shown));
  }
  return rows;
}

}  // namespace

io::ReportDocument ReportDocumentOf(const Json& report) {
  io::ReportDocument document;
  document.title = kReportTitle;
  document.is_good = At(report, "/verdict") == "ok";
  document.verdict = document.is_good ? "Verdict: ok" : "Verdict: review before use";
  for (const Json& reason : At(report, "/reasons")) document.remarks.push_back(absl::StrCat("- ", Shown(reason)));
  document.sections = {{"Expected error", ErrorRows(report)},
                       {"Similarity", SimilarityRows(report)},
                       {"Transform (fixed to moving, LPS mm)", DeformationRows(report)},
                       {"Computation", StageRows(report)},
                       {"Timings", TimingRows(report)},
                       {"Options", OptionRows(report)}};
  return document;
}

}  // namespace intrawarp::cli
