// SPDX-License-Identifier: Apache-2.0
// A registration with its verdict: what the server does for every request, for whoever embeds the engine.
//
// Register (registration.h) only says what it found. RegisterAndAssess also says whether to trust it: the residual
// probe predicts the error, the gate takes out a deformation that it does not believe, and similarity, Jacobian and the
// reasons for a review are measured on the transform that is left.
#ifndef INTRAWARP_ENGINE_REGISTRATION_ASSESS_H_
#define INTRAWARP_ENGINE_REGISTRATION_ASSESS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/quality/jacobian.h"
#include "engine/quality/verdict.h"
#include "engine/registration/registration.h"
#include "engine/schedule/latency.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// How closely a result is looked at (residual_probe.h).
enum class Scrutiny {
  // A full probe before on_transform: a deformation that it does not believe is taken out (deformation_gate.h).
  kFull,
  // A probe of kFrameProbeNodes after on_transform, on which only the verdict depends.
  kFrame,
};

// The places where the predicted error is wanted, besides its figures over the region of interest.
struct ErrorOutput {
  bool map = false;
  // LPS mm.
  std::vector<Vec3d> points;
};

struct AssessOptions {
  Scrutiny scrutiny = Scrutiny::kFull;
  // The expected error, in mm, above which the verdict is review.
  double error_limit_mm = kDefaultErrorLimitMm;
  ErrorOutput error = {};
};

// Called on the caller's thread, each once and in this order; any of them may be unset. An error ends the registration
// with that error.
struct RegistrationHooks {
  // Before the first evaluation: a budget that the context's checkpoint watches begins here.
  std::function<absl::Status()> on_start = nullptr;
  // After the last evaluation, before anything is judged.
  std::function<absl::Status(const RegistrationResult& result)> on_optimised = nullptr;
  // The transform is final; what is left only measures it, so that it may be sent meanwhile.
  std::function<absl::Status(const Transform& transform)> on_transform = nullptr;
};

struct AssessedRegistration {
  RegistrationResult result;
  // Its verdict is ok unless NeedsReview(quality.review_reasons).
  QualityReport quality;
};

// Registers the images and judges the result, both through the images' windows (image/window.h). Adds to the phases
// optimise and assess of `latency`, which may be null. Looks at ctx.Checkpoint as Register does, and between the passes
// of the assessment. Errors: the errors of Register and of the hooks, FAILED_PRECONDITION when the optimiser diverged
// (HasDiverged), CANCELLED. Waits for the stream.
absl::StatusOr<AssessedRegistration> RegisterAndAssess(const ExecContext& ctx, const RegistrationInput& input,
                                                       const AssessOptions& options = {},
                                                       const RegistrationHooks& hooks = {},
                                                       LatencyBreakdown* latency = nullptr);

// Device memory that RegisterAndAssess takes from the arena of a context on `device`, for a valid input, besides that
// of its hooks, which run within the arena's first WindowBytes.
int64_t AssessedWorkspaceBytes(const Device& device, const RegistrationInput& input);
// What is taken while the hooks run: both images through their windows.
int64_t WindowBytes(const RegistrationInput& input);

// The affine part is not finite, or has no inverse.
bool HasDiverged(const RegistrationResult& result);

// |A^-1(A(p)) - p| over the corners of the grid's domain.
InverseConsistency AffineInverseConsistency(const AffineMap& map, const Geometry& grid);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_ASSESS_H_
