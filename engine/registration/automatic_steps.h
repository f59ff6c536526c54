// SPDX-License-Identifier: Apache-2.0
// The steps of an automatic registration (automatic.h), and any registration's step in words. Thread-safe functions.
#ifndef INTRAWARP_ENGINE_REGISTRATION_AUTOMATIC_STEPS_H_
#define INTRAWARP_ENGINE_REGISTRATION_AUTOMATIC_STEPS_H_

#include <string>

#include "engine/device/exec_context.h"
#include "engine/metric/metric.h"
#include "engine/registration/registration.h"

namespace intrawarp {

// In the order in which they run, and the Progress.stage of each. The images decide which of them run, so that numbers
// may be left out, and none comes twice. The wire has the same numbers (Progress in registration.proto).
enum class AutomaticStep {
  kAffineNgf,
  kAffineNmi,
  kAffineSsd,
  kDeformation,        // ffd with NMI
  kSearch,             // a discrete search from the start
  kFeatures,           // ffd with MIND, after the search
  kDetailAfterSearch,  // ffd with LNCC
  kDetail,             // ffd with LNCC, after NMI
  kLocalDeformation,   // ffd with LNCC from the affine part
  kStrongBending,      // ffd with NMI
};
inline constexpr int kAutomaticSteps = 10;

// The affine trial with this metric, which is one of kAffineTrials or kPlaneTrials (automatic_rules.h).
AutomaticStep AffineStep(MetricKind metric);

// The step that `progress` tells of, for people: "ffd, level 1 of 3", "before the first stage".
std::string StepText(const RegistrationInput& input, const Progress& progress);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_AUTOMATIC_STEPS_H_
