// SPDX-License-Identifier: Apache-2.0
// The rigid and the affine method: Gauss-Newton from the coarsest level to the finest (Tramnitzke 2014, "GPU based
// affine linear image registration", master's thesis, University of Luebeck, algorithm 1). Both run from each of their
// starts at the coarsest level, and go on with the best.
//
// Values are in the optimiser's unit, where a bad start is about 1: NGF, NMI and LNCC as they are, SSD in variances of
// the fixed image. Reports give SSD in the images' own intensities.
#ifndef INTRAWARP_ENGINE_REGISTRATION_AFFINE_H_
#define INTRAWARP_ENGINE_REGISTRATION_AFFINE_H_

#include "engine/registration/method.h"

namespace intrawarp {

// run: FAILED_PRECONDITION when there is no objective at the finest level: too little overlap, no gradients in it
// (NGF), an image that is constant in it (NMI, LNCC), or sums that overflow. The result's value is absent when a budget
// ended the stage before the finest level.
extern const Method kRigidMethod;
extern const Method kAffineMethod;

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_AFFINE_H_
