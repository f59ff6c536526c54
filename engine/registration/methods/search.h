// SPDX-License-Identifier: Apache-2.0
// The discrete search as a method of the pipeline: a deformation that is found without a start of its own, by comparing
// every place of the fixed image with all places of the moving one within reach. It sees structure instead of
// intensities, so that the images may be of any modality, and finds motions of several centimetres. It is coarse: a
// start for ffd (ffd.h).
//
// Descriptors of both images (feature/descriptor.h), the moving one through the affine map of the start, are pooled
// over nodes (search/feature_grids.h); displacements of the nodes are searched in both directions
// (search/discrete_search.h) and made consistent, which takes out what only one direction sees (search/node_field.h).
// The result is the control grid of the nodes, smoothed where it folds. A control grid or a velocity that it could
// continue is left out of account: that is its purpose.
//
// Its objective is the mean squared distance of the pooled descriptors, over the nodes that have them in both images:
// about 1 for images that have nothing to do with each other.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_SEARCH_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_SEARCH_H_

#include "engine/registration/methods/method.h"

namespace intrawarp {

extern const Method kSearchMethod;

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_SEARCH_H_
