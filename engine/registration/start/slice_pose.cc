// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/start/slice_pose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/registration/methods/affine.h"
#include "engine/registration/start/rotations.h"

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

// The smaller rise above `value` of a movement there and back; 0 where neither has a value.
double Rise(double value, const SampledValue& there, const SampledValue& back) {
  double least = std::numeric_limits<double>::infinity();
  if (there.value.has_value()) least = *there.value;
  if (back.value.has_value()) least = std::min(least, *back.value);
  return std::isfinite(least) ? std::max(0.0, least - value) : 0.0;
}

// The movements of the slice, each there and back: along its axes 0, 1 and 2, then tilts about its axes 0 and 1. A tilt
// about one axis moves the ends of the other.
std::vector<AffineMap> Movements(const Geometry& slice, double step) {
  std::vector<AffineMap> movements;
  for (int axis = 0; axis < 3; ++axis) {
    for (const double by : {step, -step}) movements.push_back(Shift(by * Axis(slice, axis)));
  }
  for (int axis = 0; axis < 2; ++axis) {
    const double degrees = TiltDegrees(slice.size[1 - axis] * slice.spacing[1 - axis], step);
    for (const double by : {degrees, -degrees}) {
      movements.push_back(TurnAbout(Center(slice), Axis(slice, axis), by));
    }
  }
  return movements;
}

}  // namespace

double SlicePose::Observability() const {
  if (!(in_plane_rise > kLeastRise)) return 0;
  return std::clamp(std::min(offset_rise, tilt_rise) / in_plane_rise, 0.0, 1.0);
}

absl::StatusOr<std::optional<SlicePose>> ObserveSlicePose(const ExecContext& ctx, const RegistrationImages& images,
                                                          MetricKind metric, const AffineMap& map) {
  const Geometry& slice = images.fixed->geometry();
  SlicePose pose;
  pose.step_mm = StepMm(slice, images.moving->geometry());
  std::vector<AffineMap> maps = {map};
  for (const AffineMap& moved : Movements(slice, pose.step_mm)) maps.push_back(Compose(map, moved));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<SampledValue> values,
                             AffineValues(ctx, {WithoutLandmarks(images), metric, 0}, maps));
  if (!values[0].value.has_value()) return std::nullopt;
  const auto rise = [&](int pair) { return Rise(*values[0].value, values[1 + 2 * pair], values[2 + 2 * pair]); };
  pose.in_plane_rise = 0.5 * (rise(0) + rise(1));
  pose.offset_rise = rise(2);
  pose.tilt_rise = std::min(rise(3), rise(4));
  return pose;
}

}  // namespace intrawarp
