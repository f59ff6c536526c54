// SPDX-License-Identifier: Apache-2.0
// Pairs of points that belong together, as a surgeon knows them, each with its uncertainty. Every method of
// registration takes them as a term beside the images (registration/registration.h); a point that must not move is a
// pair of equal points.
//
// The term of n landmarks is kLandmarkWeight * sum |T(f) - m|^2 / s^2, in the unit of the metrics, where a bad start is
// about 1. It is a sum, so that another landmark makes no other weaker. All types are plain values.
#ifndef INTRAWARP_ENGINE_TRANSFORM_LANDMARK_H_
#define INTRAWARP_ENGINE_TRANSFORM_LANDMARK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// The point `fixed` of the fixed image belongs to the point `moving` of the moving one; LPS mm. `sigma_mm` is the
// standard deviation of their distance along each axis, with which both were picked.
struct Landmark {
  Vec3d fixed;
  Vec3d moving;
  double sigma_mm = 1;
};

inline constexpr int kMaxLandmarks = 256;
inline constexpr double kLeastLandmarkSigma = 0.1, kMostLandmarkSigma = 100;
// Chosen before it was tried on images. On the livers an FFD then meets landmarks of 1.15 mm to 0.3 mm on the average
// (docs/evidence/accuracy.md, Landmarks).
inline constexpr double kLandmarkWeight = 5e-4;

// How far around a landmark the methods without a spline let it pull: as (1 - (d / kLandmarkReachMm)^2)^3 at a distance
// of d mm.
inline constexpr double kLandmarkReachMm = 25;

// The largest coordinate in mm. Patients are smaller.
inline constexpr double kMostLandmarkCoordinate = 1e7;

// INVALID_ARGUMENT naming "landmarks" or an element of it: more than kMaxLandmarks, a coordinate that is not finite or
// further than kMostLandmarkCoordinate from 0, a sigma out of its range.
absl::Status ValidateLandmarks(absl::Span<const Landmark> landmarks);

// The term (above) of an affine map.
double LandmarkTerm(absl::Span<const Landmark> landmarks, const AffineMap& map);

// Landmarks for the registration of a plane to a plane, whose normals are not moved: each point is moved to the
// plane of its image along the normal. Both images are 2-D.
std::vector<Landmark> InPlanes(absl::Span<const Landmark> landmarks, const Geometry& fixed, const Geometry& moving);

// How well a transform agrees with landmarks.
struct LandmarkFit {
  // |T(f) - m| of each, in their order.
  std::vector<double> distance_mm;
  double mean_mm = 0;
  double max_mm = 0;
  // The largest distance in sigmas of its landmark, where sigma is at least `least_sigma_mm`.
  double max_sigmas = 0;
};

// Not for an empty list. Waits for the stream. Workspace: MapPointsWorkspaceBytes.
absl::StatusOr<LandmarkFit> MeasureLandmarks(const ExecContext& ctx, const Transform& transform,
                                             absl::Span<const Landmark> landmarks, double least_sigma_mm);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_LANDMARK_H_
