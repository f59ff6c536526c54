// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/slice_pose.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/status_macros.h"
#include "engine/registration/affine.h"
#include "engine/registration/rotations.h"

namespace intrawarp {
namespace {

// Smaller rises are rounding and noise.
constexpr double kLeastRise = 1e-4;

Vec3d Axis(const Geometry& g, int axis) { return {g.direction[0][axis], g.direction[1][axis], g.direction[2][axis]}; }

double StepMm(const Geometry& slice, const Geometry& volume) {
  const double pixel = VoxelScale(slice), thickness = slice.spacing.z;
  const double side = std::max({volume.spacing.x, volume.spacing.y, volume.spacing.z});
  return std::max({2 * pixel, 1.5 * side, thickness});
}

AffineMap Shift(Vec3d by) {
  AffineMap map = AffineMap::Identity();
  for (int r = 0; r < 3; ++r) map.m[r][3] = by[r];
  return map;
}

AffineMap TurnAbout(Vec3d center, Vec3d axis, double degrees) {
  AffineMap turn = RotationMap(RotationAbout(axis, degrees));
  const Vec3d shift = center - turn.Linear(center);
  for (int r = 0; r < 3; ++r) turn.m[r][3] = shift[r];
  return turn;
}

// The angle about one axis of the slice that moves its pixels by `step` in the root mean square.
double TiltDegrees(double length, double step) {
  const double distance = std::max(length / std::sqrt(12.0), step);
  return std::asin(step / distance) * 180 / M_PI;
}

class Neighbours {
 public:
  Neighbours(const ExecContext& ctx, const RegistrationImages& images, MetricKind metric, const AffineMap& map)
      : ctx_(ctx), images_(WithoutLandmarks(images)), metric_(metric), map_(map) {}

  absl::StatusOr<std::optional<double>> Value(const AffineMap& moved) const {
    INTRAWARP_ASSIGN_OR_RETURN(const SampledValue value,
                               AffineValue(ctx_, {images_, metric_, 0}, Compose(map_, moved)));
    return value.value;
  }

  // The smaller rise of the slice's movements `there` and `back`.
  absl::StatusOr<double> Rise(double value, const AffineMap& there, const AffineMap& back) const {
    INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> a, Value(there));
    INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> b, Value(back));
    double least = std::numeric_limits<double>::infinity();
    if (a.has_value()) least = *a;
    if (b.has_value()) least = std::min(least, *b);
    return std::isfinite(least) ? std::max(0.0, least - value) : 0.0;
  }

 private:
  const ExecContext& ctx_;
  const RegistrationImages images_;
  const MetricKind metric_;
  const AffineMap& map_;
};

}  // namespace

double SlicePose::Observability() const {
  if (!(in_plane_rise > kLeastRise)) return 0;
  return std::clamp(std::min(offset_rise, tilt_rise) / in_plane_rise, 0.0, 1.0);
}

absl::StatusOr<std::optional<SlicePose>> ObserveSlicePose(const ExecContext& ctx, const RegistrationImages& images,
                                                          MetricKind metric, const AffineMap& map) {
  const Geometry& slice = images.fixed->geometry();
  const Neighbours neighbours(ctx, images, metric, map);
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> value, neighbours.Value(AffineMap::Identity()));
  if (!value.has_value()) return std::nullopt;
  SlicePose pose;
  pose.step_mm = StepMm(slice, images.moving->geometry());
  const Vec3d center = Center(slice);
  const auto shifted = [&](int axis) {
    const Vec3d by = pose.step_mm * Axis(slice, axis);
    return neighbours.Rise(*value, Shift(by), Shift(-1.0 * by));
  };
  // A tilt about one axis moves the ends of the other.
  const auto tilted = [&](int axis) {
    const double length = slice.size[1 - axis] * slice.spacing[1 - axis];
    const double degrees = TiltDegrees(length, pose.step_mm);
    return neighbours.Rise(*value, TurnAbout(center, Axis(slice, axis), degrees),
                           TurnAbout(center, Axis(slice, axis), -degrees));
  };
  INTRAWARP_ASSIGN_OR_RETURN(pose.offset_rise, shifted(2));
  INTRAWARP_ASSIGN_OR_RETURN(const double tilt_x, tilted(0));
  INTRAWARP_ASSIGN_OR_RETURN(const double tilt_y, tilted(1));
  pose.tilt_rise = std::min(tilt_x, tilt_y);
  INTRAWARP_ASSIGN_OR_RETURN(const double along_x, shifted(0));
  INTRAWARP_ASSIGN_OR_RETURN(const double along_y, shifted(1));
  pose.in_plane_rise = 0.5 * (along_x + along_y);
  return pose;
}

}  // namespace intrawarp
