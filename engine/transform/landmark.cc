// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/landmark.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

// False for NaN, too.
bool IsNear(Vec3d p) {
  return std::max({std::abs(p.x), std::abs(p.y), std::abs(p.z)}) <= kMostLandmarkCoordinate &&
         !std::isnan(p.x + p.y + p.z);
}

Vec3d InPlane(Vec3d point, const Geometry& plane) {
  const Vec3d normal{plane.direction[0][2], plane.direction[1][2], plane.direction[2][2]};
  return point - Dot(point - plane.origin, normal) * normal;
}

absl::Status Invalid(absl::string_view field, absl::string_view description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

}  // namespace

absl::Status ValidateLandmarks(absl::Span<const Landmark> landmarks) {
  if (landmarks.size() > kMaxLandmarks) {
    return Invalid("landmarks", absl::StrCat(landmarks.size(), ", must be ", kMaxLandmarks, " at most"));
  }
  for (size_t i = 0; i < landmarks.size(); ++i) {
    const Landmark& landmark = landmarks[i];
    const std::string field = absl::StrCat("landmarks[", i, "]");
    if (!IsNear(landmark.fixed) || !IsNear(landmark.moving)) {
      return Invalid(
          field, absl::StrCat("a coordinate is not finite, or further than ", kMostLandmarkCoordinate, " mm from 0"));
    }
    if (landmark.sigma_mm >= kLeastLandmarkSigma && landmark.sigma_mm <= kMostLandmarkSigma) continue;
    return Invalid(absl::StrCat(field, ".sigma_mm"),
                   absl::StrCat(landmark.sigma_mm, " is not in [", kLeastLandmarkSigma, ", ", kMostLandmarkSigma, "]"));
  }
  return absl::OkStatus();
}

double LandmarkTerm(absl::Span<const Landmark> landmarks, const AffineMap& map) {
  double sum = 0;
  for (const Landmark& landmark : landmarks) {
    const Vec3d away = map(landmark.fixed) - landmark.moving;
    sum += Dot(away, away) / (landmark.sigma_mm * landmark.sigma_mm);
  }
  return kLandmarkWeight * sum;
}

std::vector<Landmark> InPlanes(absl::Span<const Landmark> landmarks, const Geometry& fixed, const Geometry& moving) {
  std::vector<Landmark> flat;
  for (const Landmark& landmark : landmarks) {
    flat.push_back({InPlane(landmark.fixed, fixed), InPlane(landmark.moving, moving), landmark.sigma_mm});
  }
  return flat;
}

absl::StatusOr<LandmarkFit> MeasureLandmarks(const ExecContext& ctx, const Transform& transform,
                                             absl::Span<const Landmark> landmarks, double least_sigma_mm) {
  std::vector<double> points;
  for (const Landmark& landmark : landmarks) {
    for (int a = 0; a < 3; ++a) points.push_back(landmark.fixed[a]);
  }
  ArenaScope scope(ctx.arena());
  INTRAWARP_RETURN_IF_ERROR(MapPoints(ctx, transform, /*inverse=*/false, absl::MakeSpan(points)));
  LandmarkFit fit;
  for (size_t i = 0; i < landmarks.size(); ++i) {
    const Vec3d away = Vec3d{points[3 * i], points[3 * i + 1], points[3 * i + 2]} - landmarks[i].moving;
    const double distance = std::sqrt(Dot(away, away));
    fit.distance_mm.push_back(distance);
    fit.mean_mm += distance / static_cast<double>(landmarks.size());
    fit.max_mm = std::max(fit.max_mm, distance);
    fit.max_sigmas = std::max(fit.max_sigmas, distance / std::max(landmarks[i].sigma_mm, least_sigma_mm));
  }
  return fit;
}

}  // namespace intrawarp
