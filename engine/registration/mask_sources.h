// SPDX-License-Identifier: Apache-2.0
// The parts of a registration's input that say how much the voxels of each image count.
#ifndef INTRAWARP_ENGINE_REGISTRATION_MASK_SOURCES_H_
#define INTRAWARP_ENGINE_REGISTRATION_MASK_SOURCES_H_

#include "engine/registration/registration.h"
#include "engine/registration/stage/mask_levels.h"

namespace intrawarp {

// The sources refer to what the input refers to.
inline MaskSources FixedMaskSources(const RegistrationInput& input) {
  return {input.fixed_mask, input.fixed_weight, input.left_out};
}
inline MaskSources MovingMaskSources(const RegistrationInput& input) {
  return {input.moving_mask, input.moving_weight, nullptr};
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_MASK_SOURCES_H_
