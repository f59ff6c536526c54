// SPDX-License-Identifier: Apache-2.0
// Images that are made with a known transform between them.
#ifndef INTRAWARP_TESTS_SERVER_BLOBS_H_
#define INTRAWARP_TESTS_SERVER_BLOBS_H_

#include <vector>

#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"

namespace intrawarp::server {

// A few soft blobs at fixed places of the grid's domain seen through `map`: image(p) = blobs(map(p)). An image made
// with T and one made with the identity, on whatever grids, are registered by T. `center` and `scale` are in mm.
std::vector<float> Blobs(const Geometry& grid, const Vec3d& center, double scale, const AffineMap& map);

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_BLOBS_H_
