// SPDX-License-Identifier: Apache-2.0
// The choice that an automatic registration makes (automatic.h), with the numbers behind it. Plain values.
#ifndef INTRAWARP_ENGINE_REGISTRATION_CHOOSE_CHOICE_H_
#define INTRAWARP_ENGINE_REGISTRATION_CHOOSE_CHOICE_H_

#include <optional>
#include <string>
#include <vector>

#include "engine/metric/metric.h"
#include "engine/quality/predicted_error.h"
#include "engine/registration/choose/intensity_relation.h"
#include "engine/registration/stage/stage.h"

namespace intrawarp {

// Why the deformable stage has these metrics to choose from.
enum class ChoiceReason {
  // 3-D, and intensities on a rising straight line: NMI and LNCC.
  kLinearIntensities,
  // 3-D, and any other relation of intensities: NMI.
  kOtherIntensities,
  // 2-D, where a local window has too few samples for LNCC: NMI.
  kPlane,
  // Too few voxels, or none that vary: NMI.
  kUnknownIntensities,
};

// An affine stage that was tried.
struct AffineTrial {
  MetricKind metric = MetricKind::kNgf;
  // By the residual probe at its result; absent with too little structure, when a budget ended the trial, and when it
  // had no result.
  std::optional<ErrorEstimate> error;
  bool has_result = false;
  // Its result, or the mean of several results, is the affine part; false for every trial after a search.
  bool is_chosen = false;
};

// A deformable stage that was tried.
struct DeformationTrial {
  MetricKind metric = MetricKind::kNmi;
  double bending_weight = 0;
  // By the residual probe at its result, and the gain that the gate judged (deformation_gate.h); absent where the probe
  // had too little structure there or at the affine result, and without a result.
  std::optional<ErrorEstimate> error;
  std::optional<double> gain;
  // The mean length of the deformation, mm; 0 where it was not judged.
  double deformation_mm = 0;
  // It is rejected, and moves the tissue further than the affine result allows (Contradicts, deformation_gate.h).
  bool contradicts = false;
  // Without a gain: true with a result, which nothing speaks against, and false without one.
  bool is_accepted = true;
  // False: its metric was undefined.
  bool has_result = true;
  // The answer's.
  bool is_chosen = false;
  // It followed a discrete search (search.h) from the start, and a stage of MIND, instead of the affine part.
  bool is_searched = false;
  // It continued the accepted deformation that was tried first.
  bool is_refinement = false;
};

struct Choice {
  // In the order in which they ran.
  std::vector<AffineTrial> affine;
  // At the affine result; absent with too few samples or a constant image there, and when a budget ended before.
  std::optional<IntensityRelation> intensities;
  ChoiceReason reason = ChoiceReason::kUnknownIntensities;
  // One to three, the first with a result; where the chosen one was not accepted, none was, and the answer is the
  // affine part in its form, unless the caller keeps deformations.
  std::vector<DeformationTrial> deformations;
  // The answer's; absent with too little structure. Its affine_expected_mm and deformation_mm are those of the chosen
  // deformation.
  std::optional<ErrorEstimate> error;
  // The gain of the chosen deformation where none was accepted.
  std::optional<double> rejected_gain;
  // It is the answer all the same.
  bool keeps_rejected = false;
  // The chosen stages as a request would name them, for images like these; of averaged affine results, the best.
  std::vector<StageOptions> stages;

  // A deformation was judged and accepted.
  bool is_deformed() const { return error.has_value() && !rejected_gain.has_value(); }
};

// The choice for people, a few sentences with its numbers.
std::string Describe(const Choice& choice);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_CHOOSE_CHOICE_H_
