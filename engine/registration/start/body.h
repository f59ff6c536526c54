// SPDX-License-Identifier: Apache-2.0
// The body of an image (the voxels that differ from its surroundings) as a few hundred points on the host, and how much
// of one body another image covers. Plain values; thread-compatible.
#ifndef INTRAWARP_ENGINE_REGISTRATION_START_BODY_H_
#define INTRAWARP_ENGINE_REGISTRATION_START_BODY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/image/pyramid.h"
#include "engine/registration/stage/mask_levels.h"

namespace intrawarp {

struct Body {
  Geometry grid;
  AffineMap to_index;
  // The voxels of the grid that count; empty: every voxel.
  std::vector<uint8_t> mask;
  // LPS mm; about 400 at most, evenly taken in the order of the voxels.
  std::vector<Vec3d> points;
};

// The body at one level of an image: the voxels in the mask whose distance to the background is more than a tenth of
// the image's range, as for the centre of mass (statistics.h). Waits for the stream.
absl::StatusOr<Body> ReadBody(const ExecContext& ctx, const PreparedImage& image, int level, const MaskLevel& mask);

// The part of `points` that `map` takes to voxels that count in `other`, 0 to 1; 0 without points.
double CoveredFraction(const std::vector<Vec3d>& points, const AffineMap& map, const Body& other);

// The mean distance of a(p) and b(p) over `points`, mm; 0 without points.
double MeanDistance(const std::vector<Vec3d>& points, const AffineMap& a, const AffineMap& b);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_START_BODY_H_
