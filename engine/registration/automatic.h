// SPDX-License-Identifier: Apache-2.0
// The registration that chooses: an affine stage and one or two ffd stages, or a search and two ffd stages, whose
// metrics, weights and grids follow from the images. There are few of each, so that the most that result and workspace
// take is known before.
//
// - The start is searched once, with NGF (starts.h), unless one is given.
// - The affine stage runs with every metric of kAffineTrials (in 2-D of kPlaneTrials) from that start. The residual
//   probe, which no metric can deceive, picks the result with the smallest expected error; the first in the list, NGF,
//   stays where another is ahead by less than kClearlySmaller. Results that are not clearly behind it and lie within
//   kOneMapNodes of it, in the mean over the blocks of the probe, are estimates of one map, whose errors differ with
//   their metrics: their mean is the affine part, unless the probe finds it clearly worse.
// - The first deformable stage uses NMI. In 3-D, where the intensities at the affine result lie on a rising straight
// line
//   (linearity of kLeastLinearity or more), LNCC is tried, too. Where NMI's deformation was accepted and leaves much
//   (TakesSearch), a discrete search (search.h) from the start is followed by MIND and by LNCC on a finer grid
//   (kFineSpacingVox): tissue that slides along other tissue is further from the affine map of the whole body than from
//   the start. That result leads by SearchLeads. Otherwise LNCC continues NMI's deformation at the finest level, on
//   that grid, and leads by RefinementLeads. Where NMI's deformation was rejected, LNCC runs from the affine part.
// - The deformation gate (JudgeDeformation, deformation_gate.h) judges each deformation, and knows whether a straight
//   line fits the intensities (kMostLackOfFit). Where the affine result does not agree yet (kAgreedAlready), NMI with
//   kStrongBending follows on rejected deformations. Without an accepted one the answer is the affine part, or, with
//   keep_deformation, the one that is ahead.
// - Search, LNCC and strong bending are optional: where such a trial has no result (FAILED_PRECONDITION), the earlier
//   one stays.
// - A budget that ends a trial, whichever it is, leaves trials untried: the answer's stop_reason is kBudget.
//
// automatic_rules.h has the rules as functions, automatic_steps.h the trials as steps of Progress, and
// docs/evidence/accuracy.md the figures behind the rules.
#ifndef INTRAWARP_ENGINE_REGISTRATION_AUTOMATIC_H_
#define INTRAWARP_ENGINE_REGISTRATION_AUTOMATIC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/registration/registration.h"

namespace intrawarp {

// These take an input with `automatic`, for RegistrationWorkspaceBytes and Register (registration.h), which say what
// they do and what they return. The workspace suffices for the chosen stages by name, too.
int64_t AutomaticWorkspaceBytes(const Device& device, const RegistrationInput& input);
// RegistrationResultBytes and RegistrationMemoryBytes of an automatic registration.
int64_t AutomaticResultBytes(const Geometry& fixed);
int64_t AutomaticTransformBytes(const Geometry& fixed);
absl::StatusOr<RegistrationResult> RegisterAutomatically(const ExecContext& ctx, const RegistrationInput& input,
                                                         const RegistrationImages& images);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_AUTOMATIC_H_
