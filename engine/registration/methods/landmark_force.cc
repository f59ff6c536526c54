// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/landmark_force.h"

#include <algorithm>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/registration/methods/landmark_force_kernels.h"
#include "engine/registration/stage/levels.h"
#include "engine/transform/displacement.h"

namespace intrawarp {
namespace {

// A landmark reaches at least so many voxels of a level.
constexpr double kLeastReachVoxels = 2;

}  // namespace

absl::StatusOr<LandmarkForce> PlaceLandmarkForce(const ExecContext& ctx, absl::Span<const Landmark> landmarks,
                                                 const AffineMap& affine, const Geometry& fixed, Int3 velocity_size,
                                                 float max_step) {
  LandmarkForce force;
  force.count = static_cast<int>(landmarks.size());
  if (landmarks.empty()) return force;
  const Geometry grid = GridOfSize(fixed, velocity_size);
  const AffineMap to_index = PhysicalToIndex(grid), from_moving = Compose(to_index, Inverse(affine));
  const double side = VoxelScale(fixed), reach = std::max(kLandmarkReachMm, kLeastReachVoxels * side);
  force.to_mm = Compose(affine, IndexToPhysical(grid));
  force.max_step = max_step;
  for (int a = 0; a < 3; ++a) {
    force.sides[a] = static_cast<float>(grid.spacing[a] / side);
    force.falloff[a] = static_cast<float>(grid.spacing[a] * grid.spacing[a] / (reach * reach));
  }
  std::vector<LevelLandmark> placed;
  for (const Landmark& landmark : landmarks) {
    const double sigmas = side / landmark.sigma_mm;
    placed.push_back({ToVec3f(to_index(landmark.fixed)), ToVec3f(from_moving(landmark.moving)),
                      static_cast<float>(std::min(1.0, kLandmarkCertainty * sigmas * sigmas)),
                      kLandmarkWeight / (landmark.sigma_mm * landmark.sigma_mm)});
  }
  INTRAWARP_ASSIGN_OR_RETURN(LevelLandmark* const on_device, ctx.arena().Allocate<LevelLandmark>(force.count));
  INTRAWARP_ASSIGN_OR_RETURN(force.residuals, ctx.arena().Allocate<float>(6 * force.count));
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Copy(on_device, placed.data(), placed.size() * sizeof(LevelLandmark), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  force.placed = on_device;
  return force;
}

int64_t LandmarkForceBytes(int64_t landmarks) {
  return Arena::Rounded(landmarks * sizeof(LevelLandmark)) + Arena::Rounded(6 * landmarks * sizeof(float));
}

absl::Status FollowLandmarks(const ExecContext& ctx, const LandmarkForce& landmarks, const float* velocity, Int3 size,
                             FieldLayout layout, DemonsState* state) {
  if (landmarks.count == 0) return absl::OkStatus();
  const LandmarkForceTask task{
      .landmarks = landmarks, .velocity = velocity, .size = size, .layout = layout, .weight = 1, .force = nullptr};
  return INTRAWARP_DISPATCH(ctx, FollowLandmarks, task, state);
}

absl::Status AddLandmarkForce(const ExecContext& ctx, const LandmarkForce& landmarks, float weight, Int3 size,
                              FieldLayout layout, float* force, const DemonsState* state) {
  if (landmarks.count == 0) return absl::OkStatus();
  const LandmarkForceTask task{
      .landmarks = landmarks, .velocity = nullptr, .size = size, .layout = layout, .weight = weight, .force = force};
  return INTRAWARP_DISPATCH(ctx, AddLandmarkForce, task, state);
}

namespace cpu {

absl::Status FollowLandmarks(const ExecContext&, const LandmarkForceTask& t, DemonsState* state) {
  if (state->done) return absl::OkStatus();
  double sum = 0;
  for (int i = 0; i < t.landmarks.count; ++i) sum += FollowLandmark(t, i, state->largest);
  state->landmarks = sum;
  return absl::OkStatus();
}

absl::Status AddLandmarkForce(const ExecContext&, const LandmarkForceTask& t, const DemonsState* state) {
  if (state->done) return absl::OkStatus();
  ParallelFor(int64_t{t.size.y} * t.size.z, [&](int64_t row) {
    const int y = static_cast<int>(row % t.size.y), z = static_cast<int>(row / t.size.y);
    for (int x = 0; x < t.size.x; ++x) PullVoxel(t, {x, y, z}, row * t.size.x + x);
  });
  return absl::OkStatus();
}

}  // namespace cpu
}  // namespace intrawarp
