// SPDX-License-Identifier: Apache-2.0
#include "client/cli/verdict.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace intrawarp::cli {
namespace {

// How a cause calls its two numbers.
struct Names {
  const char* value = "value";
  const char* unit = "";
  const char* limit = "limit";
};

// The two causes whose numbers can be of two kinds tell them apart by the estimate.
bool IsOf(const v1::VerdictReason& reason, bool is_known, double number) {
  return is_known && reason.value() == number;
}

Names NamesOf(const v1::VerdictReason& reason, const v1::ErrorEstimate& error) {
  switch (reason.cause()) {
    case v1::VERDICT_CAUSE_FOLDING:
      return {"folded part"};
    case v1::VERDICT_CAUSE_LOW_OVERLAP:
      return {"overlap"};
    case v1::VERDICT_CAUSE_LATE:
      return {"late by", " ms", "allowed"};
    case v1::VERDICT_CAUSE_IMPLAUSIBLE_AFFINE:
      return {"stretch"};
    case v1::VERDICT_CAUSE_AMBIGUOUS_START:
      return {"margin"};
    case v1::VERDICT_CAUSE_MIRRORED:
      return {"gain"};
    case v1::VERDICT_CAUSE_ERROR_ABOVE_LIMIT:
      return {"expected", " mm"};
    case v1::VERDICT_CAUSE_UNRELATED_IMAGES:
      return {
          IsOf(reason, error.has_affine_agreement() && reason.value() != error.agreement(), error.affine_agreement())
              ? "agreement of the affine part"
              : "agreement"};
    case v1::VERDICT_CAUSE_DEFORMATION_REJECTED:
      return {"gained part of its way", "", "needed"};
    case v1::VERDICT_CAUSE_POSE_NOT_OBSERVED:
      return {"observability"};
    case v1::VERDICT_CAUSE_SPATIALLY_UNEVEN:
      if (IsOf(reason, error.has_worst_region_agreement(), error.worst_region_agreement())) {
        return {"agreement of the worst region"};
      }
      return {"expected in the worst region", " mm"};
    case v1::VERDICT_CAUSE_BOUND_ABOVE_LIMIT:
      return {"bound", " mm"};
    case v1::VERDICT_CAUSE_UNITS_DIFFER:
      return {"ratio of the extents"};
    case v1::VERDICT_CAUSE_NO_GAIN:
      return {"gained part of the way", "", "needed"};
    case v1::VERDICT_CAUSE_NOT_CORRELATED:
      return {"correlation", "", "needed"};
    case v1::VERDICT_CAUSE_PARTLY_VISIBLE:
      return {"visible part", "", "needed"};
    case v1::VERDICT_CAUSE_LANDMARKS_MISSED:
      return {"distance", " sigmas"};
    case v1::VERDICT_CAUSE_MISSING_TISSUE:
      return {"missing part"};
    case v1::VERDICT_CAUSE_TURNED:
      return {"angle", " degrees"};
    default:
      return {};
  }
}

std::string Mm(double mm) { return std::isfinite(mm) ? absl::StrFormat("%.3g mm", mm) : "unknown"; }

std::string Tail(const std::vector<std::string>& reasons) {
  return reasons.empty() ? "" : absl::StrCat(": ", absl::StrJoin(reasons, "; "));
}

}  // namespace

bool IsOk(const v1::Report& report) { return report.verdict() == v1::VERDICT_OK; }

std::string VerdictWord(const v1::Report& report) {
  switch (report.verdict()) {
    case v1::VERDICT_OK:
      return "ok";
    case v1::VERDICT_REVIEW:
      return "review";
    default:
      return "unknown";
  }
}

std::string CauseWord(v1::VerdictCause cause) {
  const std::string& name = v1::VerdictCause_Name(cause);
  if (cause == v1::VERDICT_CAUSE_UNSPECIFIED) return "";
  return absl::AsciiStrToLower(absl::StripPrefix(name, "VERDICT_CAUSE_"));
}

std::string ReasonText(const v1::VerdictReason& reason, const v1::Report& report) {
  const std::string text = reason.message().empty() ? CauseWord(reason.cause()) : reason.message();
  const Names names = NamesOf(reason, report.error());
  std::vector<std::string> numbers;
  if (reason.has_value()) numbers.push_back(absl::StrFormat("%s %.3g%s", names.value, reason.value(), names.unit));
  if (reason.cause() == v1::VERDICT_CAUSE_UNRELATED_IMAGES && report.has_error()) {
    numbers.push_back(absl::StrFormat("chance %.3g", report.error().chance()));
  }
  if (reason.has_limit()) numbers.push_back(absl::StrFormat("%s %.3g%s", names.limit, reason.limit(), names.unit));
  return numbers.empty() ? text : absl::StrCat(text, " (", absl::StrJoin(numbers, ", "), ")");
}

std::vector<std::string> ReasonTexts(const v1::Report& report) {
  std::vector<std::string> texts;
  for (const v1::VerdictReason& reason : report.reasons()) texts.push_back(ReasonText(reason, report));
  return texts;
}

std::string ExpectedErrorText(const v1::Report& report) {
  if (!report.has_error()) return "expected error unknown";
  std::string text =
      absl::StrCat("expected error ", Mm(report.error().expected_mm()), ", bound ", Mm(report.error().bound_mm()));
  if (report.options().has_error_limit_mm()) absl::StrAppend(&text, ", limit ", Mm(report.options().error_limit_mm()));
  return text;
}

std::string SlidingText(const v1::Report& report) {
  std::string text;
  for (const v1::StageReport& stage : report.stages()) {
    if (!stage.has_second_layer_fraction()) continue;
    const double fraction = stage.second_layer_fraction();
    text = fraction > 0 ? absl::StrFormat("two layers; the second one has %.3g %% of the voxels", 100 * fraction)
                        : "one layer; ffd without --sliding has the same result";
  }
  return text;
}

std::string VerdictLine(const v1::Report& report) {
  return absl::StrCat("verdict: ", VerdictWord(report), Tail(ReasonTexts(report)), "; ", ExpectedErrorText(report));
}

}  // namespace intrawarp::cli
