// SPDX-License-Identifier: Apache-2.0
// Checks of a registration before it starts. Every error that is about a field names it (field_error.h), with
// the path relative to RegistrationInput: "stages[0].levels", "fixed_mask". Thread safety: these are pure functions.
#ifndef INTRAWARP_ENGINE_REGISTRATION_VALIDATE_H_
#define INTRAWARP_ENGINE_REGISTRATION_VALIDATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/registration/registration.h"

namespace intrawarp {

// Finds every error that can be known before work starts.
// INVALID_ARGUMENT: no stage or too many; an option out of range; another method after a deformable stage; a mask or
// weights on another grid; weights below 0 or above 1; an initial matrix that is not finite or singular; 2-D images
// with planes that are not parallel; a slice as the moving image of a volume. UNIMPLEMENTED: a deformable stage, or
// find_missing_tissue, for a slice and a volume; a metric that the method lacks; a start from a displacement field, or
// of one deformable method from the result of the other. FAILED_PRECONDITION: a constant image; a slice of fewer than 8
// pixels along an axis; NGF on a fixed image with an axis of two voxels; NMI on an image with fewer voxels than bins.
absl::Status ValidateRegistration(const RegistrationInput& input);

// FAILED_PRECONDITION, naming `field` (an image or a mask): a stage's histogram would have more bins than there are
// samples, and so say nothing.
absl::Status ValidateSamples(const RegistrationInput& input, absl::string_view field, int64_t samples);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_VALIDATE_H_
