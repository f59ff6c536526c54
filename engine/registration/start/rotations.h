// SPDX-License-Identifier: Apache-2.0
// Coverings of the rotations of space and of the plane: sets that every rotation is near to. Plain values, pure
// functions.
#ifndef INTRAWARP_ENGINE_REGISTRATION_START_ROTATIONS_H_
#define INTRAWARP_ENGINE_REGISTRATION_START_ROTATIONS_H_

#include <vector>

#include "engine/geometry/vec.h"

namespace intrawarp {

// A unit quaternion; q and -q are the same rotation.
struct Quaternion {
  double w = 1, x = 0, y = 0, z = 0;

  friend double Dot(const Quaternion& a, const Quaternion& b) { return a.w * b.w + a.x * b.x + a.y * b.y + a.z * b.z; }
};

// The rotation as an affine map about the origin.
AffineMap RotationMap(const Quaternion& q);
// The angle of the rotation, in degrees, 0 to 180.
double RotationAngle(const Quaternion& q);

// The rotation by `degrees` about a unit vector, and the rotation `a` after `b`.
Quaternion RotationAbout(Vec3d axis, double degrees);
Quaternion Multiply(const Quaternion& a, const Quaternion& b);

// The rotations of the cube and of the icosahedron, 72 with the identity first. Every rotation is within 45 degrees of
// one of them.
const std::vector<Quaternion>& CoarseRotations();
// The centres of the cells of the 600-cell, whose vertices are the rotations of the icosahedron, but for those among
// CoarseRotations: 288. Every rotation is within 27.8 degrees of one of both sets (Karney 2007, "Quaternions in
// molecular modeling", c600vc: 27.78).
const std::vector<Quaternion>& FineRotations();
// Turns of the plane about `normal` by multiples of 15 degrees, the identity first: 24.
std::vector<Quaternion> PlaneRotations(Vec3d normal);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_START_ROTATIONS_H_
