// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/choose/choice.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace intrawarp {
namespace {

std::string DescribeAffine(const Choice& choice) {
  std::vector<std::string> chosen, others;
  for (const AffineTrial& trial : choice.affine) {
    const std::string name(MetricName(trial.metric));
    const std::string error = trial.error ? absl::StrFormat("expected error %.2f mm, agreement %.2f",
                                                            trial.error->expected_mm, trial.error->agreement)
                                          : "error unknown";
    if (trial.is_chosen) {
      chosen.push_back(absl::StrCat(name, " (", error, ")"));
    } else {
      others.push_back(trial.has_result ? absl::StrCat(name, ": ", error) : absl::StrCat(name, ": no result"));
    }
  }
  if (chosen.empty()) {
    return absl::StrCat("The deformation begins at the start of the registration instead of an affine stage (",
                        absl::StrJoin(others, "; "), ").");
  }
  std::string text =
      absl::StrCat(chosen.size() > 1 ? "The affine part is the mean of those of " : "The affine stage uses ",
                   absl::StrJoin(chosen, " and "));
  if (!others.empty()) absl::StrAppend(&text, " rather than ", absl::StrJoin(others, "; "));
  return absl::StrCat(text, ".");
}

std::string DescribeReason(const Choice& choice) {
  const std::optional<IntensityRelation>& r = choice.intensities;
  const std::string numbers =
      r ? absl::StrFormat("correlation %.2f, correlation ratio %.2f", r->correlation, r->correlation_ratio) : "unknown";
  switch (choice.reason) {
    case ChoiceReason::kLinearIntensities:
      return absl::StrCat("The intensities lie on a rising straight line (", numbers, "), which suits nmi and lncc.");
    case ChoiceReason::kOtherIntensities:
      return absl::StrCat("The intensities do not lie on a rising straight line (", numbers, "), which suits nmi.");
    case ChoiceReason::kPlane:
      return "The images are 2-D, which suits nmi.";
    case ChoiceReason::kUnknownIntensities:
      return "The intensities could not be compared, so nmi is tried.";
  }
  return "";
}

std::string DescribeDeformation(const DeformationTrial& trial) {
  const std::string name =
      absl::StrFormat("The deformation of %s with bending weight %g%s", MetricName(trial.metric), trial.bending_weight,
                      trial.is_searched     ? " after a search"
                      : trial.is_refinement ? " after nmi"
                                            : "");
  if (!trial.has_result) return absl::StrCat(name, " has no result.");
  if (!trial.gain.has_value()) return absl::StrCat(name, " could not be judged.");
  if (trial.contradicts) {
    return absl::StrFormat(
        "%s was rejected: it moves the tissue by %.2f mm, which contradicts what was seen of the affine part.", name,
        trial.deformation_mm);
  }
  const char* fate = !trial.is_accepted ? "rejected" : trial.is_chosen ? "chosen" : "accepted, but behind";
  return absl::StrFormat(
      "%s was %s: it moves the tissue by %.2f mm with a gain of %.2f, to an expected error of %.2f mm.", name, fate,
      trial.deformation_mm, *trial.gain, trial.error->expected_mm);
}

}  // namespace

std::string Describe(const Choice& choice) {
  std::vector<std::string> sentences = {DescribeAffine(choice), DescribeReason(choice)};
  for (const DeformationTrial& trial : choice.deformations) sentences.push_back(DescribeDeformation(trial));
  if (choice.keeps_rejected) {
    sentences.emplace_back("The caller keeps the deformation all the same.");
  } else if (choice.rejected_gain.has_value()) {
    sentences.emplace_back("The answer is the affine part alone.");
  }
  return absl::StrJoin(sentences, " ");
}

}  // namespace intrawarp
