// SPDX-License-Identifier: Apache-2.0
// Solids as functions of position: distances in mm to their surfaces, negative inside; to first order where the exact
// distance has no closed form. Immutable values, so thread-safe.
#ifndef INTRAWARP_CLIENT_PHANTOM_SHAPES_H_
#define INTRAWARP_CLIENT_PHANTOM_SHAPES_H_

#include <cstdint>
#include <functional>

#include "client/phantom/anatomy.h"
#include "engine/geometry/vec.h"

namespace intrawarp::phantom {

using Distance = std::function<double(Vec3d)>;

Distance Ball(Vec3d center, double radius);
// A ball whose surface bulges and dents by up to a quarter of its radius; its mean width is 2 * radius.
Distance LobedBall(Vec3d center, double radius, uint64_t seed);
// A cylinder from end to end.
Distance Rod(Vec3d from, Vec3d to, double radius);
// A plate around `center`: `across` its thickness / 2 along the unit vector `normal`, `half_width` square.
Distance Plate(Vec3d center, Vec3d normal, double across, double half_width);

double Length(Vec3d v);
Vec3d Unit(Vec3d v);
Vec3d RandomDirection(UniformRandom& random);

}  // namespace intrawarp::phantom

#endif  // INTRAWARP_CLIENT_PHANTOM_SHAPES_H_
