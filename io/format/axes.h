// SPDX-License-Identifier: Apache-2.0
// Grids from the vectors that headers state: one vector an index axis, in physical space. Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_AXES_H_
#define INTRAWARP_IO_FORMAT_AXES_H_

#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"

namespace intrawarp::io {

// The grid whose index axis a goes `axes[a]` (LPS mm) from one voxel to the next. In an image with one slice a third
// axis of length 0 becomes the normal of the plane, 1 mm. Directions that are orthonormal to kDirectionTolerance are
// made exactly orthonormal (the nearest rotation or reflection). INVALID_ARGUMENT "spacing: ...", "direction: ..." and
// so on, as ValidateGeometry has them.
absl::StatusOr<Geometry> GeometryFromAxes(Int3 size, const Vec3d (&axes)[3], Vec3d origin);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_AXES_H_
