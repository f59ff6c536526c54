// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/automatic_steps.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace intrawarp {
namespace {

constexpr std::array<absl::string_view, kAutomaticSteps> kNames = {"affine (ngf)",
                                                                   "affine (nmi)",
                                                                   "affine (ssd)",
                                                                   "ffd (nmi)",
                                                                   "search",
                                                                   "ffd (mind) after search",
                                                                   "ffd (lncc) after search",
                                                                   "ffd (lncc) after nmi",
                                                                   "ffd (lncc)",
                                                                   "ffd (nmi, strong bending)"};

std::string NameOf(const RegistrationInput& input, int stage) {
  if (input.automatic && stage < kAutomaticSteps) return std::string(kNames[stage]);
  if (!input.automatic && stage < static_cast<int>(input.stages.size())) {
    return std::string(MethodName(input.stages[stage]));
  }
  return absl::StrCat("stage ", stage + 1);
}

}  // namespace

AutomaticStep AffineStep(MetricKind metric) {
  if (metric == MetricKind::kNgf) return AutomaticStep::kAffineNgf;
  return metric == MetricKind::kNmi ? AutomaticStep::kAffineNmi : AutomaticStep::kAffineSsd;
}

std::string StepText(const RegistrationInput& input, const Progress& progress) {
  if (progress.stage < 0) return "before the first stage";
  return absl::StrCat(NameOf(input, progress.stage), ", level ", progress.level + 1, " of ", progress.levels);
}

}  // namespace intrawarp
